# Finds the program in README.md, a guide or an example that each page of the reference shows.
# SPDX-License-Identifier: Apache-2.0
import re
import sys

import headers

sys.path.insert(0, str(headers.ROOT / "tests/docs"))
import extract_snippets  # noqa: E402: which code blocks are programs

GUIDES = [headers.ROOT / "README.md", *sorted((headers.ROOT / "docs").glob("*.md"))]


class Programs:
    def __init__(self):
        self.guides, self.examples = [], []  # (code, file, title)
        for path in GUIDES:
            title = "the home page" if path == GUIDES[0] else path.read_text(encoding="utf-8").split("\n")[0].lstrip("# ")
            self.guides += [(code, path, title) for _, _, code in extract_snippets.blocks_of(path) if "int main" in code]
        for path in sorted((headers.ROOT / "examples").rglob("*.c*")):
            text = path.read_text(encoding="utf-8")  # its functions, each with the comment directly above
            self.examples += [(code, path, path.relative_to(headers.ROOT).as_posix()) for code in re.split(r"\n\n(?=\S)", text)]

    def example(self, wanted):
        """Returns the shortest guide program whose code or path contains all words, or else such a function of an example."""
        for programs in (self.guides, self.examples):
            fitting = [each for each in programs
                       if all(re.search(rf"\b{word}\b", f"{each[1]}\n{each[0]}") for word in wanted.split())]
            if fitting:
                return min(fitting, key=lambda each: each[0].count("\n"))
        raise SystemExit(f"docs/reference/pages.yml: no program of README.md, docs/*.md or examples/ uses {wanted}")

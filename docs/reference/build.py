#!/usr/bin/env python3
# Builds the documentation as a site: the pages of docs/, and a reference of what the public headers declare.
# SPDX-License-Identifier: Apache-2.0
"""Usage: build.py OUTPUT_FOLDER BUILD_FOLDER

Writes OUTPUT_FOLDER/site/index.html and what belongs to it; search works without a server. BUILD_FOLDER is where the
programs are whose flags have a page. Needs Doxygen, MkDocs and its theme "material" (tools/install_packages.sh test).
`cmake --build build --target reference` runs it.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import flags
import headers
import pages

ROOT = headers.ROOT
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"(?<!\[)`([A-Za-z_][\w:]*(?:\(\))?)`(?!\])")
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".cu": "cpp", ".c": "c", ".py": "python", ".sh": "bash", ".proto": "protobuf",
             ".cmake": "cmake", ".json": "json"}


class Site:
    """The Markdown that mkdocs reads: pages as they are, but for links, which may lead anywhere in the tree."""

    def __init__(self, folder, renderer):
        self.folder = folder
        self.renderer = renderer
        self.waiting = []  # files and folders of the tree that pages link to
        self.done = set()

    def place(self, path):
        """Where a file of the tree stands in the site."""
        relative = path.relative_to(ROOT)
        if relative == pathlib.Path("README.md"):
            return pathlib.Path("index.md")
        if relative.parts[0] == "docs" and (path.suffix in (".md", ".svg")):
            return relative.relative_to("docs")
        if path.suffix in (".svg", ".png"):
            return pathlib.Path("tree") / relative
        return pathlib.Path("tree") / (relative.as_posix() + (".md" if path.suffix != ".md" else ""))

    def add(self, path):
        """Copies a file or folder of the tree, and then what it links to."""
        self.waiting.append(path)
        while self.waiting:
            each = self.waiting.pop()
            if each in self.done:
                continue
            self.done.add(each)
            target = self.folder / self.place(each)
            target.parent.mkdir(parents=True, exist_ok=True)
            if each.suffix in (".svg", ".png"):
                shutil.copyfile(each, target)
            else:
                target.write_text(self.text(each), encoding="utf-8")

    def text(self, path):
        if path.is_dir():
            readme = path / "README.md"
            about = self.rewrite(readme.read_text(encoding="utf-8"), path, path) if readme.exists() else f"# {path.name}"
            names = [each for each in tracked(path) if each != "README.md"]
            listing = "\n".join(f"* [{each}]({each})" if each.endswith(".md") else f"* `{each}`" for each in names)
            return f"{about}\n\n## Files of {path.relative_to(ROOT)}\n\n" + self.rewrite(listing, path, path) + "\n"
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            head = "---\nhide: [navigation]\n---\n" if path == ROOT / "README.md" else ""
            return head + self.rewrite(text, path.parent, path)
        language = LANGUAGES.get(path.suffix, "cmake" if path.name == "CMakeLists.txt" else "")
        return f"# {path.relative_to(ROOT)}\n\n````{language}\n{text}````\n"

    def rewrite(self, text, base, path):
        here = self.place(path).parent

        def link(match):
            before, target, fragment, after = match.groups()
            if re.match(r"\w+:", target):
                return match.group(0)
            aim = (base / target).resolve()
            if not aim.exists() or ROOT not in aim.parents:
                raise SystemExit(f"{path.relative_to(ROOT)}: link to {target}, which does not exist")
            self.waiting.append(aim)
            return before + os.path.relpath(self.place(aim), here) + (fragment or "") + after

        parts = FENCED.split(text.replace("\n```cpp fragment\n", "\n```cpp\n"))  # MkDocs takes a language alone
        def name(match):
            target = self.renderer.names.target(match.group(1))
            return match.group(0) if target is None else f"[{match.group(0)}]({os.path.relpath('reference', here)}/{target})"

        parts[::2] = [NAME.sub(name, LINK.sub(link, part)) for part in parts[::2]]
        return "".join(parts)


def tracked(folder):
    """What git knows right in the folder; without git, what is there."""
    result = subprocess.run(["git", "ls-files", "."], cwd=folder, text=True, capture_output=True)
    if result.returncode:
        return sorted(each.name for each in folder.iterdir())
    return sorted({line.split("/")[0] for line in result.stdout.splitlines()})


def main():
    output = pathlib.Path(sys.argv[1]).resolve()
    source, site = output / "source", output / "site"
    shutil.rmtree(source, ignore_errors=True)
    renderer = pages.Renderer()
    staging = Site(source, renderer)
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        staging.add(page)
    reference = source / "reference"
    reference.mkdir()
    listing = []
    for page in renderer.pages:
        text = renderer.page(page)
        if text:
            (reference / (page["name"] + ".md")).write_text(text, encoding="utf-8")
            listing.append(page)
    for item in renderer.silent:
        print(f"{item.header}:{item.line}: {item.name} is public, and no comment says what it is for")
    (reference / "all_names.md").write_text(renderer.index(), encoding="utf-8")
    (reference / "flags.md").write_text(flags.page(sys.argv[2]), encoding="utf-8")
    (reference / "index.md").write_text(overview(listing), encoding="utf-8")
    for each in (ROOT / "docs/reference").glob("assets/*"):
        (source / "assets").mkdir(exist_ok=True)
        shutil.copyfile(each, source / "assets" / each.name)
    config = (ROOT / "docs/reference/mkdocs.yml").read_text(encoding="utf-8")
    nav = "".join(f"    - {group}:\n" + "".join(f"      - reference/{each['name']}.md\n" for each in listing if each["group"] == group)
                  for group in dict.fromkeys(each["group"] for each in listing))
    (output / "mkdocs.yml").write_text(config.replace("    - PAGES\n", nav).replace("THEME", str(ROOT / "docs/reference/theme")), encoding="utf-8")
    result = subprocess.run(["mkdocs", "build", "--strict", "--clean", "-f", output / "mkdocs.yml", "-d", site],
                            text=True, capture_output=True)
    if result.returncode:
        sys.stderr.write("".join(line for line in result.stderr.splitlines(True) if "INFO" not in line))
        return result.returncode
    (site / "404.html").unlink()  # for servers: its links begin with a slash
    prepare_search(site / "search")
    if renderer.silent:
        return 1
    print(f"reference: {sum(len(each) for each in renderer.items.values())} declarations, {site}/index.html")
    return 0


def prepare_search(folder):
    """Leaves files of the tree out, and makes the index a script: pages opened as files cannot fetch it."""
    index = json.loads((folder / "search_index.json").read_text(encoding="utf-8"))
    index["docs"] = [each for each in index["docs"] if not each["location"].startswith("tree/")]
    text = json.dumps(index)
    (folder / "search_index.json").write_text(text, encoding="utf-8")
    (folder / "search_index.js").write_text(f"var searchIndex = {text}", encoding="utf-8")


def overview(listing):
    out = ["# Reference\n\nWhat the public headers declare, generated from them. [All names](all_names.md) by letter;"
           " [command-line flags](flags.md).\n"]
    for group in dict.fromkeys(each["group"] for each in listing):
        out.append(f"\n## {group}\n\n| page | what |\n|---|---|")
        out += [f"| [{each['title']}]({each['name']}.md) | {' '.join(each['intro'].split())} |".replace("](../", "](../")
                for each in listing if each["group"] == group]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.exit(main())

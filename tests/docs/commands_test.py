#!/usr/bin/env python3
# Runs the shell commands of a page of the documentation.
# SPDX-License-Identifier: Apache-2.0
"""Usage: commands_test.py FOLDER_OF_PROGRAMS FILE.md...

Each line of a ```sh block is run in an empty folder and must succeed, or end with N where it ends with "# exit code N".
Lines of a ```sh elsewhere block need other machines: only their syntax is checked.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```sh([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LIMIT = 600


def check(line, marks, folder, environment):
    """What is wrong with the command, or None."""
    expected = int((re.search(r"# exit code (\d+)$", line) or [0, 0])[1])
    words = ["bash", "-n", "-c", line] if marks == "elsewhere" else ["bash", "-c", line]
    result = subprocess.run(words, text=True, capture_output=True, timeout=LIMIT, cwd=folder, env=environment)
    if result.returncode == (0 if marks == "elsewhere" else expected):
        return None
    return f"{line}\n    ended with {result.returncode}: {result.stdout[-2000:]}{result.stderr[-2000:]}"


def main():
    programs, pages = os.path.abspath(sys.argv[1]), sys.argv[2:]
    environment = {**os.environ, "PATH": programs + ":" + os.environ["PATH"]}
    errors, num_lines = [], 0
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            for match in BLOCK.finditer(pathlib.Path(page).read_text(encoding="utf-8")):
                marks = match.group(1).strip()
                if marks not in ("", "elsewhere"):
                    errors.append(f"{page}: unknown mark '{marks}'; expected none or 'elsewhere'")
                for line in match.group(2).splitlines():
                    num_lines += 1
                    error = check(line, marks, folder, environment)
                    if error:
                        errors.append(f"{page}: {error}")
    print("\n".join(errors + [f"docs: {num_lines} commands, {len(errors)} errors"]))
    return 1 if errors or num_lines == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

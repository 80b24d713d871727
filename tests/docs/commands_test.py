#!/usr/bin/env python3
# Runs the shell commands in pages of the documentation.
# SPDX-License-Identifier: Apache-2.0
"""Usage: commands_test.py FOLDER_OF_PROGRAMS[:FOLDER...] FILE.md...

One shell runs the commands of a ```sh block one after another, in an empty folder for each page. Each command
must succeed, unless its line ends with "# exit code N": then its exit code must be N. Commands of a ```sh elsewhere
block need other machines or files, so only their syntax is checked.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```sh([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LIMIT = 600


def commands_of(block):
    """Returns the commands of a block. A command may have several lines."""
    commands, lines = [], []
    for line in block.splitlines():
        lines.append(line)
        if subprocess.run(["bash", "-n", "-c", "\n".join(lines)], capture_output=True).returncode == 0:
            commands.append("\n".join(lines))
            lines = []
    return commands + (["\n".join(lines)] if lines else [])


def check(commands, marks, folder, environment):
    """Runs the commands. Returns None on success, otherwise a text with their output."""
    script = ""
    for number, command in enumerate(commands):
        expected = int((re.search(r"# exit code (\d+)$", command) or [0, 0])[1])
        script += f"{command}\nstatus=$?\n"
        script += f'[ $status = {expected} ] || {{ echo "command {number + 1} exited with code $status, not {expected}" >&2; exit 1; }}\n'
    words = ["bash", "-n", "-c", script] if marks == "elsewhere" else ["bash", "-c", script]
    result = subprocess.run(words, text=True, capture_output=True, timeout=LIMIT, cwd=folder, env=environment)
    if result.returncode == 0:
        return None
    listed = "\n".join(commands)
    return f"{listed}\n    {result.stdout[-2000:]}{result.stderr[-2000:]}"


def main():
    programs, pages = map(os.path.abspath, sys.argv[1].split(":")), sys.argv[2:]
    environment = {**os.environ, "PATH": ":".join([*programs, os.environ["PATH"]])}
    errors, num_commands = [], 0
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            for match in BLOCK.finditer(pathlib.Path(page).read_text(encoding="utf-8")):
                marks = match.group(1).strip()
                if marks not in ("", "elsewhere"):
                    errors.append(f"{page}: unknown mark '{marks}'; expected no mark or 'elsewhere'")
                commands = commands_of(match.group(2))
                num_commands += len(commands)
                error = check(commands, marks, folder, environment)
                if error:
                    errors.append(f"{page}: {error}")
    print("\n".join(errors + [f"docs: {num_commands} commands, {len(errors)} errors"]))
    return 1 if errors or num_commands == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# Extracts the C++ programs from the documentation, so that the build compiles them and ctest runs them.
# SPDX-License-Identifier: Apache-2.0
"""Usage: extract_snippets.py OUTPUT_FOLDER FILE.md...   writes the programs and prints their paths
          extract_snippets.py --check FILE.md...         fails on blocks that no test can cover

A ```cpp block with `int main` is a program: it is compiled and run. A block marked ```cpp fragment is a part of a
program and is neither compiled nor run; a page may have only a few fragments. Any other ```cpp block is an error.
"""
import pathlib
import re
import sys

BLOCK = re.compile(r"^```cpp([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FRAGMENTS_PER_FILE = 6


def blocks_of(path):
    """Returns (line number, marks after ```cpp, code) of each block."""
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start()) + 1, match.group(1).strip(), match.group(2))
            for match in BLOCK.finditer(text)]


def extract(output, paths):
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for path in paths:
        programs = [block for block in blocks_of(path) if "int main" in block[2]]
        for number, (line, _, code) in enumerate(programs, 1):
            target = output / f"{path.stem.lower()}_{number}.cc"
            text = f'#line {line + 1} "{path}"\n{code}'
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                target.write_text(text, encoding="utf-8")
            written.append(target)
    for old in set(output.glob("*.cc")) - set(written):
        old.unlink()
    print(";".join(str(path) for path in written))


def check(paths):
    errors, programs, fragments = [], 0, 0
    for path in paths:
        fragments_here = 0
        for line, marks, code in blocks_of(path):
            if marks == "fragment":
                fragments_here += 1
            elif marks:
                errors.append(f"{path}:{line}: unknown mark '{marks}'; expected no mark or 'fragment'")
            elif "int main" not in code:
                errors.append(f"{path}:{line}: expected a program with 'int main', or the mark ```cpp fragment")
            else:
                programs += 1
        fragments += fragments_here
        if fragments_here > FRAGMENTS_PER_FILE:
            errors.append(f"{path}: {fragments_here} fragments; expected at most {FRAGMENTS_PER_FILE}: "
                          "convert some into programs")
    for error in errors:
        print(error)
    print(f"docs: {programs} programs, {fragments} fragments, {len(errors)} errors")
    return 1 if errors else 0


def main():
    paths = [pathlib.Path(argument) for argument in sys.argv[2:]]
    if sys.argv[1] == "--check":
        return check(paths)
    extract(pathlib.Path(sys.argv[1]), paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())

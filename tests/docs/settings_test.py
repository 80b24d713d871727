#!/usr/bin/env python3
# Checks that docs/settings.md lists exactly the existing environment variables, CMake options and components.
# SPDX-License-Identifier: Apache-2.0
"""Usage: settings_test.py [ROOT]"""
import pathlib
import re
import sys

QUOTED = re.compile(r'"(TUTTI_[A-Z0-9_]+)"')
OPTION = re.compile(r"^(?:option\((TUTTI_\w+)|set\((TUTTI_\w+) \S+ CACHE)", re.MULTILINE)
COMPONENT = re.compile(r"tutti_module\((\w+)|add_library\(tutti::(\w+) ALIAS")
NOT_LIBRARY = {"tests", "benchmarks", "examples", "docs"}
ROW = re.compile(r"^\| `([^|]*)` \|", re.MULTILINE)


def library_files(root, *suffixes):
    """Returns the files of the library and its tools whose names end with one of these suffixes."""
    for folder in root.iterdir():
        if folder.is_dir() and folder.name not in NOT_LIBRARY and not folder.name.startswith((".", "build")):
            yield from (path for path in folder.rglob("*") if path.name.endswith(suffixes))


def names_in(pattern, paths):
    found = set()
    for path in paths:
        for match in pattern.finditer(path.read_text(encoding="utf-8")):
            found |= {name for name in match.groups() if name}
    return found


def rows_of(page, title):
    """Returns the names in the first column of all tables in a section."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return {name for row in ROW.findall(section) for name in re.findall(r"\w+", row)}


def check(page, title, expected):
    listed = rows_of(page, title)
    return [f"docs/settings.md, {title}: {name} is missing" for name in sorted(expected - listed)] + \
           [f"docs/settings.md, {title}: there is no {name}" for name in sorted(listed - expected)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    page = (root / "docs/settings.md").read_text(encoding="utf-8")
    expected = {"Environment variables": names_in(QUOTED, library_files(root, ".h", ".cc", ".cu")),
                "CMake options": names_in(OPTION, [root / "cmake/TuttiOptions.cmake"]),
                "CMake components": names_in(COMPONENT, library_files(root, "CMakeLists.txt")) | {"tutti"}}
    errors = [error for title, names in expected.items() for error in check(page, title, names)]
    print("\n".join(errors + [f"settings: {len(errors)} errors"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# Compares the headers that programs may include, as each folder lists them, with the tree.
# SPDX-License-Identifier: Apache-2.0
"""Usage: public_headers_test.py [ROOT]

tutti_public_headers(a.h b.h ON_THEIR_OWN c.h) in a folder's CMakeLists.txt names what is installed; in the root: the
subjects, tutti.h and its neighbours. What a listed header includes must be listed. What is listed must be included by
a subject, directly or by way of others, or stand behind ON_THEIR_OWN. tutti.h may have 20 includes. Headers for
namespace tutti::internal alone are not for programs, but for those that public templates are made of. Projects that
are built against an installed tutti, and programs in the documentation, include what is listed.
"""
import pathlib
import re
import sys
import tempfile

LIST = re.compile(r"^tutti_public_headers\(([^)]*)\)", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]tutti/([^">]+)[">]', re.MULTILINE)
PUBLIC_NAMESPACE = re.compile(r"^namespace tutti(::(?!internal)\w+)* \{", re.MULTILINE)
INTERNAL_NAMESPACE = re.compile(r"^namespace tutti::internal \{", re.MULTILINE)
PROGRAM = re.compile(r"^```cpp[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
STRANGERS = ("examples/plugins", "tests/install")
MAIN = "tutti.h"
MOST_INCLUDES = 20
# Templates of theirs are compiled into programs.
TEMPLATES = {
    "core/fields.h": "json_of() writes and reads the members of options by it",
    "core/type_names.h": "register_layer() and its like name what they register",
    "strategy/parameter_server/coordinator/step_registry.h": "define() makes a step of any function",
}


def read_lists(root):
    """{header: file that lists it}, the subjects, those on their own, and the errors."""
    listed, subjects, alone, errors = {}, [], [], []
    for path in [root / "CMakeLists.txt", *sorted(root.glob("*/CMakeLists.txt")), *sorted(root.glob("*/*/CMakeLists.txt"))]:
        place = path.relative_to(root)
        for body in LIST.findall(path.read_text(encoding="utf-8")) if path.exists() else []:
            on_its_own = False
            for word in body.split():
                if word == "ON_THEIR_OWN":
                    on_its_own = True
                    continue
                header = (place.parent / word).as_posix()
                if header in listed:
                    errors.append(f"{place}: {header} is listed twice")
                if not (root / header).is_file():
                    errors.append(f"{place}: {header} does not exist")
                listed[header] = place.as_posix()
                if on_its_own:
                    alone.append(header)
                elif place.parent == pathlib.PurePath("."):
                    subjects.append(header)
    return listed, subjects, alone, errors


def reach(root, start):
    """{header: the one that includes it}"""
    found, waiting = {}, [(header, "") for header in start]
    while waiting:
        header, by = waiting.pop()
        if header in found:
            continue
        found[header] = by
        path = root / header
        includes = INCLUDE.findall(path.read_text(encoding="utf-8")) if path.is_file() else []
        waiting += [(include, header) for include in includes]
    return found


def check_users(root, listed):
    texts = [(path, path.read_text(encoding="utf-8"))
             for folder in STRANGERS for path in sorted((root / folder).rglob("*")) if path.suffix in (".h", ".c", ".cc")]
    for path in [*sorted((root / "docs").glob("*.md")), root / "README.md"]:
        if path.exists():
            texts += [(path, program) for program in PROGRAM.findall(path.read_text(encoding="utf-8"))]
    return [f"{path.relative_to(root)} includes {header}, which is not installed"
            for path, text in texts for header in INCLUDE.findall(text) if header not in listed]


def check(root):
    listed, subjects, alone, errors = read_lists(root)
    for header, by in sorted(reach(root, listed).items()):
        if header not in listed:
            errors.append(f"{header} is not public, but {by} ({listed.get(by, 'not public either')}) includes it; "
                          "declare what is needed there, or list it")
    led_to = reach(root, subjects)
    for header in sorted(set(listed) - set(reach(root, subjects + alone))):
        errors.append(f"{listed[header]}: no subject leads to {header}; try ON_THEIR_OWN, or do not install it")
    for header in alone:
        if header in led_to:
            errors.append(f"{listed[header]}: {header} is not on its own, {led_to[header]} includes it")
    for header in sorted(listed):
        text = (root / header).read_text(encoding="utf-8") if (root / header).is_file() else ""
        is_internal = bool(INTERNAL_NAMESPACE.search(text)) and not PUBLIC_NAMESPACE.search(text)
        if is_internal and header not in TEMPLATES:
            errors.append(f"{header}: nothing in it is for programs (namespace tutti::internal)")
    errors += check_users(root, listed)
    main = root / MAIN
    count = len(INCLUDE.findall(main.read_text(encoding="utf-8"))) if main.is_file() else 0
    if count > MOST_INCLUDES:
        errors.append(f"{MAIN}: {count} includes; expected at most {MOST_INCLUDES}; try another subject")
    return errors, len(listed), len(subjects)


def self_test():
    """The check must find what it is made to find."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(name, text):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")

        def found(words):
            errors = check(root)[0]
            assert len(errors) == 1 and words in errors[0], (words, errors)

        write("CMakeLists.txt", "tutti_public_headers(tutti.h)\n")
        write("tutti.h", '#include "tutti/a/a.h"\n')
        write("a/CMakeLists.txt", "tutti_public_headers(a.h ON_THEIR_OWN c.h)\n")
        write("a/a.h", "namespace tutti {\n}\n")
        write("a/b.h", "namespace tutti::internal {\n}\n")
        write("a/c.h", "extern int c;\n")
        assert check(root) == ([], 3, 1), check(root)
        write("a/a.h", '#include "tutti/a/b.h"\nnamespace tutti {\n}\n')
        found("a/b.h is not public, but a/a.h")
        write("a/CMakeLists.txt", "tutti_public_headers(a.h b.h ON_THEIR_OWN c.h)\n")
        found("nothing in it is for programs")
        write("a/a.h", "namespace tutti {\n}\n")
        write("a/CMakeLists.txt", "tutti_public_headers(a.h c.h)\n")
        found("no subject leads to a/c.h")
        write("a/CMakeLists.txt", "tutti_public_headers(ON_THEIR_OWN a.h c.h)\n")
        found("a/a.h is not on its own")
        write("a/CMakeLists.txt", "tutti_public_headers(a.h d.h ON_THEIR_OWN c.h)\n")
        errors = check(root)[0]
        assert any("a/d.h does not exist" in error for error in errors), errors
        write("a/CMakeLists.txt", "tutti_public_headers(a.h ON_THEIR_OWN c.h)\n")
        write("README.md", '```cpp\n#include "tutti/a/b.h"\n```\n')
        found("README.md includes a/b.h, which is not installed")
        write("README.md", "")
        write("tutti.h", '#include "tutti/a/a.h"\n' * (MOST_INCLUDES + 1))
        found("expected at most 20")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    self_test()
    errors, count, subjects = check(root)
    for error in errors:
        print(error)
    if not errors:
        print(f"public headers: {count}, of which {subjects} are subjects")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()

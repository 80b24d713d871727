#!/usr/bin/env python3
# Measures the structure of the code: lines, files, types, interfaces, services, and the files of three walks.
# SPDX-License-Identifier: Apache-2.0
"""Usage: count_structure.py [ROOT]

Product code is .h, .cc, .cu, .c and .proto outside tests, benchmarks and examples, as git lists it; a header in
include/tutti/strategy counts for strategy. A walk is a section of "Three walks" in docs/architecture.md: its units are
the files in backticks, which are counted completely, including their headers. A type is a class, struct, enum or union with a
body. An interface is a class with a pure virtual function; it has one implementation when a single product class names
it as a base.
"""
import pathlib
import re
import subprocess
import sys

SUFFIXES = {".h", ".cc", ".cu", ".c", ".proto"}
PUBLIC = "include/tutti/"
NOT_PRODUCT = {"tests", "benchmarks", "examples"}
TEST_SUFFIXES = {".h", ".cc", ".cu", ".c", ".py"}
TYPE = re.compile(
    r"^[ \t]*(?:template\s*<[^;{]*>\s*)?(?:typedef\s+)?(?:class|struct|enum(?:\s+class)?|union)\s+"
    r"(?:alignas\([^)]*\)\s+|[A-Z_]+(?:\([^)]*\))?\s+|\[\[\w+\]\]\s+)*(\w+)([^;(){}=]*)\{", re.MULTILINE)
PURE_VIRTUAL = re.compile(r"\)[\w\s]*=\s*0\s*;")
BASE = re.compile(r"[:,]\s*(?:(?:public|private|protected|virtual)\s+)*(?:\w+::)*(\w+)")
BETWEEN_PROCESSES = ("cluster/", "cross_device_ops/", "strategy/parameter_server/", "strategy/multi_worker/", "tools/")
DURATION = re.compile(r"\b(?:constexpr\s+Duration|Duration)\s+(\w+)\s*(?:=|\{)\s*(?:std::chrono|milliseconds|seconds|\d)")
SERVICE = re.compile(r"^service (\w+)", re.MULTILINE)
WALKS = re.compile(r"^## Three walks\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
WALK = re.compile(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w/]+\.(?:h|cc|cu|c|proto))`")
METHOD = re.compile(r"^\s+rpc (\w+)", re.MULTILINE)


def tracked(root):
    names = subprocess.run(["git", "ls-files"], cwd=root, check=True, text=True, stdout=subprocess.PIPE).stdout.split("\n")
    return [pathlib.PurePath(name) for name in names if name and (root / name).is_file()]


def body_of(text, begin):
    """Returns the text from the brace at `begin` to its matching brace. Braces in strings are counted, too."""
    depth = 0
    for index in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[begin:index]
    return text[begin:]


def interfaces_with_one_implementation(texts):
    interfaces, implementations = set(), {}
    for text in texts.values():
        for match in TYPE.finditer(text):
            for base in BASE.findall(match.group(2)):
                implementations.setdefault(base, set()).add(match.group(1))
            if PURE_VIRTUAL.search(body_of(text, match.end() - 1)):
                interfaces.add(match.group(1))
    return len(interfaces), sorted(name for name in interfaces if len(implementations.get(name, ())) == 1)


def print_walks(root):
    for name, text in WALK.findall(WALKS.search((root / "docs/architecture.md").read_text(encoding="utf-8")).group(1)):
        units = list(dict.fromkeys(FILE.findall(text)))
        headers = [place + re.sub(r"\.cc$", ".h", unit) for unit in units for place in ("", PUBLIC)]
        files = units + [header for header in headers if header not in units and (root / header).exists()]
        lines = sum((root / file).read_text(encoding="utf-8").count("\n") for file in files)
        print(f"walk of {name[0].lower()}{name[1:]}: {len(units)} units, {len(files)} files with their headers, {lines} lines")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    paths = tracked(root)
    product = [path for path in paths if path.suffix in SUFFIXES and path.parts[0] not in NOT_PRODUCT]
    texts = {path.as_posix().removeprefix(PUBLIC): (root / path).read_text(encoding="utf-8") for path in product}
    lines = {name: text.count("\n") for name, text in texts.items()}
    types = {name: len(TYPE.findall(text)) for name, text in texts.items()}
    between = [name for name in lines if name.startswith(BETWEEN_PROCESSES)]
    print(f"product: {sum(lines.values())} lines in {len(lines)} files, {sum(types.values())} types")
    print(f"between processes ({', '.join(BETWEEN_PROCESSES)}): {sum(lines[name] for name in between)} lines")
    folders = {}
    for name, count in lines.items():
        parts = name.split("/")
        folder = "/".join(parts[:2]) if parts[0] in ("cluster", "strategy") and len(parts) > 2 else parts[0]
        if len(parts) == 1:
            folder = PUBLIC.rstrip("/")
        before = folders.get(folder, (0, 0, 0))
        folders[folder] = (before[0] + count, before[1] + 1, before[2] + types[name])
    print("    lines  files  types")
    for folder, counts in sorted(folders.items(), key=lambda each: -each[1][0]):
        print(f"  {counts[0]:7}{counts[1]:7}{counts[2]:7}  {folder}")
    tests = [path for path in paths if path.parts[0] == "tests" and path.suffix in TEST_SUFFIXES]
    print(f"tests: {sum((root / path).read_text(encoding='utf-8').count(chr(10)) for path in tests)} lines in {len(tests)} files")
    count, single = interfaces_with_one_implementation(texts)
    print(f"interfaces: {count}, of these with one implementation: {', '.join(single)}")
    protos = {name: text for name, text in texts.items() if name.endswith(".proto")}
    services = [service for text in protos.values() for service in SERVICE.findall(text)]
    methods = [method for text in protos.values() for method in METHOD.findall(text)]
    print(f"services: {len(services)} ({', '.join(sorted(services))}) with {len(methods)} methods in {len(protos)} .proto files")
    durations = sorted({name for each in between for name in DURATION.findall(texts[each])})
    print(f"names of durations between processes: {len(durations)}")
    print_walks(root)


if __name__ == "__main__":
    main()

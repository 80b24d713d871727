#!/usr/bin/env python3
# Counts what the structure of the code costs: lines, files, services, durations, and the files of three walks.
# SPDX-License-Identifier: Apache-2.0
"""Usage: count_structure.py [ROOT]

Product code is .h, .cc, .cu, .c and .proto outside tests, benchmarks and examples, as git lists it; a header in
include/tutti/strategy counts to strategy. A walk is a section of "Three walks" in docs/architecture.md: its units are
the paths in backticks, counted whole, with the headers of the same name.
"""
import pathlib
import re
import subprocess
import sys

SUFFIXES = {".h", ".cc", ".cu", ".c", ".proto"}
PUBLIC = "include/tutti/"
NOT_PRODUCT = {"tests", "benchmarks", "examples"}
BETWEEN_PROCESSES = ("cluster/", "cross_device_ops/", "strategy/parameter_server/", "strategy/multi_worker/", "tools/")
DURATION = re.compile(r"\b(?:constexpr\s+Duration|Duration)\s+(\w+)\s*(?:=|\{)\s*(?:std::chrono|milliseconds|seconds|\d)")
SERVICE = re.compile(r"^service (\w+)", re.MULTILINE)
WALKS = re.compile(r"^## Three walks\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
WALK = re.compile(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w/]+\.(?:h|cc|cu|c|proto))`")
METHOD = re.compile(r"^\s+rpc (\w+)", re.MULTILINE)


def product(root):
    names = subprocess.run(["git", "ls-files"], cwd=root, check=True, text=True, stdout=subprocess.PIPE).stdout.split("\n")
    paths = [pathlib.PurePath(name) for name in names if name]
    return [path for path in paths if path.suffix in SUFFIXES and path.parts[0] not in NOT_PRODUCT]


def print_walks(root):
    for name, text in WALK.findall(WALKS.search((root / "docs/architecture.md").read_text(encoding="utf-8")).group(1)):
        units = list(dict.fromkeys(FILE.findall(text)))
        headers = [place + re.sub(r"\.cc$", ".h", unit) for unit in units for place in ("", PUBLIC)]
        files = units + [header for header in headers if header not in units and (root / header).exists()]
        lines = sum((root / file).read_text(encoding="utf-8").count("\n") for file in files)
        print(f"walk of {name[0].lower()}{name[1:]}: {len(units)} units, {len(files)} files with their headers, {lines} lines")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    texts = {path.as_posix().removeprefix(PUBLIC): (root / path).read_text(encoding="utf-8") for path in product(root)}
    lines = {name: text.count("\n") for name, text in texts.items()}
    between = [name for name in lines if name.startswith(BETWEEN_PROCESSES)]
    print(f"product: {sum(lines.values())} lines in {len(lines)} files")
    print(f"between processes ({', '.join(BETWEEN_PROCESSES)}): {sum(lines[name] for name in between)} lines")
    folders = {}
    for name, count in lines.items():
        parts = name.split("/")
        folder = "/".join(parts[:2]) if parts[0] in ("cluster", "strategy") and len(parts) > 2 else parts[0]
        folders[folder] = folders.get(folder, 0) + count
    for folder, count in sorted(folders.items(), key=lambda each: -each[1]):
        print(f"  {count:7} {folder}")
    protos = {name: text for name, text in texts.items() if name.endswith(".proto")}
    services = [service for text in protos.values() for service in SERVICE.findall(text)]
    methods = [method for text in protos.values() for method in METHOD.findall(text)]
    print(f"services: {len(services)} ({', '.join(sorted(services))}) with {len(methods)} methods in {len(protos)} .proto files")
    durations = sorted({name for each in between for name in DURATION.findall(texts[each])})
    print(f"names of durations between processes: {len(durations)}")
    print_walks(root)


if __name__ == "__main__":
    main()

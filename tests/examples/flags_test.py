#!/usr/bin/env python3
# Checks that each flag in an example's --help sets a variable that the example reads.
# SPDX-License-Identifier: Apache-2.0
"""Usage: flags_test.py SOURCE_FOLDER FOLDER_OF_PROGRAMS

A flag's variable is named in its declaration. The variable counts as read if a function that main() reaches uses it for
anything except declaring, removing or checking a flag. Functions of examples/common and of the strategies' factory are included if
a function that is reached names them.
"""
import pathlib
import re
import subprocess
import sys

SOURCE, PROGRAMS = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
FACTORY = SOURCE / "strategy/factory/make_strategy.cc"
DECLARATION = re.compile(r'(?:\w+\.)?add(?:_choice)?\(\s*"(?P<flag>-[^"]+)",\s*(?P<variable>[\w.]+)')


def without_comments(text):
    return re.sub(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*', lambda match: match[1] or "", text)  # "grpc://" is not a comment


def read(path):
    return without_comments(path.read_text(encoding="utf-8"))


def functions(text):
    """Returns {name of a function or type: its text}. With clang-format, each begins and ends at the left margin."""
    found, block = {}, []
    for line in text.splitlines():
        if not block and (not re.match(r"[A-Za-z]", line) or line.startswith(("namespace ", "using "))):
            continue
        block.append(line)
        whole = "\n".join(block)
        ends = line[:1] == "}" or (len(block) == 1 and line[-1:] in ";}") if "{" in whole else line[-1:] == ";"
        if not ends:
            continue
        head = whole.split("{")[0]
        name = re.match(r"(?:class|struct) (\w+)", whole) or re.search(r"(\w+)::~?\w+\(", head) or re.search(r"(\w+)\(", head)
        if name:
            found[name[1]] = found.get(name[1], "") + whole
        block = []
    return found


def reached(bodies, start):
    """Returns the text of all functions that are reachable from `start` by name."""
    waiting, seen = [start], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += [other for other in bodies if other and re.search(rf"\b{other}\b", bodies[name])]
    return "".join(bodies[name] for name in sorted(seen))


def own_sources(program):
    """Returns the files of the program, including the headers and sources of examples/ that it includes."""
    files, waiting = [], [program]
    while waiting:
        path = waiting.pop()
        if path in files or not path.exists():
            continue
        files.append(path)
        for include in re.findall(r'#include "(examples/[^"]+)\.h"', read(path)):
            waiting += [SOURCE / (include + suffix) for suffix in (".h", ".cc")]
    return files


def flags_of(binary):
    result = subprocess.run([binary, "--help"], text=True, capture_output=True, timeout=600, check=True)
    return [flag for flag in re.findall(r"^ +(?:-\w,)?(--?[\w-]+)", result.stdout, re.MULTILINE) if flag not in ("--help", "-h")]


def unread_flags(program, binary):
    text = "\n".join(read(path) for path in own_sources(program)) + "\n" + read(FACTORY)
    variables = {match["flag"]: match["variable"].rsplit(".", 1)[-1] for match in DECLARATION.finditer(text)}
    # Declaring, removing or checking a flag does not count as use.
    text = re.sub(r'(?:\w+\.)?add(?:_choice)?\(\s*"-(?:[^()"]|"[^"]*"|\([^()]*\))*\);', "", text)
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
    bodies = {name: body for name, body in functions(text).items() if name not in ("check", "check_owners", "declare")}
    used = reached(bodies, "main")
    for flag in flags_of(binary):
        if flag not in variables:
            yield f"{flag}: its declaration was not found"
        elif not re.search(rf"(?<!\*)(?<!& )\b{variables[flag]}\b(?! = [^=][^;]*;)", used):
            yield f"{flag}: {program.name} never reads {variables[flag]}"


def main():
    folder, mistakes, count = SOURCE / "examples", [], 0
    programs = sorted([*folder.glob("*.cc"), folder / "gpt/gpt.cc"])
    for program in programs:
        binary = PROGRAMS / program.relative_to(folder).with_suffix("")
        if not binary.exists():
            continue  # not built without gRPC or XLA
        count += 1
        mistakes += [f"{program.stem}: {mistake}" for mistake in unread_flags(program, binary)]
    assert count >= 10, f"found {count} of {len(programs)} programs in {PROGRAMS}"
    print(f"{count} programs")
    if mistakes:
        sys.exit("\n".join(mistakes))


if __name__ == "__main__":
    main()

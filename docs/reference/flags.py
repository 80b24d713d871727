# Writes the reference page of command-line flags from the --help output of the programs.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re
import subprocess
import textwrap

LIMIT = 60  # seconds
WIDTH = 92
COMMON = "fashion_mnist_custom_loop"  # its flags are those that most examples share


def help_of(program, words):
    result = subprocess.run([program, *words, "--help"], text=True, capture_output=True, timeout=LIMIT)
    if result.returncode:
        raise SystemExit(f"{program} {' '.join(words)} --help: expected exit code 0, got {result.returncode}: {result.stderr[-500:]}")
    return "\n".join(map(wrapped, result.stdout.rstrip().replace(str(program), program.name).split("\n")))


def wrapped(line):
    """Wraps a help line; the continuation lines are aligned with the explanation of the flag."""
    column = re.match(r"  \S.*?  +(?=\S)| {8,}|", line).end()
    return "\n".join(textwrap.wrap(line, WIDTH, subsequent_indent=" " * column)) if column and len(line) > WIDTH else line


def commands(program, words, title):
    """Yields a section for the command, and one for each of its subcommands."""
    text = help_of(program, words)
    yield f"{'##' if len(words) < 2 else '###'} {title}\n\n```text\n{text}\n```\n"
    listed = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.MULTILINE)
    for name in re.findall(r"^  (\w+)", listed.group(1), re.MULTILINE) if listed else []:
        yield from commands(program, [*words, name], f"{title} {name}")


def page(build):
    """Returns the page for the programs in the build folder `build`."""
    build = pathlib.Path(build)
    out = ["# Command-line flags\n\nOutput of `--help` for the programs of this build.\n"]
    out += commands(build / "bin/tutti", [], "tutti")
    programs = [path for pattern in ("*", "cifar10/*") for path in sorted((build / "examples").glob(pattern))]
    examples = [path for path in programs if path.is_file() and path.stat().st_mode & 0o100]
    shared = set()
    for path in sorted(examples, key=lambda path: path.name != COMMON):
        flags = re.split(r"\n(?! {8})", help_of(path, []))  # each with its continuation lines
        if path.name == COMMON:
            shared = {flag for flag in flags if flag.startswith("  ")}
            out.append("## Examples\n")
        elif len(shared.intersection(flags)) > len(shared) / 2:
            flags = [flag for flag in flags if flag not in shared] + [f"and the flags of {COMMON}"]
        text = "\n".join(flags)
        out.append(f"### {path.name}\n\n```text\n{text}\n```\n")
    return "\n".join(out)

# The page of command-line flags: what the programs themselves say.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re
import subprocess

LIMIT = 60
COMMON = "fashion_mnist_custom_loop"  # an example with all the flags that examples share


def help_of(program, words):
    result = subprocess.run([program, *words, "--help"], text=True, capture_output=True, timeout=LIMIT)
    if result.returncode:
        raise SystemExit(f"{program} {' '.join(words)} --help ended with {result.returncode}: {result.stderr[-500:]}")
    return result.stdout.rstrip()


def commands(program, words, title):
    """A section for the command, and one for each of its own commands."""
    text = help_of(program, words).replace(str(program), program.name)
    yield f"{'##' if len(words) < 2 else '###'} {title}\n\n```text\n{text}\n```\n"
    listed = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.MULTILINE)
    for name in re.findall(r"^  (\w+)", listed.group(1), re.MULTILINE) if listed else []:
        yield from commands(program, [*words, name], f"{title} {name}")


def page(build):
    """`build`: where the programs are."""
    build = pathlib.Path(build)
    out = ["# Command-line flags\n\nWhat the programs of this build say to `--help`.\n"]
    out += commands(build / "bin/tutti", [], "tutti")
    examples = sorted(path for path in (build / "examples").glob("*") if path.is_file() and path.stat().st_mode & 0o100)
    known = set()
    for path in sorted(examples, key=lambda path: path.name != COMMON):
        lines = help_of(path, []).replace(str(path), path.name).split("\n")
        if path.name == COMMON:
            known = set(lines)
            out.append(f"## Examples\n\nAll examples take the flags of `{COMMON}`; below are those of each alone.\n")
        own = "\n".join(line for line in lines if line not in known or path.name == COMMON)
        out.append(f"### {path.name}\n\n```text\n{own}\n```\n")
    return "\n".join(out)

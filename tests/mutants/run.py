#!/usr/bin/env python3
# Plants each mutant of tests/mutants/*.txt in a copy of the tree and requires that its test fails.
# SPDX-License-Identifier: Apache-2.0
"""Usage: run.py --check | [--source FOLDER] [--build FOLDER] [--jobs N] [NAME...]

--check   only checks that every mutant can be planted and that its test exists
--source  folder for the copy of the tree; default: build-mutants/source
--build   folder in which the copy is built; default: build-mutants/build
NAME      runs only mutants whose name contains one of the given names"""
import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS_PER_RUN = 600  # a mutant may hang
# Inserted at the beginning of each changed file; one build serves all mutants.
SWITCH = """#ifndef TUTTI_MUTANT_SWITCH
#define TUTTI_MUTANT_SWITCH
#include <cstdlib>
inline const int tutti_chosen_mutant = [] {
  const char* const number = std::getenv("TUTTI_MUTANT");
  return number ? std::atoi(number) : 0;
}();
#endif
"""


class Mutant:
    """Entry of a mutants file: the changed file, the test that must fail, and the lines before and after the change."""

    def __init__(self, name, place):
        self.name, self.place, self.number = name, place, 0
        self.file = self.test = self.given_program = None
        self.before, self.after = [], []

    @property
    def program(self):
        """Returns the test program that the entry names, or that of the changed file's folder."""
        if self.given_program:
            return self.given_program
        parts = pathlib.PurePosixPath(self.file.removeprefix("include/tutti/")).parts
        return "test_layers" if parts[:2] == ("model", "layers") else f"test_{parts[0]}"

    def fail(self, text):
        sys.exit(f"{self.place}: mutant '{self.name}': {text}")

    def check(self):
        if not self.file or not self.test or not self.before or self.before == self.after:
            self.fail("expected lines 'file:' and 'test:' and a change of '-' and '+' lines")
        if not any("MUTANT" in line for line in self.after):
            self.fail("expected the switch MUTANT in a '+' line")

    def plant(self, text):
        """Returns the text after the change. Compares lines without their indentation."""
        lines = text.splitlines()
        bare = [line.strip() for line in lines]
        count = len(self.before)
        found = [i for i in range(len(bare) - count + 1) if bare[i:i + count] == self.before]
        if len(found) != 1:
            self.fail(f"expected the '-' lines once in {self.file}, found them {len(found)} times; "
                      "copy the lines from the file again, or add lines of context")
        switched = [line.replace("MUTANT", f"(tutti_chosen_mutant == {self.number})") for line in self.after]
        lines[found[0]:found[0] + count] = switched
        return "\n".join(lines) + "\n"


def read_mutants():
    mutants = []
    for path in sorted((ROOT / "tests/mutants").glob("*.txt")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            place = f"{path.relative_to(ROOT)}:{number}"
            if line.startswith("== "):
                mutants.append(Mutant(line[3:], place))
            elif not line.strip() or line.startswith("#"):
                continue
            elif not mutants:
                sys.exit(f"{place}: expected '== name of the mutant', got '{line}'")
            elif line.startswith(("file: ", "test: ")):
                setattr(mutants[-1], line[:4], line[6:].strip())
            elif line.startswith("program: "):
                mutants[-1].given_program = line[9:].strip()
            elif line[0] in " -+":
                if line[0] != "+":
                    mutants[-1].before.append(line[1:].strip())
                if line[0] != "-":
                    mutants[-1].after.append(line[1:].strip())
            else:
                sys.exit(f"{place}: expected a line that begins with 'file: ', 'test: ', 'program: ', '-', '+' or ' ', got '{line}'")
    for number, mutant in enumerate(mutants, 1):
        mutant.number = number
        mutant.check()
    return mutants


def planted(mutants):
    """Returns {file: text} with all changes."""
    texts = {}
    for mutant in mutants:
        path = ROOT / mutant.file
        if not path.exists():
            mutant.fail(f"there is no file {mutant.file}; correct the line 'file:'")
        text = texts.get(mutant.file) or path.read_text(encoding="utf-8")
        texts[mutant.file] = mutant.plant(text)
    return texts


def check_tests(mutants):
    """Exits with an error if the test of a mutant does not exist."""
    pattern = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.M)
    names = {}
    for mutant in mutants:
        folder = mutant.program.removeprefix("test_")
        if folder not in names:
            names[folder] = [f"{suite}.{test}" for path in (ROOT / "tests" / folder).rglob("*.cc")
                             for suite, test in pattern.findall(path.read_text(encoding="utf-8"))]
        for wanted in mutant.test.split(":"):
            bare = wanted.removeprefix("*/").removesuffix("/*")  # of TEST_P
            if not fnmatch.filter(names[folder], bare):
                mutant.fail(f"tests/{folder} has no test {wanted}; correct the line 'test:', or add a line 'program:'")


def copy_tree(to, planted_files):
    """Copies the tree. Does not touch files that are already equal, so that a second build is short."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.splitlines()
    for name in listed:
        source, target = ROOT / name, to / name
        if name in planted_files:
            write(target, (SWITCH + planted_files[name]).encode())
        elif source.is_file():
            write(target, source.read_bytes())
            shutil.copymode(source, target)


def write(path, data):
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def build(source, folder, programs):
    if not (folder / "CMakeCache.txt").exists():
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DTUTTI_BUILD_TESTS=ON", "-DTUTTI_CUDA=OFF", "-DTUTTI_MPI=OFF"]
        if shutil.which("ld.gold"):
            options.append("-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=gold")
        subprocess.run(["cmake", "-S", source, "-B", folder, "-G", "Ninja", *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--target", *programs], check=True)


def run_test(folder, mutant, number):
    """Returns 'green' if the test passed, else how the test failed."""
    command = [folder / "bin" / mutant.program, f"--gtest_filter={mutant.test}", "--gtest_fail_fast", "--gtest_brief=1"]
    environment = {**os.environ, "TUTTI_MUTANT": str(number)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS_PER_RUN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"timed out after {SECONDS_PER_RUN} s"
    if "0 tests from 0 test suites ran" in output:
        return "found no test"
    if process.returncode == 0:
        return "green"
    return "failed" if "[  FAILED  ]" in output else f"crashed ({process.returncode})"


def run_all(folder, mutants, jobs, planted_ones):
    """Returns the result of each mutant's test, in order."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(lambda m: run_test(folder, m, m.number if planted_ones else 0), mutants))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--source", type=pathlib.Path, default=ROOT / "build-mutants/source")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-mutants/build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()

    mutants = read_mutants()
    texts = planted(mutants)
    check_tests(mutants)
    if arguments.check:
        print(f"{len(mutants)} mutants in {len(texts)} files can be planted")
        return
    begin = time.monotonic()
    folder = arguments.build
    copy_tree(arguments.source, texts)
    chosen = [m for m in mutants if not arguments.names or any(name in m.name for name in arguments.names)]
    build(arguments.source, folder, sorted({m.program for m in chosen}))
    print(f"built after {time.monotonic() - begin:.0f} s", flush=True)

    unplanted = run_all(folder, chosen, arguments.jobs, planted_ones=False)
    problems = [f"{m.place}: {m.program} {m.test}: expected the test to pass without the mutant, got: {how}"
                for m, how in zip(chosen, unplanted) if how != "green"]
    for mutant, how in zip(chosen, run_all(folder, chosen, arguments.jobs, planted_ones=True)):
        print(f"{'ESCAPED' if how == 'green' else how:12} {mutant.file}: {mutant.name}")
        if how in ("green", "found no test"):
            problems.append(f"{mutant.place}: mutant '{mutant.name}' escaped: {mutant.program} {mutant.test}: {how}")
    print(f"{len(chosen)} mutants, {len(problems)} problems, {time.monotonic() - begin:.0f} s")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# Checks lengths, first lines, words and folder READMEs, and that each file is in a folder for its
# kind.
# SPDX-License-Identifier: Apache-2.0
"""Usage: file_style_test.py [ROOT]

Warns about files over 800 lines, which may have two subjects. Fails on lines over 100 columns in C++, on a
missing first sentence or licence line, on a header without #pragma once, on a library folder without README.md,
on a tracked file in the root or at the top of a folder that is not on the lists below, on more than 28 entries in
the root, on tests that name a folder in /tmp, which two runs at once would share, and on the words in WORDS. Prose of
README.md (120 lines at most), docs/ and benchmarks/README.md has 100 columns at most; tables and code may be wider.
"""
import pathlib
import re
import subprocess
import sys

SUFFIXES = (".h", ".cc")
LOOK_TWICE = 800  # lines
COLUMNS = 100
LIBRARIES = ("core", "tensor", "autograd", "optimizer", "data", "cross_device_ops", "cluster", "checkpoint", "strategy",
             "testing", "model", "model/layers")
FOLDERS = ("core", "tensor", "autograd", "optimizer", "data", "cross_device_ops", "cluster", "checkpoint", "strategy",
           "testing", "model", "tools", "examples", "benchmarks", "tests", "include")
# Files that may be in the root, or directly in a folder of the root: complete names, or suffixes. Output of programs belongs in a build folder; measurements belong in benchmarks/results/
# or on a page of docs/.
ROOT_FILES = {".clang-format", ".clang-tidy", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff", "conanfile.py",
              "CMakeLists.txt", "CMakePresets.json", "CONTRIBUTING.md", "LICENSE", "README.md", "run", "test"}
MOST_IN_ROOT = 28  # files and folders, without hidden ones
SOURCES = ("CMakeLists.txt", "README.md", ".h", ".cc")
TOP_FILES = {**dict.fromkeys(FOLDERS, SOURCES),
             ".ci": ("run",),
             ".github": (".md", ".yml"),
             "cmake": (".cmake", ".cmake.in"),
              "docs": (".md",),
              "include": (),
             "tests": SOURCES + (".py", ".sh", "long_tests.txt"),
             "tools": SOURCES + (".sh",)}
PROSE = ("README.md", "benchmarks/README.md", "docs/*.md", "docs/decisions/*.md")
README_LINES = 120
# Names in /tmp that tests may use: folders of the library's sockets, and the default folder of a
# program.
SHARED_FOLDER = re.compile(r"/tmp(?!\w|/tutti-|/cifar10_data\b)")
LICENSE = "// SPDX-License-Identifier: Apache-2.0"
# Words that comments, messages, names of tests and pages must not contain, even as a part of a
# CamelCase name.
WORDS = {re.compile(r"nobody", re.I): "'no caller', 'no rank' or 'no worker'",
         re.compile(r"somebody", re.I): "the caller, thread or process that is meant",
         re.compile(r"of 0 or more", re.I): "'>= 0'",
         re.compile(r"(?<![A-Za-z])anew(?![A-Za-z])|Anew(?![a-z])"): "'again', or 'restart' in a name",
         re.compile(r"(?<![A-Za-z])[Gg]oes[ _]on(?![A-Za-z])|GoesOn(?![a-z])"): "'continues'"}
WORDS_SUFFIXES = (".md", ".h", ".cc", ".cu", ".cuh", ".py", ".proto")
WORDS_EXEMPT = ("CHANGELOG.md", "tests/file_style_test.py")


def check_file(name, text):
    errors, warnings = [], []
    lines = text.split("\n")
    suffix = pathlib.PurePath(name).suffix
    if len(lines) > LOOK_TWICE:
        warnings.append(f"{name}: {len(lines)} lines; expected at most {LOOK_TWICE} unless the file has one subject")
    if not lines[0].startswith("// ") or LICENSE not in lines[1:6]:
        errors.append(f"{name}: expected a sentence on the first line and '{LICENSE}' below it")
    if suffix == ".h" and "#pragma once" not in lines[:30]:
        errors.append(f"{name}: no #pragma once")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS and "http" not in line and 'R"' not in line:
            errors.append(f"{name}:{number}: {len(line)} columns; expected at most {COLUMNS}")
        if line != line.rstrip():
            errors.append(f"{name}:{number}: space at the end of the line")
    return errors, warnings


def check_folders(name, text):
    """Checks that a test names no folder in /tmp, except in comments."""
    errors = []
    for number, line in enumerate(text.split("\n"), 1):
        if SHARED_FOLDER.search(line) and not line.lstrip().startswith(("//", "#")):
            errors.append(f"{name}:{number}: names a folder in /tmp, which all runs on a machine share; use testing::TempDir(), "
                          "std::filesystem::temp_directory_path() or tempfile.TemporaryDirectory(), which only one process uses")
    return errors


def check_prose(name, text):
    """Checks the length of lines, except in code: fenced or indented blocks."""
    lines, errors, is_code = text.split("\n"), [], False
    if name == "README.md" and len(lines) > README_LINES + 1:
        errors.append(f"{name}: {len(lines) - 1} lines; expected at most {README_LINES}: details belong in docs/")
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and len(line) > COLUMNS and not line.startswith("    ") and not line.lstrip().startswith("|"):
            errors.append(f"{name}:{number}: {len(line)} columns of prose; expected at most {COLUMNS}")
    return errors


def check_words(name, text):
    return [f"{name}:{number}: '{found[0]}'; use {instead}" for number, line in enumerate(text.split("\n"), 1)
            for word, instead in WORDS.items() if (found := word.search(line))]


def belongs(name, known):
    return any(name == entry or (entry.startswith(".") and name.endswith(entry)) for entry in known)


def check_place(name):
    """Checks where a file is, unless it is in a sub-folder of a top folder."""
    folder, _, rest = name.partition("/")
    if not rest:
        if name in ROOT_FILES:
            return []
        return [f"{name}: is in the root, where only {', '.join(sorted(ROOT_FILES))} belong; "
                "move it to its folder, or add its name to ROOT_FILES in tests/file_style_test.py"]
    if folder not in TOP_FILES:
        return [f"{name}: unknown folder {folder}/; expected one of {', '.join(sorted(TOP_FILES))}; "
                "move it, or add the folder to TOP_FILES in tests/file_style_test.py"]
    if "/" in rest or belongs(rest, TOP_FILES[folder]):
        return []
    return [f"{name}: is at the top of {folder}/, where only {', '.join(TOP_FILES[folder])} belong; "
            "move it, or add its name to TOP_FILES in tests/file_style_test.py"]


def check_tracked(root):
    """Checks folders and words of the files that git tracks. Other files (build folders, editors' files) may be anywhere."""
    if not (root / ".git").exists():
        print(f"file style: {root} is not a git checkout, so the locations and words of files are not checked")
        return []
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode != 0:
        return [f"git ls-files in {root}: expected the names of tracked files, got: {listed.stderr.strip()}"]
    names = [name for name in listed.stdout.split("\0") if name]
    errors = [error for name in names for error in check_place(name)] + check_root(names)
    for name in names:
        if name.endswith(WORDS_SUFFIXES) and name not in WORDS_EXEMPT and (root / name).is_file():
            errors += check_words(name, (root / name).read_text(encoding="utf-8"))
    return errors


def check_root(names):
    in_root = sorted({name.split("/")[0] for name in names if not name.startswith(".")})
    if len(in_root) <= MOST_IN_ROOT:
        return []
    return [f"{len(in_root)} files and folders in the root; expected at most {MOST_IN_ROOT}; move one of {', '.join(in_root)}"]


def self_test():
    head = "// What it is.\n" + LICENSE + "\n"
    assert check_file("a.cc", head) == ([], [])
    assert len(check_file("a.h", head)[0]) == 1
    assert len(check_file("a.cc", head + "x" * 101)[0]) == 1
    assert len(check_file("a.cc", "int a;\n")[0]) == 1
    assert len(check_file("a.cc", head + "\n" * LOOK_TWICE)[1]) == 1
    entries = [f"folder{i}/a" for i in range(MOST_IN_ROOT)]
    assert not check_root([*entries, "folder0/b", ".hidden"]) and len(check_root([*entries, "b"])) == 1
    wide = "x" * 101 + "\n"
    assert len(check_prose("docs/a.md", wide + "| " + wide + "```\n" + wide + "```\n    " + wide)) == 1
    assert check_prose("README.md", "a\n" * 120) == [] and len(check_prose("README.md", "a\n" * 121)) == 1
    for line in ('write_file("/tmp/a", x);', 'folder = f"/tmp/{name}"', "cp a /tmp"):
        assert len(check_folders("tests/a.cc", line)) == 1, line
    for line in ("/// Such as /tmp/x.", 'f"unix:/tmp/tutti-{os.geteuid()}/x"', "TempDir() + name", "/tmpfs"):
        assert not check_folders("tests/a.cc", line), line
    for line in ("// Nobody reads it.", "TEST(A, TakesNobodysResult)", "somebody", "expected a size of 0 or more", "begins anew",
                 "TEST(A, BeginsAnew)", "it goes on", "TEST(A, GoesOnAfterError)", "def test_training_goes_on_later(self)"):
        assert len(check_words("a.cc", line)) == 1, line
    for line in ("a new one", "manewer", "it goes only once", "goes_one", "TEST(A, GoesOneByOne)"):
        assert not check_words("a.cc", line), line
    for name in ("LICENSE", "core/file.h", "core/README.md", "core/CMakeLists.txt", "docs/gpu.md", "benchmarks/gpu/gpu_check",
                 "tests/full_checks.sh", "cmake/tuttiConfig.cmake.in", "benchmarks/results/a.txt", ".ci/run",
                 "include/tutti/tutti.h", "include/tutti/core/error.h"):
        assert not check_place(name), name
    for name in ("table.txt", "a.md", "a.cc", "tutti.h", "core/notes.txt", "core/a.py", "core/a.md", "docs/a.txt",
                 "tools/other_check", "results/a.txt", "tests/aCMakeLists.txt", ".ci/a.h", "include/a.h"):
        assert len(check_place(name)) == 1 and name in check_place(name)[0], name


def main():
    self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    errors, warnings, num_files = [], [], 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                num_files += 1
                more_errors, more_warnings = check_file(path.relative_to(root).as_posix(),
                                                        path.read_text(encoding="utf-8"))
                errors += more_errors
                warnings += more_warnings
    for path in sorted((root / "tests").rglob("*")):
        if path.suffix in (".cc", ".h", ".py", ".sh") and path.name != pathlib.Path(__file__).name:
            errors += check_folders(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    for folder in LIBRARIES:
        if not (root / folder / "README.md").exists():
            errors.append(f"{folder}/README.md is missing")
    for path in (path for pattern in PROSE for path in sorted(root.glob(pattern))):
        name = path.relative_to(root).as_posix()
        errors += check_prose(name, path.read_text(encoding="utf-8"))
    errors += check_tracked(root)
    for line in [f"warning: {warning}" for warning in warnings] + errors:
        print(line)
    print(f"file style: {num_files} files, {len(warnings)} warnings, {len(errors)} errors")
    return 1 if errors or num_files < 10 else 0


if __name__ == "__main__":
    sys.exit(main())

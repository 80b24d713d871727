#!/usr/bin/env python3
# Checks that #include lines follow the order of folders that the tutti_module(...) lines state.
# SPDX-License-Identifier: Apache-2.0
"""Usage: layering_test.py [ROOT]

Each library folder states its dependencies once, in its CMakeLists.txt: tutti_module(strategy DEPENDS autograd data).
A folder may include the folders it depends on, and their dependencies. Programs (tools, examples, benchmarks,
tests) may include all library folders; no library folder may include them.
include/tutti/strategy/ belongs to strategy/: "tutti/strategy/x.h" is a public header, "strategy/x.h" a private one.
Includes between sub-folders must not form a cycle either. A header that contains only includes is above the headers it
includes, and does not count as a dependency of its folder. Where tutti_module() has FLOORS, each file is on one of
them: a sub-folder, an interface header at the top, or `.` for all other files at the top. A file may include its own
floor and earlier ones.
No two headers of the tree may have the same base name, but headers directly in include/tutti/ may repeat a name.
Each third-party header that is slow to compile may be included by one file only.
"""
import pathlib
import re
import sys
import tempfile
import typing

MODULE = re.compile(r"tutti_module\(\s*(\w+)([^)]*)\)")
NOTHING_BUT_INCLUDES = re.compile(r"(?:\s*(?://[^\n]*|#[^\n]*)\n)+\s*")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
PUBLIC = "include/tutti/"
KEYWORDS = ("DEPENDS", "LIBRARIES", "EXCLUDE", "FLOORS", "VECTORIZED")
PROGRAMS = ("tools", "examples", "benchmarks", "tests")
ONE_FILE_ONLY = ("CLI/", "nlohmann/", "spdlog/", "xxhash.h", "isa-l/", "zlib.h", "utf8proc.h", "png.h", "jpeglib.h")


# Headers of optional libraries may only be included in folders of this name, so that everything
# else builds without them.
FOLDERS_ONLY = {"mpi.h": "mpi"}


class Module(typing.NamedTuple):
    name: str
    depends: set   # names of modules
    floors: tuple  # from the lowest to the highest; empty: not checked


def read_modules(root):
    """Returns {folder: Module}."""
    modules = {}
    for path in sorted(root.glob("*/CMakeLists.txt")) + sorted(root.glob("*/*/CMakeLists.txt")):
        match = MODULE.search(path.read_text(encoding="utf-8"))
        if not match:
            continue
        words, keyword = {}, None
        for word in match.group(2).split():
            if word in KEYWORDS:
                keyword = word
            else:
                words.setdefault(keyword, []).append(word)
        modules[path.parent.relative_to(root).as_posix()] = Module(
            match.group(1), set(words.get("DEPENDS", ())), tuple(words.get("FLOORS", ())))
    return modules


def closure(modules):
    """Returns {name: all names that it may include}, and errors about unknown names and cycles."""
    edges = {module.name: module.depends for module in modules.values()}
    errors, reachable = [], {}

    def visit(name, path):
        if name in path:
            errors.append("cycle of folders: " + " -> ".join(path[path.index(name):] + [name]))
            return set()
        if name not in edges:
            errors.append(f"{path[-1]} depends on '{name}', which no tutti_module() declares")
            return set()
        if name not in reachable:
            found = {name}
            for dependency in sorted(edges[name]):
                found |= visit(dependency, path + [name])
            reachable[name] = found
        return reachable[name]

    for name in sorted(edges):
        visit(name, [])
    return reachable, errors


def files_of(root, folder, suffixes):
    """Returns the paths of the folder's sources and headers, including public headers."""
    places = (root / folder, root / PUBLIC / folder)
    return [path for place in places for path in sorted(place.rglob("*")) if path.suffix in suffixes]


def included_file(root, include):
    """Returns the file of the tree that an include line names, or None."""
    path = root / "include" / include if include.startswith("tutti/") else root / include
    return path if path.is_file() else None


def module_of(path, modules):
    """Returns the name of the innermost module folder that contains the file."""
    folders = [folder for folder in modules if path.removeprefix(PUBLIC).startswith(folder + "/")]
    return modules[max(folders, key=len)].name if folders else None


def check(root):
    modules = read_modules(root)
    reachable, errors = closure(modules)
    users = {}
    for folder in sorted(modules):
        for path in files_of(root, folder, (".h", ".cc")):
            file = path.relative_to(root).as_posix()
            if module_of(file, modules) != modules[folder].name:
                continue  # belongs to a module in a sub-folder
            for include in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if include in FOLDERS_ONLY and path.parent.name != FOLDERS_ONLY[include]:
                    errors.append(f"{file}: {include} may only be included in a folder called {FOLDERS_ONLY[include]}/")
                for header in ONE_FILE_ONLY:
                    if include.startswith(header):
                        users.setdefault(header, set()).add(file)
                errors += check_include(root, file, include, modules, reachable)
                if included_file(root, include) and (path.parent / include).is_file():
                    errors.append(f"{file}: {include} also names a file next to it, which the compiler finds first; rename one of them")
    for header, files in sorted(users.items()):
        if len(files) > 1:
            errors.append(f"{header} is included by {', '.join(sorted(files))}; expected one file")
    return errors, len(modules)


def check_include(root, file, include, modules, reachable):
    name = module_of(file, modules)
    if include.startswith(tuple(program + "/" for program in PROGRAMS)):
        return [f"{file}: a library folder includes {include}"]
    is_public = include.startswith("tutti/")
    target = module_of(include.removeprefix("tutti/"), modules)
    if target is None:
        return [f"{file}: {include} belongs to no folder that a library may include"] if is_public else []
    if included_file(root, include) is None:
        other = include.removeprefix("tutti/") if is_public else "tutti/" + include
        return [f"{file}: {include} does not exist" + (f'; write "{other}"' if included_file(root, other) else "")]
    if target not in reachable.get(name, set()):
        return [f"{file}: {name} includes {include}, but {name} does not depend on {target}"]
    return []


def includes_of(path):
    """Returns the includes of a file, or none for a header that contains only includes."""
    text = path.read_text(encoding="utf-8")
    return [] if path.suffix == ".h" and NOTHING_BUT_INCLUDES.fullmatch(text) else INCLUDE.findall(text)


def floor_of(file, floors):
    """Returns the floor of a file of the folder: the file itself, its innermost sub-folder that is a floor, or "."; else None."""
    parts = file.split("/")
    whole = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((place for place in whole if place in floors), "." if len(parts) == 1 and "." in floors else None)


def check_floors(root, modules):
    errors = []
    for folder, module in sorted(modules.items()):
        for path in files_of(root, folder, (".h", ".cc", ".cu")) if module.floors else ():
            file = path.relative_to(root).as_posix()
            own = floor_of(file.removeprefix(PUBLIC).removeprefix(folder + "/"), module.floors)
            if own is None:
                errors.append(f"{file}: its folder is on no floor; add it to FLOORS in {folder}/CMakeLists.txt")
                continue
            for include in includes_of(path):
                target = include.removeprefix("tutti/")
                if not target.startswith(folder + "/") or not included_file(root, include):
                    continue
                other = floor_of(target.removeprefix(folder + "/"), module.floors)
                if other is not None and module.floors.index(other) > module.floors.index(own):
                    errors.append(f"{file}: includes {include}, which is on floor {other}, above {own}; move what both use "
                                  f"down, or this up (FLOORS in {folder}/CMakeLists.txt)")
    return errors


def folder_edges(root, modules):
    """Returns {(folder, included folder)} for all folders with sources; a header that is a floor counts as itself."""
    alone = {f"{folder}/{floor}" for folder, module in modules.items() for floor in module.floors if floor.endswith(".h")}

    def place_of(file):
        return file if file in alone else pathlib.PurePosixPath(file).parent.as_posix()

    edges = set()
    for top in sorted({folder.split("/")[0] for folder in modules}):
        for path in files_of(root, top, (".h", ".cc", ".cu")):
            place = place_of(path.relative_to(root).as_posix().removeprefix(PUBLIC))
            for include in includes_of(path):
                target = place_of(include.removeprefix("tutti/"))
                if included_file(root, include) and target not in (place, "."):
                    edges.add((place, target))
    return edges


def check_names(root):
    places = {}
    for folder in sorted({*PROGRAMS, "include", *(folder.split("/")[0] for folder in read_modules(root))}):
        for path in sorted((root / folder).rglob("*.h")):
            file = path.relative_to(root).as_posix()
            if "/" in file.removeprefix(PUBLIC):  # not directly in include/tutti/
                places.setdefault(path.name, []).append(file)
    return [f"{' and '.join(files)} have the same base name; rename one of them"
            for _, files in sorted(places.items()) if len(files) > 1]


def find_cycle(edges):
    """Returns a cycle of the edges as a list of folders, or None."""
    order, state = {}, {}
    for folder, target in sorted(edges):
        order.setdefault(folder, []).append(target)

    def visit(folder, path):
        if state.get(folder) == "done":
            return None
        if folder in path:
            return path[path.index(folder):] + [folder]
        for target in order.get(folder, []):
            cycle = visit(target, path + [folder])
            if cycle:
                return cycle
        state[folder] = "done"
        return None

    return next(filter(None, (visit(folder, []) for folder in sorted(order))), None)


def check_folders(root, modules):
    cycle = find_cycle(folder_edges(root, modules))
    return ["cycle of sub-folders: " + " -> ".join(cycle) + "; move what is shared to the lower one"] if cycle else []


def self_test():
    """Tests that the checker detects planted errors."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(path, text):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")

        write("low/CMakeLists.txt", "tutti_module(low)")
        write("mid/CMakeLists.txt", "tutti_module(mid DEPENDS low LIBRARIES z)")
        write("top/CMakeLists.txt", "tutti_module(top DEPENDS mid)")
        for module in ("low", "mid", "top"):
            write(f"include/tutti/{module}/a.h", "")
            write(f"{module}/b.h", "")
        write("top/a.cc", '#include "tutti/low/a.h"\n#include "mid/b.h"\n#include "third/party.h"\n')
        assert check(root)[0] == [], check(root)

        def expect_error(path, text, part):
            write(path, text)
            errors = check(root)[0]
            assert len(errors) == 1 and part in errors[0], errors

        expect_error("top/mid/b.h", "", "finds first")
        (root / "top/mid/b.h").unlink()
        expect_error("include/tutti/low/a.h", '#include "tutti/mid/a.h"\n', "does not depend on mid")
        write("include/tutti/low/a.h", "")
        for include, part in (('"tutti/mid/a.h"', "does not depend on mid"), ('"mid/b.h"', "does not depend on mid"),
                              ('"examples/x.h"', "a library folder includes examples/x.h"), ("<mpi.h>", "a folder called mpi/"),
                              ('"low/a.h"', 'write "tutti/low/a.h"'), ('"tutti/low/b.h"', 'write "low/b.h"')):
            expect_error("low/up.cc", f"#include {include}\n", part)
        write("low/up.cc", "")
        write("low/mpi/down.cc", "#include <mpi.h>\n")
        assert check(root)[0] == [], check(root)
        modules = read_modules(root)
        write("low/mpi/down.cc", '#include "tutti/low/a.h"\n')
        assert check_folders(root, modules) == []
        write("low/mpi/down.h", "")
        write("low/up.cc", '#include "low/mpi/down.h"\n')
        assert "cycle of sub-folders: low -> low/mpi -> low" in check_folders(root, modules)[0]
        write("low/up.cc", "")
        write("low/all.h", '// All of it.\n#pragma once\n\n#include "low/mpi/down.h"\n')
        assert check_folders(root, modules) == []
        write("top/CMakeLists.txt", "tutti_module(top DEPENDS mid FLOORS ground ways.h first . second)")
        write("top/first/a.cc", '#include "tutti/top/ways.h"\n#include "top/ground/a.h"\n')
        for header in ("include/tutti/top/ways.h", "top/ground/a.h", "top/second/a.h"):
            write(header, '#include "mid/b.h"\n')
        write("top/a.cc", '#include "tutti/top/ways.h"\n#include "top/first/a.h"\n')
        modules = read_modules(root)
        assert check_floors(root, modules) == check_folders(root, modules) == [], check_floors(root, modules)
        for lower in ("top/a.cc", "top/first/a.cc", "include/tutti/top/ways.h"):
            text = (root / lower).read_text(encoding="utf-8")
            write(lower, '#include "top/second/a.h"\nint a;\n')
            assert len(check_floors(root, modules)) == 1 and f"{lower}: includes top/second" in check_floors(root, modules)[0]
            write(lower, text)
        write("top/third/a.cc", "")
        assert len(check_floors(root, modules)) == 1 and "on no floor" in check_floors(root, modules)[0]
        for folder in ("mid", "include/tutti"):
            write(f"{folder}/only.h", "")
        assert not any("only.h" in error for error in check_names(root)), check_names(root)
        write("tests/support/only.h", "")
        assert any("mid/only.h and tests/support/only.h" in error for error in check_names(root)), check_names(root)
        write("low/CMakeLists.txt", "tutti_module(low DEPENDS top)")
        assert any("cycle" in error for error in check(root)[0])


def main():
    self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    errors, num_modules = check(root)
    errors += check_folders(root, read_modules(root)) + check_floors(root, read_modules(root)) + check_names(root)
    if num_modules < 5:
        errors.append(f"{root}: found {num_modules} tutti_module() lines; is this the root of the repository?")
    for error in errors:
        print(error)
    print(f"layering: {num_modules} folders, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

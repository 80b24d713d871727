#!/usr/bin/env python3
# Installs tutti into an empty folder, moves the folder, and builds small projects with the moved installation.
# SPDX-License-Identifier: Apache-2.0
"""Usage: install_test.py BUILD_FOLDER [--programs]    --programs: also tests examples, plugins and conformance kits"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from command import run


def build_project(name, prefix, folder):
    """Builds a project of examples/plugins as an external user does."""
    source = pathlib.Path(__file__).resolve().parents[2] / "examples" / "plugins" / name
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder)


def check_moves(prefix, build):
    """Checks that no installed file contains the path of the build, of the sources, or of the first installation."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    source = re.search("^CMAKE_HOME_DIRECTORY:INTERNAL=(.+)$", cache, re.MULTILINE).group(1)
    built_here = re.compile(rb"(?<![\w./-])(" + b"|".join(re.escape(str(path).encode()) for path in (source, build, prefix)) +
                            rb")/[\w./+-]*")
    absolute = re.compile(rb"(?<![\w})./])/(usr|opt|home|tmp|work|var)/[\w./+-]*")
    files = [path for folder in ("bin", "include", "lib", "lib64") for path in (prefix / folder).rglob("*") if path.is_file()]
    assert len(files) > 100, files
    for path in files:
        text = path.read_bytes()
        found = built_here.search(text)
        if not found and path.suffix in (".cmake", ".pc"):
            found = absolute.search(text)
        assert not found, (path, found)


def check_pages(prefix):
    """Checks that links in the installed guides lead to installed files."""
    (readme,) = prefix.rglob("share/doc/*/README.md")
    pages = sorted(readme.parent.rglob("*.md"))
    assert len(pages) > 40, pages
    for page in pages:
        for target in re.findall(r"\]\(([\w./-]+(?:/|\.[a-z]+))[#)]", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page, target)


def check_plugins_need_no_engine(prefix, folder):
    """Checks that a plugin can be built without the libraries that tutti links."""
    source = pathlib.Path(__file__).resolve().parents[2] / "examples" / "plugins" / "tree_sum"
    hidden = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("spdlog", "ISAL", "Utf8Proc", "ZLIB", "PNG", "GRPCCPP", "DNNL2", "MPILIB")]
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", *hidden)
    run("cmake", "--build", folder)


def check_pkg_config(prefix, compiler, folder):
    """Builds the first program of README.md with pkg-config, without CMake."""
    folder.mkdir()
    readme = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    (folder / "line.cc").write_text(re.search(r"^```cpp\n(.*?)^```", readme, re.MULTILINE | re.DOTALL).group(1), encoding="utf-8")
    (description,) = prefix.rglob("tutti.pc")
    os.environ["PKG_CONFIG_PATH"] = str(description.parent)
    assert run("pkg-config", "--modversion", "tutti").strip() == version(prefix)
    flags = run("pkg-config", "--static", "--cflags", "--libs", "tutti").split()
    del os.environ["PKG_CONFIG_PATH"]
    run(compiler, "-std=c++20", folder / "line.cc", "-o", folder / "line", *flags, f"-Wl,-rpath,{description.parents[1]}")
    assert "epoch 9 loss 0.0000" in run(folder / "line")
    warnings = ("-Wall", "-Wextra", "-Wshadow", "-Wpedantic", "-Werror", "-fsyntax-only")
    subjects = sorted(path.name for path in (description.parents[2] / "include" / "tutti").glob("*.h")
                      if path.name != "libtorch.h")  # libtorch_test.py compiles libtorch.h
    (folder / "all.cc").write_text("".join(f'#include "tutti/{name}"\n' for name in subjects), encoding="utf-8")
    run(compiler, "-std=c++20", *warnings, folder / "all.cc", *flags)
    assert "tutti needs C++20" in run(compiler, "-std=c++17", *warnings, folder / "all.cc", *flags, expect=1)


def version(prefix):
    """Returns the version that find_package() reads."""
    (path,) = prefix.rglob("tuttiConfigVersion.cmake")
    return re.search(r'PACKAGE_VERSION "([^"]+)"', path.read_text(encoding="utf-8")).group(1)


def is_there(header, package, what):
    """Returns true if a library that an example needs is installed. Otherwise prints that `what` is skipped."""
    found = any((pathlib.Path(folder) / header).exists() for folder in ("/usr/include", "/usr/local/include"))
    if not found:
        print(f"install: SKIPPED {what}: {header} not found; apt-get install {package}")
    return found


def losses(output):
    found = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", output)]
    assert len(found) > 5, output
    return found


def run_ranks(program, world, store, *flags):
    """Runs one process per rank, which must all succeed. Returns the output of rank 0."""
    ranks = [subprocess.Popen([str(word) for word in (program, "--rank", rank, "--world", world, "--store", store,
                                                      *flags)],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
             for rank in range(world)]
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), outputs
    return outputs[0]


def check_eigen_loop(prefix, folder):
    """Checks a program that uses Eigen's tensors: any number of threads or processes must give the same losses."""
    if not is_there("eigen3/Eigen/Dense", "libeigen3-dev", "examples/plugins/eigen_loop"):
        return
    build_project("eigen_loop", prefix, folder / "eigen_loop")
    program = folder / "eigen_loop" / "eigen_loop"
    alone = losses(run(program, "--threads", 1))
    assert alone[-1] < 0.4 * alone[0], alone

    def check(output):
        assert all(abs(a - b) < 1e-3 for a, b in zip(losses(output), alone)), (output, alone)

    check(run(program, "--threads", 3))
    # Runs twice with one folder: files of the first run must not disturb the second.
    for flags in ([], ["--algorithm", "ring"]):
        check(run_ranks(program, 2, folder / "store", *flags))
    if is_there("gloo/allreduce.h", "libgloo-dev", "examples/plugins/gloo_ops"):
        build_project("gloo_ops", prefix, folder / "gloo_ops")
        plugin = folder / "gloo_ops" / "libgloo_ops.so"
        for _ in range(2):
            check(run_ranks(program, 3, folder / "store", "--plugin", plugin))


def check_examples(prefix, compiler, folder):
    """Checks that the installed examples can be built as a project."""
    source = next(prefix.rglob("examples/linear_regression.cc")).parent
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}")
    run("cmake", "--build", folder, "--target", "linear_regression")
    output = run(folder / "examples" / "linear_regression", "--strategy", "central_storage")
    assert "line       y = 3.0" in output, output


def check_plugin(build, prefix, folder):
    """Builds a plugin and trains with it."""
    build_project("tree_sum", prefix, folder)
    plugin = folder / "libtree_sum.so"
    program = build / "examples" / "linear_regression"
    if not program.exists():
        return
    reports = []
    for flags in (["--plugin", plugin], ["--cross-device-ops", "canonical"]):
        report = folder / "report.json"
        output = run(program, "--devices", "cpu:0-3", "--metrics-json", report, *flags)
        reports.append(json.loads(report.read_text(encoding="utf-8")))
        name = "tree_sum" if "--plugin" in flags else "canonical"
        assert f"reduction {name}" in output, output
    # The plugin declares that it adds along the canonical tree, so the weights must be equal.
    assert reports[0]["weights_hash"] == reports[1]["weights_hash"], reports
    os.environ["TUTTI_PLUGINS"] = str(plugin)
    assert "reduction tree_sum" in run(program, "--cross-device-ops", "tree_sum")
    os.environ["TUTTI_PLUGINS"] = "./nowhere.so"
    missing = run(program, expect=1)
    assert "TUTTI_PLUGINS" in missing and "no such file" in missing, missing
    del os.environ["TUTTI_PLUGINS"]


def check_conformance(prefix, compiler, plugin, folder):
    """Checks the installed conformance kits as tests of a project, and as a program."""
    source = pathlib.Path(__file__).resolve().parent / "conformance"
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}")
    run("cmake", "--build", folder)
    output = run(folder / "plugin_conformance", plugin)
    assert "Conformance_tree_sum.local_values_all_reduce" in output and "FAILED" not in output, output
    output = run(folder / "strategy_conformance")
    assert "[       OK ] Strategy_mirrored.on_write_variables" in output, output
    output = run(prefix / "bin" / "tutti", "conform", "--plugin", plugin, "--sample", "500")
    assert "tree_sum: conforms" in output and "does not support" in output, output


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    source = pathlib.Path(__file__).resolve().parent
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    compiler = next(line.split("=", 1)[1] for line in cache.splitlines()
                    if line.startswith("CMAKE_CXX_COMPILER:"))
    with tempfile.TemporaryDirectory() as folder:
        prefix, user = pathlib.Path(folder) / "moved", pathlib.Path(folder) / "user"
        first = pathlib.Path(folder) / "first"
        run("cmake", "--install", build, "--prefix", first)
        check_moves(first, build)
        first.rename(prefix)
        # No installed header may be a link, because it would lead back to the sources.
        links = [path for path in (prefix / "include").rglob("*") if path.is_symlink()]
        assert not links, links
        configure = ["cmake", "-G", "Ninja", "-S", source, f"-DCMAKE_PREFIX_PATH={prefix}",
                     f"-DCMAKE_CXX_COMPILER={compiler}"]
        run(*configure, "-B", user, "-DCOMPONENTS=strategy;model;core")
        run("cmake", "--build", user)
        for program in ("uses_tutti", "uses_all_of_tutti"):
            output = run(user / program)
            assert "sum 3" in output, output
        wrong = run(*configure, "-B", user / "wrong", "-DCOMPONENTS=strategy;blockchain", expect=1)
        assert "unknown component 'blockchain'" in wrong and "expected one of" in wrong, wrong
        check_pages(prefix)
        check_plugins_need_no_engine(prefix, pathlib.Path(folder) / "without_engines")
        check_pkg_config(prefix, compiler, pathlib.Path(folder) / "pkg_config")
        if "--programs" in sys.argv:
            check_examples(prefix, compiler, pathlib.Path(folder) / "examples")
            check_plugin(build, prefix, pathlib.Path(folder) / "plugin")
            check_eigen_loop(prefix, pathlib.Path(folder))
            check_conformance(prefix, compiler, pathlib.Path(folder) / "plugin" / "libtree_sum.so",
                              pathlib.Path(folder) / "conformance")
        devices = run(prefix / "bin" / "tutti", "devices")
        assert "cpu:0" in devices, devices
        print("install: configured, built and ran against", sorted(os.listdir(prefix)))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# Installs tutti into an empty folder and builds a small project against it.
# SPDX-License-Identifier: Apache-2.0
"""Usage: install_test.py BUILD_FOLDER"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile


def run(*command, expect=0):
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)
    if (result.returncode == 0) != (expect == 0):
        sys.exit(f"exit code {result.returncode}: {' '.join(map(str, command))}\n{result.stdout}")
    return result.stdout


def check_plugin(build, prefix, folder):
    """Builds the plugin of examples/plugins as a stranger would, and trains with it."""
    source = pathlib.Path(__file__).resolve().parents[2] / "examples" / "plugins" / "tree_sum"
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder)
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
    # It says that it adds along the canonical tree, and it does.
    assert reports[0]["weights_hash"] == reports[1]["weights_hash"], reports
    os.environ["TUTTI_PLUGINS"] = str(plugin)
    assert "reduction tree_sum" in run(program, "--cross-device-ops", "tree_sum")
    os.environ["TUTTI_PLUGINS"] = "./nowhere.so"
    missing = run(program, expect=1)
    assert "TUTTI_PLUGINS" in missing and "no such file" in missing, missing
    del os.environ["TUTTI_PLUGINS"]


def check_conformance(prefix, compiler, plugin, folder):
    """The installed kit: as a project's own test, and as a program."""
    source = pathlib.Path(__file__).resolve().parent / "conformance"
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}")
    run("cmake", "--build", folder)
    output = run(folder / "plugin_conformance", plugin)
    assert "Conformance_tree_sum.local_values_all_reduce" in output and "FAILED" not in output, output
    output = run(prefix / "bin" / "tutti", "conform", "--plugin", plugin, "--sample", "500")
    assert "tree_sum: conforms" in output and "does not support" in output, output


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    source = pathlib.Path(__file__).resolve().parent
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    compiler = next(line.split("=", 1)[1] for line in cache.splitlines()
                    if line.startswith("CMAKE_CXX_COMPILER:"))
    with tempfile.TemporaryDirectory() as folder:
        prefix, user = pathlib.Path(folder) / "prefix", pathlib.Path(folder) / "user"
        run("cmake", "--install", build, "--prefix", prefix)
        # Installed headers must not point back into the source tree.
        links = [path for path in prefix.rglob("*") if path.is_symlink()]
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
        check_plugin(build, prefix, pathlib.Path(folder) / "plugin")
        check_conformance(prefix, compiler, pathlib.Path(folder) / "plugin" / "libtree_sum.so",
                          pathlib.Path(folder) / "conformance")
        devices = run(prefix / "bin" / "tutti", "devices")
        assert "cpu:0" in devices, devices
        print("install: configured, built and ran against", sorted(os.listdir(prefix)))


if __name__ == "__main__":
    main()

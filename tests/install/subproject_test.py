#!/usr/bin/env python3
# Configures a project that contains tutti's sources. tutti must not change the project's settings.
# SPDX-License-Identifier: Apache-2.0
"""Usage: subproject_test.py SOURCE_FOLDER CXX_COMPILER [--build]   (--build: also builds and runs its program)"""
import json
import pathlib
import re
import sys
import tempfile

from command import run

SETTING = re.compile(r"^(CMAKE_BUILD_TYPE|TUTTI_\w+):\w+=(.*)$", re.MULTILINE)


def check_settings(build):
    """Checks that tutti adds no build type, no warnings as errors, and no tests, examples or install rules to the project."""
    settings = dict(SETTING.findall((build / "CMakeCache.txt").read_text(encoding="utf-8")))
    assert settings["CMAKE_BUILD_TYPE"] == "", settings
    for name in ("TUTTI_WERROR", "TUTTI_INSTALL", "TUTTI_BUILD_TESTS", "TUTTI_BUILD_EXAMPLES"):
        assert settings[name] == "OFF", settings
    compiled = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    assert any("tutti_strategy" in entry["command"] for entry in compiled), len(compiled)
    for entry in compiled:
        assert "-Werror" not in entry["command"], entry
        assert "/examples/" not in entry["file"], entry
    assert not (build / "include").exists(), "tutti wrote include/ to the project's build folder; expected it to use only its own subfolder"
    rules = "".join(path.read_text(encoding="utf-8") for path in build.rglob("cmake_install.cmake"))
    assert re.findall(r'TYPE (\w+) FILES "([^"]*/)?([^"/]+)"', rules) == [("EXECUTABLE", str(build) + "/", "program")], rules


def main():
    source, compiler = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder).resolve()
        run("cmake", "-G", "Ninja", "-S", pathlib.Path(__file__).resolve().parent / "subproject", "-B", build,
            f"-DTUTTI_SOURCE={source}", f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
        check_settings(build)
        if "--build" in sys.argv[3:]:
            run("cmake", "--build", build)
            assert "sum 3" in run(build / "program")
    print("subproject: tutti changed no setting of the project")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# Checks the recipes for vcpkg and Conan, as far as this is possible without a network.
# SPDX-License-Identifier: Apache-2.0
"""Usage: recipes_test.py SOURCE_FOLDER CXX_COMPILER [--conan PROGRAM]
--conan: also builds the package with this Conan 2 program; all requirements are taken from the system"""
import json
import os
import pathlib
import re
import sys
import tempfile

from command import run

# Minimal versions of the vcpkg functions that tutti's portfile calls. They turn on the features in
# WANTED, and configure the project without building it.
VCPKG = r"""cmake_minimum_required(VERSION 3.22)
set(VCPKG_LIBRARY_LINKAGE static)
function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature option)
    set(value OFF)
    if(feature IN_LIST WANTED)
      set(value ON)
    endif()
    list(APPEND options -D${option}=${value})
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} ${options} PARENT_SCOPE)
endfunction()
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${BUILD} -DCMAKE_CXX_COMPILER=${CXX} ${arg_OPTIONS}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()
foreach(name vcpkg_cmake_install vcpkg_cmake_config_fixup vcpkg_copy_tools vcpkg_fixup_pkgconfig)
  cmake_language(EVAL CODE "function(${name})\nendfunction()")
endforeach()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(SIZE ${arg_FILE_LIST} size)
endfunction()
include(${CURRENT_PORT_DIR}/portfile.cmake)
"""


def version_of(source):
    text = (source / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"project\(tutti VERSION ([\d.]+)", text).group(1)


def check_vcpkg(source, compiler, folder):
    """Checks that the port has the project's version, and that the project knows the port's options, with all features and with none."""
    port = source / "cmake" / "package" / "vcpkg" / "tutti"
    manifest = json.loads((port / "vcpkg.json").read_text(encoding="utf-8"))
    assert manifest["name"] == "tutti" and manifest["version"] == version_of(source), manifest
    assert set(manifest["default-features"]) <= set(manifest["features"]), manifest
    script = folder / "vcpkg.cmake"
    script.write_text(VCPKG, encoding="utf-8")
    for value, wanted in (("ON", list(manifest["features"])), ("OFF", [])):
        build = folder / f"vcpkg-{value}"
        output = run("cmake", f"-DCURRENT_PORT_DIR={port}", f"-DCURRENT_PACKAGES_DIR={folder}", f"-DBUILD={build}",
                     f"-DCXX={compiler}", f"-DWANTED={';'.join(wanted)}", "-P", script)
        assert "not used by the project" not in output, output
        cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
        for feature in manifest["features"]:
            assert re.search(rf"^TUTTI_{feature.upper()}:\w+={value}$", cache, re.MULTILINE), (feature, value)


def check_conan(source, conan, folder):
    """Checks that Conan can build tutti with Debian's libraries, and that a project which requires tutti runs."""
    os.environ["CONAN_HOME"] = str(folder / "conan")
    run(conan, "profile", "detect")
    project = source / "tests" / "install" / "conan"
    options = ("--profile:all", project / "debian_libraries.profile", "--no-remote")
    run(conan, "create", source, *options)
    run(conan, "build", project, *options, "--output-folder", folder / "project")
    program = next(path for path in (folder / "project").rglob("uses_tutti") if path.is_file())
    assert "sum 3" in run(program)


def main():
    source, compiler = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory() as temporary:
        check_vcpkg(source, compiler, pathlib.Path(temporary))
        if len(sys.argv) > 3:
            assert sys.argv[3] == "--conan", sys.argv
            check_conan(source, sys.argv[4], pathlib.Path(temporary))
    print("ok")


if __name__ == "__main__":
    main()

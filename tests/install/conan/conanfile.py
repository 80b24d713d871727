# Separate project that requires tutti through Conan.
# SPDX-License-Identifier: Apache-2.0
from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout


class UsesTutti(ConanFile):
    settings = "os", "compiler", "build_type", "arch"
    requires = "tutti/[*]"
    generators = "CMakeDeps"

    def layout(self):
        cmake_layout(self, src_folder="..")

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

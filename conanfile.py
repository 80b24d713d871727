# Conan 2 recipe: `conan create . --build=missing`. docs/install.md builds with Debian's libraries instead.
# SPDX-License-Identifier: Apache-2.0
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

# Packages that each option of this recipe requires.
OPTIONAL = {
    "grpc": ["grpc/1.54.3", "protobuf/3.21.12", "openssl/[>=3 <4]"],
    "jpeg": ["libjpeg-turbo/[>=3.0 <4]"],
    "mpi": ["openmpi/4.1.0"],
    "onednn": ["onednn/[>=2.6 <4]"],
    "png": ["libpng/[>=1.6 <2]"],
}


class Tutti(ConanFile):
    name = "tutti"
    description = "Distributed training in C++20, modeled on tf.distribute"
    license = "Apache-2.0"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], **{name: [True, False] for name in OPTIONAL}}
    default_options = {"shared": False, **{name: name != "mpi" for name in OPTIONAL}}
    exports_sources = ("CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", ".github/SECURITY.md",
                       "include/*", "autograd/*", "benchmarks/tutti_bench/*", "checkpoint/*",
                       "cluster/*", "cmake/*", "core/*", "cross_device_ops/*", "data/*", "docs/*", "examples/*",
                       "model/*", "optimizer/*", "strategy/*", "tensor/*", "testing/*", "tools/*")

    def set_version(self):
        project = load(self, f"{self.recipe_folder}/CMakeLists.txt")
        self.version = re.search(r"project\(tutti\s+VERSION\s+([\d.]+)", project).group(1)

    def validate(self):
        check_min_cppstd(self, 20)

    def requirements(self):
        for package in ("cli11/[>=2.3 <3]", "isa-l/2.30.0", "nlohmann_json/[>=3.11 <4]", "spdlog/[>=1.10 <2]",
                        "utf8proc/[>=2.5 <3]", "xxhash/[>=0.8 <1]", "zlib/[>=1.2 <2]"):
            self.requires(package)
        for name, packages in OPTIONAL.items():
            for package in packages if self.options.get_safe(name) else []:
                self.requires(package)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        for name in OPTIONAL:
            toolchain.cache_variables[f"TUTTI_{name.upper()}"] = "ON" if self.options.get_safe(name) else "OFF"
        toolchain.cache_variables["TUTTI_SHARED"] = bool(self.options.shared)
        for off in ("TUTTI_BUILD_TESTS", "TUTTI_BUILD_EXAMPLES", "TUTTI_WERROR"):
            toolchain.cache_variables[off] = False
        toolchain.cache_variables["TUTTI_CUDA"] = "OFF"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, f"{self.package_folder}/licenses")

    def package_info(self):
        # The installed tuttiConfig.cmake and tutti.pc list the libraries and their dependencies.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/tutti"]

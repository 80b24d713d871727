# Defines the Debian packages that cpack -G DEB builds in a build folder: tutti (the program, and
# the shared library if the build has one), libtutti-dev, tutti-doc and, from builds with CUDA,
# tutti-cuda.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "The tutti maintainers")
set(CPACK_PACKAGE_CONTACT "The tutti maintainers <tutti@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training in C++20, modeled on tf.distribute")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_COMPONENTS_ALL runtime dev doc)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package/debian_files.cmake)
set(same_version "(= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME tutti)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "openmpi-bin, tutti-cuda")
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "tutti: the command-line program
 Starts jobs of several processes, checks and measures cross-device
 operations, and reads checkpoints.")
if(TUTTI_SHARED)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
endif()

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libtutti-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS "g++, cmake, tutti")
set(CPACK_DEBIAN_DEV_DESCRIPTION "distributed training in C++20: headers and libraries
 For find_package(tutti) and pkg-config.")
if(TUTTI_SHARED)
  set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "tutti ${same_version}")
else()  # packages that tuttiConfig.cmake searches for
  list(REMOVE_ITEM TUTTI_LINKED_PACKAGES openmpi-bin)
  list(JOIN TUTTI_LINKED_PACKAGES ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)
endif()

set(CPACK_DEBIAN_DOC_PACKAGE_NAME tutti-doc)
set(CPACK_DEBIAN_DOC_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DOC_DESCRIPTION "distributed training in C++20: guides and examples
 The examples are a CMake project by themselves.")

if(TUTTI_CUDA_MODULE)  # no Debian package contains CUDA's libraries
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME tutti-cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "tutti ${same_version}, libc6, libgcc-s1, libstdc++6")
  set(CPACK_DEBIAN_CUDA_DESCRIPTION "distributed training in C++20: GPUs
 Needs NVIDIA's driver, CUDA ${CUDAToolkit_VERSION_MAJOR} with cuBLAS, and cuDNN 9, which no
 Debian package contains.")
endif()
include(CPack)

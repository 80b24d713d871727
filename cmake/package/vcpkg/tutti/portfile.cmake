# An overlay port: vcpkg install tutti --overlay-ports=<this repository>/cmake/package/vcpkg. It
# builds the repository that contains it, so that it needs no checksum of an archive.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../.." ABSOLUTE)

vcpkg_check_features(OUT_FEATURE_OPTIONS options
  FEATURES
    grpc TUTTI_GRPC
    jpeg TUTTI_JPEG
    mpi TUTTI_MPI
    onednn TUTTI_ONEDNN
    png TUTTI_PNG)
string(COMPARE EQUAL "${VCPKG_LIBRARY_LINKAGE}" dynamic shared)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${options} -DTUTTI_SHARED=${shared} -DTUTTI_CUDA=OFF -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_EXAMPLES=OFF
          -DTUTTI_WERROR=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/tutti)
vcpkg_copy_tools(TOOL_NAMES tutti AUTO_CLEAN)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")

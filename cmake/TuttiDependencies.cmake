# Third-party libraries: found, never downloaded.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

if(NOT TUTTI_ONEDNN STREQUAL "OFF")
  find_package(DNNL2 2.6)
endif()
if(NOT TUTTI_ZLIB STREQUAL "OFF")
  find_package(ZLIB)
endif()

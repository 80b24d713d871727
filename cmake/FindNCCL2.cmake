# Finds NCCL 2. Result: NCCL2_FOUND, NCCL2_VERSION, target NCCL2::nccl
find_path(NCCL2_INCLUDE_DIR nccl.h
  HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT} ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_ROOT} PATH_SUFFIXES include)
find_library(NCCL2_LIBRARY NAMES nccl libnccl.so.2
  HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT} ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_ROOT} PATH_SUFFIXES lib64 lib)
if(NCCL2_INCLUDE_DIR)
  file(STRINGS "${NCCL2_INCLUDE_DIR}/nccl.h" _v REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(_k MAJOR MINOR PATCH)
    string(REGEX MATCH "NCCL_${_k} +([0-9]+)" _ "${_v}")
    list(APPEND _nccl_ver "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN _nccl_ver "." NCCL2_VERSION)
  unset(_nccl_ver)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL2
  REQUIRED_VARS NCCL2_LIBRARY NCCL2_INCLUDE_DIR VERSION_VAR NCCL2_VERSION)
if(NCCL2_FOUND AND NOT TARGET NCCL2::nccl)
  add_library(NCCL2::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL2::nccl PROPERTIES
    IMPORTED_LOCATION "${NCCL2_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL2_INCLUDE_DIR}")
endif()
mark_as_advanced(NCCL2_LIBRARY NCCL2_INCLUDE_DIR)

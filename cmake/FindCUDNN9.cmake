# Finds cuDNN 9: header and dispatcher library. Result: CUDNN9_FOUND, CUDNN9_VERSION, target CUDNN9::cudnn.
find_path(CUDNN9_INCLUDE_DIR cudnn_version.h
  HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_ROOT}
  PATH_SUFFIXES include include/x86_64-linux-gnu)
find_library(CUDNN9_LIBRARY NAMES cudnn libcudnn.so.9
  HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_ROOT}
  PATH_SUFFIXES lib64 lib lib/x86_64-linux-gnu)
if(CUDNN9_INCLUDE_DIR)
  file(STRINGS "${CUDNN9_INCLUDE_DIR}/cudnn_version.h" _v REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
  foreach(_k MAJOR MINOR PATCHLEVEL)
    string(REGEX MATCH "CUDNN_${_k} +([0-9]+)" _ "${_v}")
    list(APPEND _cudnn_ver "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN _cudnn_ver "." CUDNN9_VERSION)
  unset(_cudnn_ver)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN9
  REQUIRED_VARS CUDNN9_LIBRARY CUDNN9_INCLUDE_DIR VERSION_VAR CUDNN9_VERSION)
if(CUDNN9_FOUND AND NOT TARGET CUDNN9::cudnn)
  add_library(CUDNN9::cudnn UNKNOWN IMPORTED)
  set_target_properties(CUDNN9::cudnn PROPERTIES
    IMPORTED_LOCATION "${CUDNN9_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CUDNN9_INCLUDE_DIR}")
endif()
mark_as_advanced(CUDNN9_LIBRARY CUDNN9_INCLUDE_DIR)

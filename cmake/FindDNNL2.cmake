# Finds oneDNN. Result: DNNL2_FOUND, DNNL2_VERSION, target DNNL2::dnnl. (This module exists because
# Debian's package configuration file of oneDNN fails without OpenCL headers.)
find_path(DNNL2_INCLUDE_DIR dnnl.hpp)
find_library(DNNL2_LIBRARY dnnl)
if(DNNL2_INCLUDE_DIR)
  file(STRINGS "${DNNL2_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" _lines
       REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  set(_parts "")
  foreach(_key MAJOR MINOR PATCH)
    string(REGEX MATCH "DNNL_VERSION_${_key} +([0-9]+)" _ "${_lines}")
    list(APPEND _parts "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN _parts "." DNNL2_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DNNL2 REQUIRED_VARS DNNL2_LIBRARY DNNL2_INCLUDE_DIR
                                  VERSION_VAR DNNL2_VERSION)
if(DNNL2_FOUND AND NOT TARGET DNNL2::dnnl)
  add_library(DNNL2::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL2::dnnl PROPERTIES IMPORTED_LOCATION "${DNNL2_LIBRARY}"
                                               INTERFACE_INCLUDE_DIRECTORIES "${DNNL2_INCLUDE_DIR}")
endif()
mark_as_advanced(DNNL2_LIBRARY DNNL2_INCLUDE_DIR)

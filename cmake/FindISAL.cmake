# Finds ISA-L, Intel's storage acceleration library, which has no package file for CMake. Result:
# ISAL_FOUND, ISAL_VERSION, target ISAL::isal.
find_path(ISAL_INCLUDE_DIR isa-l.h)
find_library(ISAL_LIBRARY isal)
if(ISAL_INCLUDE_DIR)
  file(STRINGS "${ISAL_INCLUDE_DIR}/isa-l.h" _lines REGEX "#define ISAL_(MAJOR|MINOR|PATCH)_VERSION +[0-9]+")
  string(REGEX REPLACE "[^;]*VERSION +([0-9]+)" "\\1" _lines "${_lines}")
  list(JOIN _lines "." ISAL_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ISAL REQUIRED_VARS ISAL_LIBRARY ISAL_INCLUDE_DIR VERSION_VAR ISAL_VERSION)
if(ISAL_FOUND AND NOT TARGET ISAL::isal)
  add_library(ISAL::isal UNKNOWN IMPORTED)
  set_target_properties(ISAL::isal PROPERTIES IMPORTED_LOCATION "${ISAL_LIBRARY}"
                                              INTERFACE_INCLUDE_DIRECTORIES "${ISAL_INCLUDE_DIR}")
endif()
mark_as_advanced(ISAL_LIBRARY ISAL_INCLUDE_DIR)

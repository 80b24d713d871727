# Finds utf8proc, whose Debian package has no package file for CMake. Result: Utf8Proc_FOUND,
# Utf8Proc_VERSION, target Utf8Proc::utf8proc.
find_path(Utf8Proc_INCLUDE_DIR utf8proc.h)
find_library(Utf8Proc_LIBRARY utf8proc)
if(Utf8Proc_INCLUDE_DIR)
  file(STRINGS "${Utf8Proc_INCLUDE_DIR}/utf8proc.h" _lines REGEX "#define UTF8PROC_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^;]*VERSION_[A-Z]+ +([0-9]+)" "\\1" _lines "${_lines}")
  list(JOIN _lines "." Utf8Proc_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Utf8Proc REQUIRED_VARS Utf8Proc_LIBRARY Utf8Proc_INCLUDE_DIR VERSION_VAR Utf8Proc_VERSION)
if(Utf8Proc_FOUND AND NOT TARGET Utf8Proc::utf8proc)
  add_library(Utf8Proc::utf8proc UNKNOWN IMPORTED)
  set_target_properties(Utf8Proc::utf8proc PROPERTIES IMPORTED_LOCATION "${Utf8Proc_LIBRARY}"
                                                      INTERFACE_INCLUDE_DIRECTORIES "${Utf8Proc_INCLUDE_DIR}")
endif()
mark_as_advanced(Utf8Proc_LIBRARY Utf8Proc_INCLUDE_DIR)

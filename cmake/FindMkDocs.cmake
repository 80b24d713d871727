# Finds MkDocs, which builds the documentation's site. Result: MKDOCS_EXECUTABLE, MkDocs_VERSION.
find_program(MKDOCS_EXECUTABLE mkdocs)
if(MKDOCS_EXECUTABLE)
  execute_process(COMMAND ${MKDOCS_EXECUTABLE} --version OUTPUT_VARIABLE MkDocs_VERSION ERROR_QUIET)
  string(REGEX MATCH "[0-9]+\\.[0-9]+[0-9.]*" MkDocs_VERSION "${MkDocs_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(MkDocs REQUIRED_VARS MKDOCS_EXECUTABLE VERSION_VAR MkDocs_VERSION)
mark_as_advanced(MKDOCS_EXECUTABLE)

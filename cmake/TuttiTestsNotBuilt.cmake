# List of tests that a build omits because a library is missing. ./test prints it, so that users do
# not assume that these tests ran. Result: tests-not-built.txt in the build folder, one line per
# reason.
file(WRITE ${CMAKE_BINARY_DIR}/tests-not-built.txt "")

# tutti_tests_not_built("no libpng" data/png_*_test.cc gpu ...) adds folders and files below tests/.
# A script counts as one test.
function(tutti_tests_not_built reason)
  set(count 0)
  foreach(place IN LISTS ARGN)
    file(GLOB sources ${CMAKE_CURRENT_SOURCE_DIR}/${place})
    if(IS_DIRECTORY "${sources}")
      file(GLOB_RECURSE sources ${sources}/*_test.cc)
    endif()
    foreach(source IN LISTS sources)
      set(tests "1 script")
      if(source MATCHES "\\.cc$")
        file(STRINGS ${source} tests REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
      endif()
      list(LENGTH tests own)
      math(EXPR count "${count} + ${own}")
    endforeach()
  endforeach()
  if(count EQUAL 0)
    message(FATAL_ERROR "tutti_tests_not_built(${reason}): expected tests in ${ARGN}, got none")
  endif()
  list(JOIN ARGN ", " places)
  file(APPEND ${CMAKE_BINARY_DIR}/tests-not-built.txt "${count} tests of ${places} (${reason})\n")
endfunction()

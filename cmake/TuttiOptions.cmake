# Options, language level and warning flags of the whole build.
option(TUTTI_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
set(TUTTI_ONEDNN AUTO CACHE STRING "CPU kernels on oneDNN: AUTO, ON or OFF")
set(TUTTI_ZLIB AUTO CACHE STRING "Reading .gz files with zlib: AUTO, ON or OFF")
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# Same bits everywhere: no fused multiply-add unless it is written, no -march=native (docs/determinism.md).
set(TUTTI_COMPILE_OPTIONS -Wall -Wextra -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 gives both falsely for moved std::variant and concatenated std::string.
  list(APPEND TUTTI_COMPILE_OPTIONS -Wno-maybe-uninitialized -Wno-restrict)
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()

# Options, language level and warning flags of the whole build.
option(TUTTI_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_BENCHMARKS "Build the measuring programs of benchmarks/" OFF)
option(TUTTI_BUILD_FUZZERS "Build tests/fuzz for libFuzzer (clang++ only)" OFF)
set(TUTTI_ONEDNN AUTO CACHE STRING "CPU kernels on oneDNN: AUTO, ON or OFF")
set(TUTTI_ZLIB AUTO CACHE STRING "Reading .gz files with zlib: AUTO, ON or OFF")
set(TUTTI_PNG AUTO CACHE STRING "PNG pictures with libpng: AUTO, ON or OFF")
set(TUTTI_JPEG AUTO CACHE STRING "JPEG pictures with libjpeg: AUTO, ON or OFF")
set(TUTTI_CUDA OFF CACHE STRING "GPU backend: this version has none, so ON is refused")
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")

if(TUTTI_CUDA)
  message(FATAL_ERROR "tutti: this version has no CUDA backend; expected TUTTI_CUDA=OFF, got "
                      "TUTTI_CUDA=${TUTTI_CUDA}. Its devices are those of the CPU (cpu:0 to cpu:63).")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endif()

# Same bits everywhere: no fused multiply-add unless it is written, no -march=native
# (docs/determinism.md).
set(TUTTI_COMPILE_OPTIONS -Wall -Wextra -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 gives both falsely for moved std::variant and concatenated std::string.
  list(APPEND TUTTI_COMPILE_OPTIONS -Wno-maybe-uninitialized -Wno-restrict)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND TUTTI_COMPILE_OPTIONS -Wthread-safety)
endif()

if(TUTTI_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "tutti: libFuzzer comes with clang; expected CMAKE_CXX_COMPILER=clang++, "
                        "got ${CMAKE_CXX_COMPILER}")
  endif()
  string(APPEND TUTTI_SANITIZE ",fuzzer-no-link")
  string(REGEX REPLACE "^," "" TUTTI_SANITIZE "${TUTTI_SANITIZE}")
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()

# Conveniences, used when they are there.
find_program(TUTTI_CCACHE ccache)
if(TUTTI_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TUTTI_CCACHE})
endif()
find_program(TUTTI_MOLD mold)
if(TUTTI_MOLD AND PROJECT_IS_TOP_LEVEL)
  add_link_options(-fuse-ld=mold)
endif()
mark_as_advanced(TUTTI_CCACHE TUTTI_MOLD)

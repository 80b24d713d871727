# Options, language standard and warning flags of the whole build.
option(TUTTI_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_LONG_TESTS "With the tests, also build what only ./test --full runs: long tests, programs of docs/, the CUDA module without a GPU" ON)
option(TUTTI_BUILD_BENCHMARKS "Build the benchmarks" OFF)
option(TUTTI_BUILD_FUZZERS "Build tests/fuzz for libFuzzer (clang++ only)" OFF)
option(TUTTI_INSTALL "Create install rules and packages" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_SHARED "Build one shared library instead of one archive per folder" ${BUILD_SHARED_LIBS})
option(TUTTI_UNITY "Compile each folder of a library as one file" ON)
set(TUTTI_ONEDNN AUTO CACHE STRING "CPU kernels on oneDNN: AUTO, ON or OFF")
set(TUTTI_PNG AUTO CACHE STRING "PNG images with libpng: AUTO, ON or OFF")
set(TUTTI_JPEG AUTO CACHE STRING "JPEG images with libjpeg: AUTO, ON or OFF")
set(TUTTI_GRPC AUTO CACHE STRING "Calls between processes with gRPC: AUTO, ON or OFF")
set(TUTTI_CUDA AUTO CACHE STRING "GPUs with CUDA, cuDNN, cuBLAS and NCCL: AUTO, ON or OFF")
set(TUTTI_MPI AUTO CACHE STRING "Collectives and messages with MPI: AUTO, ON or OFF")
option(TUTTI_XLA "TpuStrategy: steps as XLA programs, run by a PJRT plugin that is found at run time" ON)
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
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

# For bit-identical results on all machines: no fused multiply-add unless the source contains it,
# and no -march=native (docs/determinism.md).
set(TUTTI_COMPILE_OPTIONS -Wall -Wextra -ffp-contract=off)
if(TUTTI_WERROR)
  list(INSERT TUTTI_COMPILE_OPTIONS 2 -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 issues both warnings falsely, for moved std::variant and concatenated std::string.
  list(APPEND TUTTI_COMPILE_OPTIONS -Wno-maybe-uninitialized -Wno-restrict)
  # -Wsubobject-linkage warns about anonymous namespaces in included files, but TUTTI_UNITY includes
  # sources, where they are intended.
  list(APPEND TUTTI_COMPILE_OPTIONS -Wno-subobject-linkage)
  # The compiler collects garbage less often, which saves a tenth of its time and costs at most 600
  # MB.
  list(APPEND TUTTI_COMPILE_OPTIONS $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=600000>)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND TUTTI_COMPILE_OPTIONS -Wthread-safety)
endif()

if(TUTTI_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "tutti: libFuzzer requires clang; expected CMAKE_CXX_COMPILER=clang++, "
                        "got ${CMAKE_CXX_COMPILER}")
  endif()
  string(APPEND TUTTI_SANITIZE ",fuzzer-no-link")
  string(REGEX REPLACE "^," "" TUTTI_SANITIZE "${TUTTI_SANITIZE}")
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()

# Optional tools, used if they are found.
find_program(TUTTI_CCACHE ccache)
if(TUTTI_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TUTTI_CCACHE})
endif()
mark_as_advanced(TUTTI_CCACHE)

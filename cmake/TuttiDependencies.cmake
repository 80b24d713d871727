# Finds third-party libraries, which are never downloaded. tutti_dependency() looks for a library
# and records it for the table at the end of configuration (TuttiSummary). If a required library is
# missing, configuration ends with the command that installs it.

# tutti_dependency(NAME oneDNN PACKAGE DNNL2 VERSION 2.6 APT libdnnl-dev GIVES "fast CPU kernels" MODE AUTO)
#   MODE: REQUIRED; AUTO (used if found); ON (must be found); OFF (not searched for).
#   LINKED: programs also link it, so Debian's libtutti-dev depends on the packages in APT. HEADER:
#   a header to search for if the library has no package file.
macro(tutti_dependency)
  cmake_parse_arguments(dep "LINKED" "NAME;PACKAGE;VERSION;HEADER;APT;GIVES;MODE" "" ${ARGN})
  set(dep_found FALSE)
  set(dep_version "")
  if(NOT dep_MODE STREQUAL "OFF" AND dep_HEADER)
    find_path(${dep_PACKAGE}_INCLUDE_DIR ${dep_HEADER})
    set(dep_found ${${dep_PACKAGE}_INCLUDE_DIR})
    set(dep_version "headers")
  elseif(NOT dep_MODE STREQUAL "OFF")
    find_package(${dep_PACKAGE} ${dep_VERSION} QUIET)
    set(dep_found ${${dep_PACKAGE}_FOUND})
    set(dep_version "${${dep_PACKAGE}_VERSION}")
    if(NOT dep_version)
      set(dep_version "${${dep_PACKAGE}_VERSION_STRING}${${dep_PACKAGE}_CXX_VERSION}")  # FindZLIB before CMake 3.26; FindMPI
    endif()
  endif()
  if(dep_found AND dep_LINKED)
    string(REPLACE " " ";" dep_APT_LIST "${dep_APT}")
    list(APPEND TUTTI_LINKED_PACKAGES ${dep_APT_LIST})
  endif()
  if(dep_found)
    set(dep_state "${dep_version}")
    if(NOT dep_state)
      set(dep_state "found")
    endif()
  elseif(dep_MODE STREQUAL "OFF")
    set(dep_state "off")
  elseif(dep_MODE STREQUAL "AUTO")
    set(dep_state "not found")
  else()
    set(dep_state "MISSING")
    list(APPEND TUTTI_MISSING_PACKAGES ${dep_APT})
    list(APPEND TUTTI_MISSING_NAMES ${dep_NAME})
  endif()
  list(APPEND TUTTI_DEPENDENCY_ROWS "${dep_NAME}|${dep_state}|${dep_GIVES}|${dep_APT}")
endmacro()

set(TUTTI_MISSING_PACKAGES "")
set(TUTTI_MISSING_NAMES "")
set(TUTTI_LINKED_PACKAGES "")
set(TUTTI_DEPENDENCY_ROWS "")
find_package(Threads REQUIRED)
tutti_dependency(NAME spdlog PACKAGE spdlog APT libspdlog-dev GIVES "the log" MODE REQUIRED LINKED)
tutti_dependency(NAME nlohmann-json PACKAGE nlohmann_json APT nlohmann-json3-dev GIVES "JSON" MODE REQUIRED)
tutti_dependency(NAME CLI11 PACKAGE CLI11 APT libcli11-dev GIVES "command-line flags" MODE REQUIRED)
tutti_dependency(NAME xxHash PACKAGE XXHASH HEADER xxhash.h APT libxxhash-dev
                 GIVES "hashes of weights and files" MODE REQUIRED)
tutti_dependency(NAME ISA-L PACKAGE ISAL APT libisal-dev GIVES "checksums of messages and records" MODE REQUIRED LINKED)
tutti_dependency(NAME zlib PACKAGE ZLIB APT zlib1g-dev GIVES "compressed data files" MODE REQUIRED LINKED)
tutti_dependency(NAME utf8proc PACKAGE Utf8Proc VERSION 2.5 APT libutf8proc-dev GIVES "Unicode in tokenizers" MODE REQUIRED LINKED)
tutti_dependency(NAME oneDNN PACKAGE DNNL2 VERSION 2.6 APT libdnnl-dev
                 GIVES "fast CPU kernels (without: the slow reference kernels)" MODE ${TUTTI_ONEDNN} LINKED)
tutti_dependency(NAME PNG PACKAGE PNG APT libpng-dev GIVES "PNG images" MODE ${TUTTI_PNG} LINKED)
tutti_dependency(NAME JPEG PACKAGE JPEG APT libjpeg-dev GIVES "JPEG images" MODE ${TUTTI_JPEG} LINKED)
tutti_dependency(NAME gRPC PACKAGE GRPCCPP VERSION 1.30 APT "libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev libssl-dev"
                 GIVES "jobs of several processes without mpirun" MODE ${TUTTI_GRPC} LINKED)
set(MPI_CXX_SKIP_MPICXX ON)  # omits MPI's C++ classes, which MPI 3 removed and which compile slowly
tutti_dependency(NAME MPI PACKAGE MPI VERSION 3.0 APT "libopenmpi-dev openmpi-bin" GIVES "collectives and messages with MPI"
                 MODE ${TUTTI_MPI} LINKED)
tutti_dependency(NAME Doxygen PACKAGE Doxygen VERSION 1.9 APT doxygen GIVES "the reference, with MkDocs: target reference"
                 MODE AUTO)
tutti_dependency(NAME MkDocs PACKAGE MkDocs APT "mkdocs mkdocs-material" GIVES "pages and search of the reference" MODE AUTO)
if(TUTTI_BUILD_TESTS)
  tutti_dependency(NAME GoogleTest PACKAGE GTest APT "libgtest-dev libgmock-dev" GIVES "the tests"
                   MODE REQUIRED)
  tutti_dependency(NAME Python PACKAGE Python3 VERSION 3.8 APT python3 GIVES "tests in Python" MODE REQUIRED)
endif()

if(TUTTI_MISSING_NAMES)
  string(REPLACE ";" ", " names "${TUTTI_MISSING_NAMES}")
  string(REPLACE ";" " " packages "${TUTTI_MISSING_PACKAGES}")
  message(FATAL_ERROR "tutti: needs libraries that were not found: ${names}\n"
                      "Install them:  apt-get install ${packages}\n"
                      "(or pass -D<name>_DIR / -DCMAKE_PREFIX_PATH if they are installed elsewhere)")
endif()

# One library per folder. tutti_module(strategy DEPENDS autograd data) declares a folder's
# dependencies; tests/layering_test.py reads the same lines and compares them with the #include
# lines. Only this test uses FLOORS, the order of a folder's subfolders, the lowest first.
#
# Public headers are in include/tutti/<folder>/ and are included as "tutti/strategy/strategy.h",
# both in the source tree and after installation. The folders in the root contain sources and
# private headers, which are included as "strategy/x.h".
set(TUTTI_INCLUDE_DIR ${PROJECT_SOURCE_DIR}/include)
# Messages of installed libraries name files as "strategy/strategy.cc" and
# "tutti/strategy/strategy.h", wherever the libraries were built. The compiler applies the last
# option that matches.
set(TUTTI_PATH_OPTIONS -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/= -fmacro-prefix-map=${TUTTI_INCLUDE_DIR}/=)

# With TUTTI_UNITY, the sources of each folder are compiled as one file, and those of each subfolder
# as another one. Therefore, the set of names that must not collide does not depend on the number of
# sources, and a program links only the subfolders that it uses. Names in anonymous namespaces must
# be unique within a folder. Sources with separate options are compiled alone.
function(tutti_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TUTTI_UNITY} UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    file(RELATIVE_PATH group ${PROJECT_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER "${group}" group)
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${group})
  endforeach()
endfunction()

# Loops over elements of tensors are in VECTORIZED modules, and in a few sources of other modules,
# which tutti_vectorized() names. The remaining sources contain control logic; with -O1 they compile
# in two thirds of the time that -O3 takes.
set(TUTTI_CONTROL_OPTIONS $<$<CONFIG:Release>:-O1>)

# Declares sources of this folder whose loops over elements rely on the compiler's vectorizer.
function(tutti_vectorized)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O3>)
endfunction()

function(tutti_module name)
  cmake_parse_arguments(arg "VECTORIZED" "" "DEPENDS;LIBRARIES;EXCLUDE;FLOORS" ${ARGN})
  if(NOT TUTTI_XLA)  # folders that use xla also build without it
    list(REMOVE_ITEM arg_DEPENDS xla)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  foreach(pattern IN LISTS arg_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${CMAKE_CURRENT_SOURCE_DIR}/${pattern})
  endforeach()
  if(NOT sources)  # a folder of headers alone
    set(sources ${PROJECT_BINARY_DIR}/empty_${name}.cc)
    file(WRITE ${sources} "")
  endif()
  add_library(tutti_${name} STATIC ${sources})
  tutti_unity(tutti_${name})
  target_compile_options(tutti_${name} PRIVATE ${TUTTI_COMPILE_OPTIONS} ${TUTTI_PATH_OPTIONS})
  if(NOT arg_VECTORIZED)
    target_compile_options(tutti_${name} PRIVATE ${TUTTI_CONTROL_OPTIONS})
  endif()
  target_compile_features(tutti_${name} PUBLIC cxx_std_20)
  target_link_libraries(tutti_${name} PRIVATE ${arg_LIBRARIES})
  if(TUTTI_SHARED)  # the folder is part of libtutti.so, which programs link under the folder's name
    add_library(tutti_shared_${name} INTERFACE)
    target_link_libraries(tutti_shared_${name} INTERFACE tutti_tutti)
    add_library(tutti::${name} ALIAS tutti_shared_${name})
    set_target_properties(tutti_shared_${name} PROPERTIES EXPORT_NAME ${name})
  else()
    add_library(tutti::${name} ALIAS tutti_${name})
    set_target_properties(tutti_${name} PROPERTIES EXPORT_NAME ${name})
  endif()
  target_include_directories(tutti_${name} PUBLIC $<BUILD_INTERFACE:${TUTTI_INCLUDE_DIR}> $<INSTALL_INTERFACE:include>
                                           PRIVATE ${PROJECT_SOURCE_DIR})
  foreach(dependency IN LISTS arg_DEPENDS)
    target_link_libraries(tutti_${name} PUBLIC tutti_${dependency})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY TUTTI_MODULES ${name})
endfunction()

# Makes MPI's header available to the sources of a folder, and to no other sources.
function(tutti_use_mpi folder)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc)
  set(options -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX)
  foreach(include_folder IN LISTS MPI_CXX_INCLUDE_DIRS)
    list(APPEND options -isystem${include_folder})
  endforeach()
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${options}")
endfunction()

# Links libtutti.so from the objects of all folders. It exports only names of namespace tutti:
# generated messages and templates of the standard library remain internal.
function(tutti_shared_library)
  list(REMOVE_ITEM modules plugin)
  list(TRANSFORM modules REPLACE "(.+)" "$<TARGET_OBJECTS:tutti_\\1>" OUTPUT_VARIABLE objects)
  add_library(tutti_tutti SHARED ${objects})
  foreach(module IN LISTS modules)  # for the libraries that the folders link
    target_link_libraries(tutti_tutti PRIVATE tutti_${module})
  endforeach()
  target_compile_features(tutti_tutti INTERFACE cxx_std_20)
  target_include_directories(tutti_tutti INTERFACE $<BUILD_INTERFACE:${TUTTI_INCLUDE_DIR}> $<INSTALL_INTERFACE:include>)
  set(names ${PROJECT_SOURCE_DIR}/cmake/package/libtutti.map)
  target_link_options(tutti_tutti PRIVATE LINKER:--version-script=${names} LINKER:-z,defs)
  # Before 1.0, a new minor version may change the binary interface.
  set_target_properties(tutti_tutti PROPERTIES OUTPUT_NAME tutti LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
    LINK_DEPENDS ${names} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()

# Defines tutti::tutti, which links everything that a program needs.
function(tutti_umbrella)
  get_property(modules GLOBAL PROPERTY TUTTI_MODULES)
  if(TUTTI_SHARED)
    tutti_shared_library()
  else()
    add_library(tutti_tutti INTERFACE)
    foreach(module IN LISTS modules)
      target_link_libraries(tutti_tutti INTERFACE tutti_${module})
    endforeach()
  endif()
  add_library(tutti::tutti ALIAS tutti_tutti)
  set_target_properties(tutti_tutti PROPERTIES EXPORT_NAME tutti)
endfunction()

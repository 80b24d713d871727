# Finds the CUDA toolkit, cuDNN, cuBLAS and NCCL. They are never downloaded, and programs without
# GPUs never need them. Result: TUTTI_CUDA_FOUND (headers and libraries were found, so the tests can
# simulate GPUs) and TUTTI_CUDA_MODULE (the module tensor/cuda is built; it is the only target that
# links CUDA's libraries). With sanitizers, and in test builds without TUTTI_LONG_TESTS, only
# TUTTI_CUDA_FOUND is set.
set(TUTTI_CUDA_FOUND FALSE)
set(TUTTI_CUDA_MODULE FALSE)
set(cuda_state "off")
set(cuda_advice "-DCUDAToolkit_ROOT, -DCUDNN_ROOT and -DNCCL_ROOT: folders of CUDA 12 or later, cuDNN 9 and NCCL 2")
if(NOT TUTTI_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit 12 QUIET)
  find_package(CUDNN9 9 QUIET)
  find_package(NCCL2 2.18 QUIET)
  if(CUDAToolkit_FOUND AND CUDNN9_FOUND AND NCCL2_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    set(TUTTI_CUDA_FOUND TRUE)
    set(cuda_state "${CUDAToolkit_VERSION}")
  else()
    set(cuda_state "not found")
    if(TUTTI_CUDA STREQUAL "ON")
      message(FATAL_ERROR "tutti: TUTTI_CUDA=ON, but not all of it was found: CUDA toolkit ${CUDAToolkit_VERSION}, "
                          "cuDNN ${CUDNN9_VERSION}, NCCL ${NCCL2_VERSION}; set ${cuda_advice}")
    endif()
  endif()
endif()
list(APPEND TUTTI_DEPENDENCY_ROWS "CUDA|${cuda_state}|GPUs, by a module that is opened if there is a driver|")

if(TUTTI_CUDA_FOUND AND NOT TUTTI_SANITIZE
    AND (TUTTI_LONG_TESTS OR NOT TUTTI_BUILD_TESTS OR TUTTI_CUDA STREQUAL "ON"))
  set(TUTTI_CUDA_MODULE TRUE)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)  # this machine may have no GPU
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;90-virtual")
  endif()
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  if(TUTTI_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TUTTI_CCACHE})
  endif()
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know nvcc's option for C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(TUTTI_CUDA_COMPILE_OPTIONS --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wno-maybe-uninitialized
                                 --diag-suppress=20012)
endif()
if(NOT TUTTI_CUDA_MODULE)  # else programs would open the module of an earlier configuration
  file(REMOVE ${CMAKE_BINARY_DIR}/lib/libtutti_cuda.so)
endif()

# Host and module must agree on every type that they exchange (tensor/device_backend.h), so both
# contain this build id.
set(build_id_inputs tensor/device_backend.h include/tutti/tensor/op.h include/tutti/tensor/reduce_op.h include/tutti/tensor/dtype.h include/tutti/tensor/shape.h include/tutti/core/error.h)
set(build_id_text "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${TUTTI_SANITIZE}")
foreach(header IN LISTS build_id_inputs)
  file(SHA256 ${PROJECT_SOURCE_DIR}/${header} header_hash)
  string(APPEND build_id_text " ${header_hash}")
endforeach()
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${build_id_inputs})
string(SHA256 build_id_hash "${build_id_text}")
string(SUBSTRING ${build_id_hash} 0 12 build_id_hash)
set(TUTTI_BACKEND_BUILD_ID "${PROJECT_VERSION}-${build_id_hash}")

# Libraries that the module needs at run time. If the module cannot be opened, each of them is
# checked.
set(TUTTI_CUDA_LIBRARIES "")
set(TUTTI_CUDA_LIBRARY_FOLDERS "")
if(TUTTI_CUDA_FOUND)
  set(cuda_major ${CUDAToolkit_VERSION_MAJOR})
  set(TUTTI_CUDA_LIBRARIES
      libcudart.so.${cuda_major} libcublasLt.so.${cuda_major} libcudnn.so.9)
  set(TUTTI_CUDA_LIBRARY_FOLDERS ${CUDAToolkit_LIBRARY_DIR})
  foreach(library IN ITEMS ${CUDNN9_LIBRARY} ${NCCL2_LIBRARY})  # in PyTorch's wheels, each library has its own folder
    get_filename_component(folder ${library} DIRECTORY)
    list(APPEND TUTTI_CUDA_LIBRARY_FOLDERS ${folder})
  endforeach()
  list(REMOVE_DUPLICATES TUTTI_CUDA_LIBRARY_FOLDERS)
endif()

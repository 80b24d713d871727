# Finds gRPC for C++, protobuf, protoc and gRPC's plugin for protoc. Result: GRPCCPP_FOUND,
# GRPCCPP_VERSION, targets gRPC::grpc++, gRPC::grpc_cpp_plugin, protobuf::libprotobuf,
# protobuf::protoc, OpenSSL::Crypto. (This module exists because gRPC's own package file fails if
# its plugin for protoc is not installed.)
find_program(GRPCCPP_PLUGIN grpc_cpp_plugin)
find_program(GRPCCPP_PROTOC protoc)
set(GRPCCPP_VERSION "")
if(GRPCCPP_PLUGIN AND GRPCCPP_PROTOC)
  find_package(Protobuf 3.12 QUIET)
  find_package(gRPC CONFIG QUIET)
  find_package(OpenSSL 3 QUIET)
  if(Protobuf_FOUND AND gRPC_FOUND AND OPENSSL_FOUND)
    set(GRPCCPP_VERSION ${gRPC_VERSION})
  endif()
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(GRPCCPP REQUIRED_VARS GRPCCPP_PLUGIN GRPCCPP_PROTOC GRPCCPP_VERSION
                                  VERSION_VAR GRPCCPP_VERSION)
mark_as_advanced(GRPCCPP_PLUGIN GRPCCPP_PROTOC)

// What takes the place of calls in builds without gRPC: a clear error.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/cluster/rpc/rpc_server.h"

namespace tutti {
namespace {

[[noreturn]] void fail_without_grpc() {
  fail(ErrorCode::kUnimplemented,
       "rpc: this build has no gRPC, so calls stay in the process; build with libgrpc++-dev and "
       "protobuf-compiler-grpc for more");
}

}  // namespace

std::unique_ptr<RpcClient> RpcClient::connect(const std::string&, RpcMethod,
                                              const RpcClientOptions&) {
  fail_without_grpc();
}

std::unique_ptr<RpcServer> RpcServer::start(const RpcServerOptions&, RpcHandlers) {
  fail_without_grpc();
}

}  // namespace tutti

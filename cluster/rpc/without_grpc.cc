// What takes the place of grpc/ in builds without gRPC: a clear error.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/rpc_wires.h"

namespace tutti::internal {
namespace {

[[noreturn]] void fail_without_grpc() {
  fail(ErrorCode::kUnimplemented,
       "rpc: this build has no gRPC, so calls stay in the process; build with libgrpc++-dev and "
       "protobuf-compiler-grpc for more");
}

}  // namespace

RpcAttempt connect_rpc_grpc(const RpcConnectParameters&) { fail_without_grpc(); }

std::unique_ptr<RpcServer> start_rpc_grpc(const RpcServerOptions&, RpcHandler&) {
  fail_without_grpc();
}

}  // namespace tutti::internal

// The wire "tcp" is not in this build.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/rpc_wires.h"

namespace tutti::internal {

RpcAttempt connect_rpc_tcp(const RpcConnectParameters&) {
  fail(ErrorCode::kUnimplemented, "rpc: this build has no wire tcp; use inproc://");
}

std::unique_ptr<RpcServer> start_rpc_tcp(const RpcServerOptions&, RpcHandler&) {
  fail(ErrorCode::kUnimplemented, "rpc: this build has no wire tcp; use inproc");
}

}  // namespace tutti::internal

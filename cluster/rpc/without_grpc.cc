// What takes the place of a job's server, its members and calls in builds without gRPC: an error.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/control_client.h"
#include "tutti/cluster/control/control_server.h"
#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/cluster/rpc/rpc_server.h"

namespace tutti {
namespace {

[[noreturn]] void fail_without_grpc(std::string_view what) {
  fail(ErrorCode::kUnimplemented, what,
       "; build with libgrpc++-dev and protobuf-compiler-grpc for more");
}
[[noreturn]] void fail_control() {
  fail_without_grpc("control: this build has no gRPC, so it has one process, or those of mpirun");
}
[[noreturn]] void fail_rpc() {
  fail_without_grpc("rpc: this build has no gRPC, so calls stay in the process");
}

}  // namespace

bool control_has_grpc() { return false; }

std::unique_ptr<ControlServer> ControlServer::start(const ControlServerOptions&) { fail_control(); }

std::unique_ptr<ControlClient> connect_control(const std::string&, const MemberTask&,
                                               const ControlOptions&) {
  fail_control();
}

std::unique_ptr<RpcClient> RpcClient::connect(const std::string&, RpcMethod,
                                              const RpcClientOptions&) {
  fail_rpc();
}

std::unique_ptr<RpcServer> RpcServer::start(const RpcServerOptions&, RpcHandlers) { fail_rpc(); }

}  // namespace tutti

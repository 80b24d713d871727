// What takes the place of grpc/ in builds without gRPC: a clear error.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/wires.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

[[noreturn]] void fail_without_grpc() {
  fail(
      ErrorCode::kUnimplemented,
      "control: this build has no gRPC; use tcp:// (the wire tcp), or build with libgrpc++-dev and "
      "protobuf-compiler-grpc");
}

}  // namespace

bool control_has_grpc() { return false; }

namespace internal {

Attempt connect_grpc(const ConnectParameters&) { fail_without_grpc(); }

std::unique_ptr<ControlServer> start_grpc_server(const ControlServerOptions&, const Endpoint&) {
  fail_without_grpc();
}

}  // namespace internal
}  // namespace tutti

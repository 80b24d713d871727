// What takes the place of the service Job in builds without gRPC: a clear error.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/control_client.h"
#include "tutti/cluster/control/control_server.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

[[noreturn]] void fail_without_grpc() {
  fail(ErrorCode::kUnimplemented,
       "control: this build has no gRPC, so it has one process, or those of mpirun; build with "
       "libgrpc++-dev and protobuf-compiler-grpc for more");
}

}  // namespace

bool control_has_grpc() { return false; }

std::unique_ptr<ControlServer> ControlServer::start(const ControlServerOptions&) {
  fail_without_grpc();
}

std::unique_ptr<ControlClient> connect_control(const std::string&, const MemberTask&,
                                               const ControlOptions&) {
  fail_without_grpc();
}

}  // namespace tutti

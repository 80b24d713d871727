// What takes the place of a job's server and its members in builds without gRPC: an error.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/control_client.h"
#include "cluster/control/control_server.h"

namespace tutti {
namespace {

[[noreturn]] void fail_control() {
  fail(ErrorCode::kUnimplemented,
       "control: this build has no gRPC, so it has one process, or those of mpirun; build with "
       "libgrpc++-dev and protobuf-compiler-grpc for more");
}

}  // namespace

bool control_has_grpc() { return false; }

std::unique_ptr<ControlServer> ControlServer::start(const ControlServerOptions&) { fail_control(); }

std::unique_ptr<ControlClient> connect_control(const std::string&, const MemberTask&,
                                               const ControlOptions&) {
  fail_control();
}

}  // namespace tutti

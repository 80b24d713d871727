// Stubs for builds without gRPC: creating a control server, a member or connections between ranks
// throws.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/control_client.h"
#include "cluster/control/control_server.h"
#include "cluster/net/connect_all.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

[[noreturn]] void fail_control() {
  fail(ErrorCode::kUnimplemented,
       "control: this build has no gRPC, so processes connect only under mpirun; for other jobs, "
       "build with libgrpc++-dev and protobuf-compiler-grpc");
}

}  // namespace

bool control_has_grpc() { return false; }

std::unique_ptr<ControlServer> ControlServer::start(const ControlServerOptions&) { fail_control(); }

std::unique_ptr<ControlClient> connect_control(const std::string&, const MemberTask&,
                                               const ControlOptions&) {
  fail_control();
}

}  // namespace tutti

namespace tutti::internal {

std::vector<ConnectedPeer> connect_all(int, int, KeyValueStore&, const ConnectOptions& options,
                                       const FileDescriptor&) {
  fail(ErrorCode::kUnimplemented, name_of(options.way),
       ": this build has no gRPC, so processes connect only under mpirun; for other jobs, build "
       "with libgrpc++-dev and protobuf-compiler-grpc");
}

}  // namespace tutti::internal

// Names of wires, and starting a server on one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/rpc_server.h"

#include "tutti/cluster/address.h"
#include "tutti/cluster/rpc/rpc_wires.h"
#include "tutti/cluster/tcp/stream.h"

namespace tutti {
namespace {

void check(const RpcServerOptions& options) {
  if (options.bytes_per_client > 0 && options.longest_payload > 0) return;
  fail(ErrorCode::kInvalidArgument,
       "RpcServer: expected bytes_per_client and longest_payload above 0");
}

void check_address(const RpcServerOptions& options) {
  const auto endpoint = internal::parse_listen_address(options.address);
  if (!endpoint) {
    fail(ErrorCode::kInvalidArgument, "RpcServer: the address '", options.address,
         "'; expected host:port, for example 127.0.0.1:4711 (port 0 takes a free one)");
  }
  check_exposure("RpcServer", endpoint->host,
                 {.has_secret = options.secret.is_set(),
                  .has_tls = options.tls.is_set(),
                  .allow_insecure_network = options.allow_insecure_network});
}

}  // namespace

std::string_view to_string(RpcWire wire) {
  switch (wire) {
    case RpcWire::kGrpc:
      return "grpc";
    case RpcWire::kInProcess:
      return "inproc";
  }
  return "unknown";
}

RpcWire parse_rpc_wire(std::string_view text) {
  for (const RpcWire wire : {RpcWire::kGrpc, RpcWire::kInProcess}) {
    if (text == to_string(wire)) return wire;
  }
  fail(ErrorCode::kInvalidArgument, "rpc: the wire '", text, "'; expected grpc or inproc");
}

std::string RpcPeer::to_string() const {
  return address.empty() ? task.to_string() : concat(task, " (", address, ")");
}

std::unique_ptr<RpcServer> RpcServer::start(const RpcServerOptions& options, RpcHandler& handler) {
  check(options);
  if (options.wire == RpcWire::kInProcess) return internal::start_rpc_in_process(options, handler);
  check_address(options);
  return internal::start_rpc_grpc(options, handler);
}

namespace internal {

PeerHello server_hello(const RpcServerOptions& options) {
  PeerHello hello = make_hello(ConnectionPurpose::kRpc, options.self.job, options.self.index);
  hello.job_id = options.job_id;
  hello.incarnation = options.incarnation;
  return hello;
}

std::string other_server(const MemberTask& expected, const PeerHello& met) {
  if (expected.job.empty()) return "";  // whoever it is
  if (met.job == expected.job && met.index == expected.index) return "";
  return concat(met.job, " ", met.index, " answers there, expected ", expected,
                "; check the addresses of the cluster");
}

void take_welcome(RpcAttempt& attempt, RpcFrame frame) {
  if (frame.kind != RpcFrame::Kind::kWelcome || frame.numbers.size() != 1) {
    fail(ErrorCode::kDataLoss, "rpc: expected a welcome, got another frame");
  }
  attempt.welcome = std::move(frame);
}

RpcPeer peer_of(const PeerHello& hello, std::string address) {
  RpcPeer peer;
  peer.task = {hello.job, hello.index, address};
  peer.incarnation = hello.incarnation;
  peer.address = std::move(address);
  return peer;
}

RpcTarget parse_rpc_target(const std::string& text) {
  const std::size_t colon = text.find("://");
  if (colon != std::string::npos) {
    RpcTarget target;
    target.address = text.substr(colon + 3);
    const std::string wire = text.substr(0, colon);
    const bool is_wire = wire == "grpc" || wire == "inproc";
    if (is_wire) target.wire = parse_rpc_wire(wire);
    const bool is_sound = target.wire == RpcWire::kInProcess
                              ? !target.address.empty()
                              : parse_endpoint(target.address).has_value();
    if (is_wire && is_sound) return target;
  }
  fail(ErrorCode::kInvalidArgument, "rpc: the target '", text,
       "'; expected grpc://host:port or inproc://name, as RpcServer::target() gives it");
}

}  // namespace internal
}  // namespace tutti

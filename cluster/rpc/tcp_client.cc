// A client's connection on plain TCP.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/cluster/rpc/rpc_wires.h"
#include "tutti/cluster/rpc/tcp_connection.h"
#include "tutti/cluster/tcp/stream.h"

namespace tutti::internal {
namespace {

class TcpRpcClientWire final : public RpcClientWire {
 public:
  TcpRpcClientWire(FileDescriptor socket, const Handshake& handshake,
                   std::shared_ptr<RpcFrameSink> sink)
      : connection_(std::move(socket), handshake, Handshake::Side::kClient, 0),
        sink_(std::move(sink)) {}

  RpcTcpConnection& connection() { return connection_; }
  void send(RpcFrame frame) override { connection_.send(std::move(frame)); }
  std::string serve() override {
    return connection_.serve({}, [this](RpcFrame frame) {
      if (const auto sink = sink_.lock()) sink->received(std::move(frame));
    });
  }
  void finish(TimePoint deadline) override { connection_.finish(deadline); }
  void serve_until(TimePoint deadline, const std::function<bool()>& is_done) override {
    connection_.serve_until(deadline, is_done);
  }

 private:
  RpcTcpConnection connection_;
  const std::weak_ptr<RpcFrameSink> sink_;
};

/// Whether this handshake lets the client in; else the reason is in `attempt`.
bool is_admitted(const Handshake& handshake, const MemberTask& server, RpcAttempt& attempt) {
  if (handshake.state() == Handshake::State::kRunning) {
    attempt.reason = "it accepts connections, but does not answer";
    return false;
  }
  const bool is_done = handshake.state() == Handshake::State::kDone;
  attempt.reason = is_done ? other_server(server, *handshake.peer()) : handshake.reason();
  attempt.is_final = !attempt.reason.empty();
  return !attempt.is_final;
}

}  // namespace

RpcAttempt connect_rpc_tcp(const RpcConnectParameters& parameters) {
  if (parameters.tls.is_set()) {
    fail(ErrorCode::kUnimplemented,
         "rpc: the wire tcp has no TLS; use a grpc:// target, or a job secret");
  }
  RpcAttempt attempt;
  OpenedConnection opened =
      connect_until(parse_endpoint(parameters.address).value(), parameters.deadline);
  attempt.reason = opened.reason;
  if (!opened.socket.is_open()) return attempt;
  Handshake handshake(Handshake::Side::kClient, parameters.hello, parameters.secret);
  const auto rest = run_handshake(opened.socket, handshake, parameters.deadline);
  if (!is_admitted(handshake, parameters.server, attempt)) return attempt;
  try {
    if (!rest.empty()) fail(ErrorCode::kDataLoss, "it spoke before it was asked");
    auto wire =
        std::make_shared<TcpRpcClientWire>(std::move(opened.socket), handshake, parameters.sink);
    wire->send(parameters.open);
    take_welcome(attempt, wire->connection().receive(parameters.deadline));
    wire->connection().limit_payload(attempt.welcome.numbers.front());
    attempt.server_incarnation = handshake.peer()->incarnation;
    attempt.wire = std::move(wire);
  } catch (const Error& error) {
    attempt.reason = error.message();
  }
  return attempt;
}

}  // namespace tutti::internal

// The two wires: what a server and a client need of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/handshake/hello.h"
#include "tutti/cluster/handshake/job_secret.h"
#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/cluster/rpc/rpc_frame.h"
#include "tutti/cluster/rpc/rpc_server.h"

namespace tutti::internal {

/// The server's end of a connection. Threads: any.
class RpcLink {
 public:
  virtual ~RpcLink() = default;
  /// Hands a frame over and does not wait. A broken connection swallows it.
  virtual void send(RpcFrame frame) = 0;
  virtual void close() = 0;
  /// There may be room again for what ServerSession::lease() refused.
  virtual void read_on() {}
  /// Whether answers may get lost with the connection.
  virtual bool can_break() const { return true; }
  /// Whether the thread that brings a small request may run the handler.
  virtual bool may_run_handler() const { return true; }
};

/// Where a client's wire brings what has come.
class RpcFrameSink {
 public:
  virtual ~RpcFrameSink() = default;
  /// Any thread, one at a time. Throws kDataLoss for a frame that no server sends: drop the
  /// connection.
  virtual void received(RpcFrame frame) = 0;
  /// From serve(), about every second, where the wire may drop a message, or wait for the rest of
  /// one, without a word: `has_moved` says whether anything came, or much went, since the last
  /// time. True: drop the connection, it is stuck.
  virtual bool look_for_gaps(bool has_moved) {
    (void)has_moved;
    return false;
  }
};

/// The client's end of a connection, after handshake and welcome.
class RpcClientWire {
 public:
  virtual ~RpcClientWire() = default;
  /// As RpcLink::send().
  virtual void send(RpcFrame frame) = 0;
  /// Brings what comes to the sink until the connection ends; returns why it did. One thread.
  virtual std::string serve() = 0;
  /// Ends serve() as soon as all that was sent has gone, at `deadline` at the latest. Any thread.
  virtual void finish(TimePoint deadline) = 0;
  virtual bool can_break() const { return true; }
};

/// What came of an attempt to connect.
struct RpcAttempt {
  std::shared_ptr<RpcClientWire> wire = {};  // null: it failed
  std::uint64_t server_incarnation = 0;
  RpcFrame welcome = {};
  std::string reason = {};
  bool is_final = false;  // the server refuses: no use in trying again
};

struct RpcConnectParameters {
  std::string address = {};
  PeerHello hello = {};  // with a new nonce
  JobSecret secret = {};
  TlsFiles tls = {};
  MemberTask server = {};  // who is to answer
  RpcFrame open = {};
  TimePoint deadline = {};
  std::shared_ptr<RpcFrameSink> sink = {};
};
RpcAttempt connect_rpc_in_process(const RpcConnectParameters& parameters);
/// Throws kUnimplemented in a build without gRPC.
RpcAttempt connect_rpc_grpc(const RpcConnectParameters& parameters);

std::unique_ptr<RpcServer> start_rpc_in_process(const RpcServerOptions& options,
                                                RpcHandler& handler);
std::unique_ptr<RpcServer> start_rpc_grpc(const RpcServerOptions& options, RpcHandler& handler);

/// The hello of a server with these options.
PeerHello server_hello(const RpcServerOptions& options);
/// Why a client that looks for `expected` does not want this server; "": it does.
std::string other_server(const MemberTask& expected, const PeerHello& met);
/// Fills in what the welcome says. Throws kDataLoss for a frame that is none.
void take_welcome(RpcAttempt& attempt, RpcFrame frame);
RpcPeer peer_of(const PeerHello& hello, std::string address);

/// "grpc://127.0.0.1:4711" in its parts. Throws kInvalidArgument for other texts.
struct RpcTarget {
  RpcWire wire = RpcWire::kGrpc;
  std::string address = {};
};
RpcTarget parse_rpc_target(const std::string& text);

}  // namespace tutti::internal

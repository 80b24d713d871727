// The two wires, tcp and grpc: what a server and a client need of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/control/control_server.h"
#include "tutti/cluster/control/health_rules.h"
#include "tutti/cluster/control/message.h"
#include "tutti/cluster/handshake/hello.h"
#include "tutti/cluster/handshake/refusal_log.h"
#include "tutti/cluster/tcp/socket.h"

namespace tutti::internal {

/// A client's connection, after the handshake.
class ClientWire {
 public:
  virtual ~ClientWire() = default;
  /// Hands it over; any thread. A broken connection swallows it.
  virtual void send(const Message& message) = 0;
  /// What has come: waits for something, for wake(), for the end of the connection or the deadline.
  /// One thread.
  virtual std::vector<Message> receive(TimePoint deadline) = 0;
  virtual void wake() = 0;
  virtual bool is_open() const = 0;
};

/// What came of an attempt to connect.
struct Attempt {
  std::unique_ptr<ClientWire> wire;  // null: it failed
  std::string reason;
  bool is_final = false;         // the server refuses, or is none: no use in trying again
  bool is_nobody_there = false;  // the system says that nobody listens
  bool is_hopeless = false;      // as OpenedConnection's
};

/// "tcp://127.0.0.1:4711" in its parts. Throws kInvalidArgument for other texts.
struct ControlTarget {
  std::string wire;
  Endpoint endpoint;
};
ControlTarget parse_target(const std::string& text);

struct ConnectParameters {
  Endpoint endpoint;
  PeerHello hello;  // with a new nonce
  JobSecret secret;
  TlsFiles tls;
  TimePoint deadline;
};
Attempt connect_tcp(const ConnectParameters& parameters);
/// Throws kUnimplemented in a build without gRPC.
Attempt connect_grpc(const ConnectParameters& parameters);

std::unique_ptr<ControlServer> start_tcp_server(const ControlServerOptions& options,
                                                const Endpoint& endpoint);
std::unique_ptr<ControlServer> start_grpc_server(const ControlServerOptions& options,
                                                 const Endpoint& endpoint);

/// The hello of a server with these options.
PeerHello server_hello(const ControlServerOptions& options);
/// Asks the system about processes of this machine.
ProcessState probe_member(const JoinRequest& joined);

}  // namespace tutti::internal

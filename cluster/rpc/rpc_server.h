// Server for calls from other tasks of the job.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cluster/control/control_client.h"
#include "cluster/control/member.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/cluster/net/job_secret.h"
#include "tutti/cluster/rpc/packet.h"
#include "tutti/core/error.h"

namespace tutti {

/// The calling client: a task of the job, or "client 0" if it does not identify itself (for example
/// a tool in another language).
struct RpcPeer {
  MemberTask task = {};
  std::uint64_t incarnation = 0;  // number of restarts of the task before this process
  std::uint64_t client = 0;       // random; see RpcClientOptions::client
  std::string address = {};       // for error messages
  /// Returns "worker 1 (192.0.2.7:4711)", or "worker 1" if it is on this machine.
  std::string to_string() const {
    return address.empty() ? task.to_string() : concat(task, " (", address, ")");
  }
};

/// A request, which must be answered once, from any thread and at any time. If it is destroyed
/// unanswered, the caller gets kInternal. Replies to disconnected callers are dropped.
class RpcCall {
 public:
  virtual ~RpcCall() = default;
  virtual const RpcPeer& peer() const = 0;
  virtual const Packet& request() const = 0;
  virtual void reply(Packet answer) = 0;
  /// Replies with an error, prefixed with the server's name.
  virtual void fail(const Error& error) = 0;
};

/// Handler for the calls to a server.
class RpcHandler {
 public:
  virtual ~RpcHandler() = default;
  /// Handles a call. Calls from one client arrive in RpcClient::start() order, one at a time, even
  /// across connections; different clients call concurrently. Must return soon, because the
  /// client's later calls wait; may keep the call and reply later. Must not wait for other calls,
  /// because this thread may be the one that receives their replies. Exceptions are sent as error
  /// replies.
  virtual void take(std::shared_ptr<RpcCall> call) = 0;
  /// Called after the last call of a client that closed its connection.
  virtual void client_left(const RpcPeer&) {}
  /// Same as client_left(), but called after the connection broke. The default implementation calls
  /// client_left().
  virtual void client_lost(const RpcPeer& peer) { client_left(peer); }
};

/// Handlers by method. They must outlive the server.
using RpcHandlers = std::map<RpcMethod, RpcHandler*>;

struct RpcServerOptions {
  /// Address of this machine; port 0 selects a free port. It must be a loopback address if the
  /// server has neither a secret nor TLS, unless allow_insecure_network is set.
  std::string address = "127.0.0.1:0";
  MemberTask self = {"ps", 0, ""};
  std::uint64_t incarnation = 0;
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  bool allow_insecure_network = false;
  std::size_t longest_payload = std::size_t{4} << 30;
};

/// A running server with health checking and reflection. Calls to methods without a handler fail
/// with UNIMPLEMENTED. No handler function runs after the destructor has returned. Thread-safe.
class RpcServer {
 public:
  /// Throws the same errors as ControlServer::start().
  static std::unique_ptr<RpcServer> start(const RpcServerOptions& options, RpcHandlers handlers);
  ~RpcServer();
  /// Returns the address for clients, such as "grpc://127.0.0.1:4711".
  std::string target() const;

 private:
  struct Impl;
  explicit RpcServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

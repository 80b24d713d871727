// Answers calls of other tasks of the job.
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

/// The client that calls: a task of the job, or "client 0", which did not say (a tool of another
/// language, for example).
struct RpcPeer {
  MemberTask task = {};
  std::uint64_t incarnation = 0;  // restarts of the task before this process
  std::uint64_t client = 0;       // random; see RpcClientOptions::client
  std::string address = {};       // where from, for messages
  /// "worker 1 (192.0.2.7:4711)", within a machine "worker 1".
  std::string to_string() const {
    return address.empty() ? task.to_string() : concat(task, " (", address, ")");
  }
};

/// A request that waits for its answer. Its holder answers once, from any thread, at any
/// time; one that is dropped unanswered is answered kInternal. Answers to callers that are gone go
/// nowhere.
class RpcCall {
 public:
  virtual ~RpcCall() = default;
  virtual const RpcPeer& peer() const = 0;
  virtual const Packet& request() const = 0;
  /// Head and payload.
  virtual void reply(Packet answer) = 0;
  /// The caller gets this error with the server's name in front.
  virtual void fail(const Error& error) = 0;
};

/// What a server does with calls.
class RpcHandler {
 public:
  virtual ~RpcHandler() = default;
  /// Calls of one client come in the order of RpcClient::start(), one at a time, also over several
  /// connections; those of different clients concurrently. Return soon: later calls of the client
  /// wait (keep the call and answer later instead). Do not wait for other calls in here: the thread
  /// may be the one that receives their answers. What it throws is answered.
  virtual void take(std::shared_ptr<RpcCall> call) = 0;
  /// The client has closed its connection, after its last call.
  virtual void client_left(const RpcPeer&) {}
  /// The connection broke. Default: client_left().
  virtual void client_lost(const RpcPeer& peer) { client_left(peer); }
};

/// They outlive the server.
using RpcHandlers = std::map<RpcMethod, RpcHandler*>;

struct RpcServerOptions {
  /// Of this machine; port 0: a free one. Loopback, unless there is a secret or TLS.
  std::string address = "127.0.0.1:0";
  MemberTask self = {"ps", 0, ""};
  std::uint64_t incarnation = 0;
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  bool allow_insecure_network = false;
  std::size_t longest_payload = std::size_t{4} << 30;
};

/// A running server, with health checking and reflection; methods without a handler answer
/// UNIMPLEMENTED. No handler function runs after its destructor. Thread-safe.
class RpcServer {
 public:
  /// Throws as ControlServer::start().
  static std::unique_ptr<RpcServer> start(const RpcServerOptions& options, RpcHandlers handlers);
  ~RpcServer();
  /// Returns "grpc://127.0.0.1:4711".
  std::string target() const;

 private:
  struct Impl;
  explicit RpcServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

// Cluster task that stores variables and computes for its clients, like tf.distribute.Server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/net/job_secret.h"

namespace tutti {

namespace internal {
class ParameterServerJob;
}  // namespace internal

struct ServerOptions {
  /// If unset, `job_id` and `secret` come from TUTTI_JOB_ID and TUTTI_JOB_SECRET_FILE.
  /// TUTTI_RESTART is always read.
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// If true, the server may listen, even without a secret, on an address that other machines can
  /// reach. Use only on isolated networks.
  bool allow_insecure_network = false;
};

/// Server that listens on its task's address for the job's workers and sessions
/// (session/session.h), from construction until destruction. Thread-safe.
class Server {
 public:
  /// Throws kNotFound if the cluster does not have the task, kUnavailable if the address cannot be
  /// used (naming the process that uses the port), and kInvalidArgument if other machines could
  /// reach the address without a secret.
  Server(const ClusterSpec& cluster, const std::string& job_name, int task_index,
         ServerOptions options = {});
  /// Uses the task of `resolver`. Also throws kInvalidArgument if the resolver has no task, or if
  /// its rpc_layer() is not "grpc".
  explicit Server(const ClusterResolver& resolver, ServerOptions options = {});
  /// Creates a server in a new cluster with a single task (job "local"), on a free port of this
  /// machine.
  static std::unique_ptr<Server> create_local_server(ServerOptions options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns the address for clients, e.g. "grpc://127.0.0.1:2222".
  std::string target() const;
  const ClusterSpec& cluster() const;
  const Task& task() const;
  /// Returns when stop() is called, when the last session has ended, or when every task of the
  /// other jobs (except chief and evaluator) has connected and all clients have disconnected.
  void join();
  void stop();

 private:
  friend class internal::ParameterServerJob;
  struct Impl;
  /// `awaits_coordinator`: if true, calls wait until a coordinator opens the store (StoreOrder).
  Server(const ClusterSpec& cluster, const std::string& job_name, int task_index,
         const ServerOptions& options, bool awaits_coordinator);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

// A task of a cluster that holds variables and computes for others. tf.distribute.Server.
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
  /// Not set: of TUTTI_JOB_ID, TUTTI_JOB_SECRET_FILE and TUTTI_RESTART.
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// Listens at an address that other machines reach without a secret: closed laboratory networks.
  bool allow_insecure_network = false;
};

/// Listens at its task's address from construction on, for workers and sessions (session/session.h)
/// of the job. Threads: any.
class Server {
 public:
  /// Throws kNotFound for a task that the cluster has not, kUnavailable for an address that cannot
  /// be used (naming the process that has the port), kInvalidArgument with the one-line remedy for
  /// one that would let strangers in.
  Server(const ClusterSpec& cluster, const std::string& job_name, int task_index,
         ServerOptions options = {});
  /// The task that `resolver` says. Throws kInvalidArgument besides where the resolver knows no
  /// task, or names another rpc_layer() than "grpc".
  explicit Server(const ClusterResolver& resolver, ServerOptions options = {});
  /// The one task of a cluster of its own ("local"), at a free port of this machine.
  static std::unique_ptr<Server> create_local_server(ServerOptions options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// "grpc://127.0.0.1:2222".
  std::string target() const;
  const ClusterSpec& cluster() const;
  const Task& task() const;
  /// Serves until stop(), or until every other task that does not serve itself (not of job "ps")
  /// has come and has said good-bye; where sessions were opened, until the last of them has ended.
  void join();
  void stop();
  /// The job has lost this process of a task, and earlier ones: nothing waits for them any more.
  void give_up(const Task& task, std::uint64_t incarnation);

 private:
  friend class internal::ParameterServerJob;
  struct Impl;
  /// `awaits_coordinator`: holds calls until a coordinator opens it (StoreOrder).
  Server(const ClusterSpec& cluster, const std::string& job_name, int task_index,
         const ServerOptions& options, bool awaits_coordinator);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

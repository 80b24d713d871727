// Client that runs operations and stores variables on tasks of a cluster, like tf.Session.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/net/job_secret.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

struct SessionOptions {
  /// Timeout for connecting to the target, and separately for connecting to all other tasks of its
  /// cluster.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(30);
  /// Timeout for a step, and for fetching a value. Transfers between tasks time out after 3/4 of
  /// this time.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// If unset, `job_id` and `secret` come from TUTTI_JOB_ID and TUTTI_JOB_SECRET_FILE.
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
};

/// Traffic of this session from one task (or the client) to another.
struct SessionTransfer {
  std::string from = {};  // "/job:ps/replica:0/task:0", or "client"
  std::string to = {};
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;  // total size of the values' elements and of the programs sent
  bool operator==(const SessionTransfer&) const = default;
};

class Session;

namespace internal {
class SessionCore;
}  // namespace internal

/// Scope in which this thread's device scopes may name other tasks: `const auto scope =
/// session.scope();`. A thread must destroy its scopes in reverse order.
class [[nodiscard]] SessionScope {
 public:
  explicit SessionScope(const Session& session);
  ~SessionScope();
  SessionScope& operator=(SessionScope&&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Client that drives all tasks of a cluster (in-graph replication); this process needs no devices.
/// Within scope(), a device scope such as `DeviceScope task("/job:worker/task:1")` selects a task:
/// operations in it are recorded and run on that task, and variables made in it are stored there. A
/// device scope without a task selects the target's own task, or the first task of its job. Outside
/// device scopes, an operation runs on the task of its first remote input, or in this process if
/// all inputs are local. Gradients are computed where their operations ran, and updates where the
/// variable is stored.
///
///     Session session(server.target());
///     const auto scope = session.scope();
///     const Tensor loss = session.run([&] { return step(batch); });
///
/// run() records a function and runs it as one program, which is divided among the tasks. Each task
/// receives its part once, and tasks send values to each other directly. A later step that differs
/// only in the values of its arguments, i.e. tensors that the step did not compute, sends only
/// its arguments. Outside run(), each operation is a step of its own. Results of operations are
/// fetched when the host first reads them; reading them within run() throws an error that names the
/// operation. Sessions of one cluster share variables by name.
///
/// If a task dies, its values and variables are lost: errors name them, and a new session continues
/// with the variables of the other tasks. Thread-safe; a scope belongs to one thread. Copies of
/// this handle share the session, which ends with its last copy, scope, variable or value.
class Session {
 public:
  /// `target`: Server::target() of any task of the cluster, "grpc://host:port". Throws kUnavailable
  /// if this target or a task does not respond in time (the error names it); kInvalidArgument for a
  /// malformed target; kFailedPrecondition for a server of another job or with another secret.
  explicit Session(const std::string& target, SessionOptions options = {});

  const std::string& target() const;
  const ClusterSpec& cluster() const;
  /// Returns the devices of all tasks, e.g. "/job:worker/replica:0/task:1/device:CPU:0".
  /// Corresponds to tf.Session.list_devices().
  std::vector<std::string> list_devices() const;

  SessionScope scope() const { return SessionScope(*this); }

  /// Runs `step` and returns its result. Throws the first error that a task reports, naming the
  /// task, the operation and the line. If tasks died, throws kUnavailable, naming the tasks and
  /// their variables. Does not need a scope(). Corresponds to tf.Session.run.
  template <class Step>
  auto run(Step&& step) const {
    if constexpr (std::is_void_v<std::invoke_result_t<Step&>>) {
      run_recorded([&] { step(); });
    } else {
      std::optional<std::decay_t<std::invoke_result_t<Step&>>> result;
      run_recorded([&] { result.emplace(step()); });
      return *std::move(result);
    }
  }

  /// Returns the traffic so far, ordered by source, then destination.
  std::vector<SessionTransfer> transfers() const;

 private:
  friend class SessionScope;
  void run_recorded(const std::function<void()>& step) const;

  std::shared_ptr<internal::SessionCore> core_;
};

/// Returns each variable's gradient, summed over the replicas of a computation. All lists are in
/// the order of `variables`. Each sum is computed on its variable's task, in canonical replica
/// order, so it is bit-identical to MirroredStrategy's with the same number of replicas.
std::vector<Gradient> sum_over_replicas(std::span<const Variable> variables,
                                        std::span<const std::vector<Gradient>> per_replica);

}  // namespace tutti

// A client whose operations and variables are on tasks of a cluster. tf.Session.
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
  /// Timeout for connecting to the target, and then to all other tasks of its cluster.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(30);
  /// Timeout for a step, and for a fetched value; transfers between tasks use 3/4 of it.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// If unset, `job_id` and `secret` come from TUTTI_JOB_ID and TUTTI_JOB_SECRET_FILE.
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
};

/// Traffic between two tasks, or a task and the client, in this session.
struct SessionTransfer {
  std::string from = {};  // "/job:ps/replica:0/task:0", or "client"
  std::string to = {};
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;  // of their elements, and of programs
  bool operator==(const SessionTransfer&) const = default;
};

class Session;

namespace internal {
class SessionCore;
}  // namespace internal

/// Scope in which device scopes of other tasks work on this thread: `const auto scope =
/// session.scope();`. Scopes of a thread are destroyed in reverse order.
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
/// Within scope(), operations in a device scope of another task, `DeviceScope
/// task("/job:worker/task:1")`, are recorded and run there, and variables made in one are stored
/// there. A device scope without a task names the target's own task, or the first task of its job.
/// Outside such scopes an operation runs on the task of its first remote input; without one, in
/// this process. Gradients run where their operations ran, and updates where the variable is.
///
///     Session session(server.target());
///     const auto scope = session.scope();
///     const Tensor loss = session.run([&] { return step(batch); });
///
/// run() records a function and runs it as one program: divided by tasks, sent to each task once,
/// with values that go from task to task directly. Later steps that differ only in numbers send
/// only arguments: every tensor that the step did not make. Outside run(), each operation is such a
/// step. Results of operations are fetched when the host first reads them; within run() that is an
/// error, which names the operation. Sessions of one cluster share variables by name.
///
/// If a task dies, its values and variables are lost: errors name them, and a new session continues
/// with those of the other tasks. Thread-safe; a scope belongs to one thread. A handle: copies are
/// the same session, which ends with the last copy, scope, variable and value.
class Session {
 public:
  /// `target`: Server::target() of any task of the cluster, "grpc://host:port". Throws kUnavailable
  /// naming target or task if it does not answer in time; kInvalidArgument for a malformed target;
  /// kFailedPrecondition for a server of another job, or with another secret.
  explicit Session(const std::string& target, SessionOptions options = {});

  const std::string& target() const;
  const ClusterSpec& cluster() const;
  /// Returns the devices of all tasks: "/job:worker/replica:0/task:1/device:CPU:0". tf's
  /// list_devices().
  std::vector<std::string> list_devices() const;

  SessionScope scope() const { return SessionScope(*this); }

  /// Runs `step` and returns its result. Throws the first error of a task, naming task, operation
  /// and line; kUnavailable naming the tasks that died, and their variables. Needs no scope().
  /// tf.Session.run.
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

/// Adds the gradients of copies of a computation; each list is in the order of `variables`. Each
/// sum runs on its variable's task, in the canonical order of replicas, so that the bits are those
/// of a MirroredStrategy with the same number of replicas.
std::vector<Gradient> sum_over_replicas(std::span<const Variable> variables,
                                        std::span<const std::vector<Gradient>> per_replica);

}  // namespace tutti

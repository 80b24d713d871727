// A client that places values and variables on tasks of a cluster and runs steps there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/net/job_secret.h"
#include "tutti/strategy/parameter_server/session/task_value.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {

struct SessionOptions {
  /// For reaching the target and then all other tasks of its cluster.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(30);
  /// For every value that is waited for here; between tasks three quarters of it.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// Not set: of TUTTI_JOB_ID and TUTTI_JOB_SECRET_FILE.
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
};

/// Values that went from one place to another, without those of former sessions.
struct SessionTransfer {
  std::string from = {};  // "/job:ps/replica:0/task:0", or "client"
  std::string to = {};
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;  // of tensors and texts
  bool operator==(const SessionTransfer&) const = default;
};

/// One client that drives all tasks of a cluster (in-graph replication): this process needs no
/// devices. Where things are is said by device scopes of the calling thread,
/// `DeviceScope scope("/job:worker/task:1")`; outside, and for parts that are left out, the
/// target's own task, or the first of the job. Calls return at once: a task does what it is asked
/// in the order of the calls, and different tasks at the same time; a value that a task needs of
/// another one goes there directly, once, and is counted. Values of a program's variables are those
/// of that place in the program. Tensors that the program itself makes are to be made outside of
/// scopes of other tasks. Sessions with the same cluster share variables by name. tf.Session.
///
///     Session session(server.target());
///     std::printf("%s\n", session.constant("Hello").fetch<std::string>().c_str());
///
/// A task that dies takes its values and variables along: errors name them, and a new session goes
/// on with those of the others. Threads: any; the order of the calls counts. A handle: copies are
/// the same session, which ends, after what was asked is done, with the last copy, value and
/// variable.
class Session {
 public:
  /// `target`: Server::target() of any task of the cluster, "grpc://host:port". Throws kUnavailable
  /// naming target or task when it does not answer in time; kInvalidArgument for a text that is
  /// none; kFailedPrecondition for a server of another job, or that takes another secret.
  explicit Session(const std::string& target, SessionOptions options = {});

  const std::string& target() const;
  const ClusterSpec& cluster() const;
  /// The devices of all tasks: "/job:worker/replica:0/task:1/device:CPU:0". tf's list_devices().
  std::vector<std::string> list_devices() const;
  /// The steps of a task, one signature per line.
  std::string steps_of(const Task& task) const;

  /// A value on a task: a Tensor, number, text (bytes, up to 4 MiB), or std container of these.
  template <class T>
  TaskValue constant(const T& value) {
    return put(TaskInput(value));
  }
  /// A variable on a task, whole. One of this name that other sessions made keeps its values.
  /// Throws kAlreadyExists for a second one of the name in this session.
  TaskVariable variable(const std::string& name, const Tensor& initial_value);

  /// Runs a step that the task's program has defined (TaskSteps). Arguments: values of tasks,
  /// variables (their present values), and what constant() takes. Errors come with the values that
  /// are fetched, and from wait().
  template <class... Args>
  TaskValue run(std::string_view step, const Args&... arguments) {
    std::vector<TaskInput> inputs;
    (inputs.push_back(TaskInput(arguments)), ...);
    return run_step(step, std::move(inputs));
  }

  /// Until all that was asked is done. Throws the first error of any of it since the last call;
  /// where tasks died, with their names and the variables that are gone.
  void wait();
  /// By where from, then where to.
  std::vector<SessionTransfer> transfers() const;

 private:
  friend class TaskOptimizer;
  TaskValue put(const TaskInput& value);
  TaskValue run_step(std::string_view step, std::vector<TaskInput> inputs);

  std::shared_ptr<internal::SessionCore> core_;
};

}  // namespace tutti

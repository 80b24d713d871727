// Schedules steps on workers, whoever of them lives: asynchronous training with parameter servers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/input/input_plan.h"
#include "tutti/strategy/parameter_server/coordinator/coordinator_options.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"
#include "tutti/strategy/parameter_server/coordinator/per_worker.h"
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"

namespace tutti {

class CoordinatedStrategy;

/// What has become of a closure.
enum class RemoteValueState { kNotReady, kReady, kAborted };

namespace internal {

/// What a RemoteValue looks at. Threads: any.
class RemoteResult {
 public:
  void set(Nest value) { end(RemoteValueState::kReady, std::move(value), nullptr); }
  /// fetch() throws it.
  void abort(std::exception_ptr error) {
    end(RemoteValueState::kAborted, Nest(), std::move(error));
  }
  RemoteValueState state() const;
  Nest get(TimePoint deadline) const;

 private:
  void end(RemoteValueState state, Nest value, std::exception_ptr error);

  mutable Mutex mutex_;
  mutable CondVar condition_;
  RemoteValueState state_ TUTTI_GUARDED_BY(mutex_) = RemoteValueState::kNotReady;
  Nest value_ TUTTI_GUARDED_BY(mutex_);
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace internal

/// What schedule() returns at once. A handle: copies share the result. Threads: any.
/// tf.distribute.experimental.coordinator.RemoteValue.
class RemoteValue {
 public:
  explicit RemoteValue(std::shared_ptr<internal::RemoteResult> result)
      : result_(std::move(result)) {}

  RemoteValueState state() const { return result_->state(); }
  /// Waits for the result, in this process. Throws the closure's own error (ClosureError);
  /// kCancelled when it was cancelled: schedule it again; kDeadlineExceeded.
  Nest get(TimePoint deadline = TimePoint::max()) const { return result_->get(deadline); }
  /// The same as a C++ value. Throws kInvalidArgument too, when the result is of another kind.
  template <class T = Tensor>
  T fetch(TimePoint deadline = TimePoint::max()) const {
    return internal::from_nest<T>(get(deadline), "fetch");
  }

 private:
  std::shared_ptr<internal::RemoteResult> result_;
};

/// How ClusterCoordinator::join() waits.
struct JoinClosures {
  /// Saves a checkpoint when every closure has ended.
  bool durable = false;
  TimePoint deadline = TimePoint::max();
};

namespace internal {
class CoordinatorCore;
struct CoordinatorInside;
}  // namespace internal

/// A handle: there is one coordinator per strategy, and copies, and coordinators made of the same
/// strategy later, are it (their options are left out). When the last one is gone its threads end.
/// Threads: any, all functions. tf.distribute.coordinator.ClusterCoordinator.
class ClusterCoordinator {
 public:
  /// `strategy` outlives it.
  explicit ClusterCoordinator(CoordinatedStrategy& strategy,
                              ClusterCoordinatorOptions options = {});

  /// Makes `fn` known as `step`: a function or lambda whose parameters and result are Tensor,
  /// numbers, std::string, std containers of these, and per-worker values (T, T& or const T& of a
  /// PerWorkerValues<T>). It may capture what the set-up part of the program built. On every task,
  /// before start(). Throws kAlreadyExists; kFailedPrecondition after start().
  template <class Fn>
  void define(std::string_view step, Fn fn) {
    registry_to_define(step).define(step, std::move(fn));
  }
  /// On workers and servers of a chief elsewhere: serves until the chief is done, and returns the
  /// exit code for this process: 0, or 1 when the chief was lost or failed. On the chief, and where
  /// all is in one process: nothing, at once. Call it when all steps are defined, before start():
  /// `if (const auto code = coordinator.serve()) return *code;`.
  std::optional<int> serve();
  /// Returns when the workers can be given closures. With a checkpoint_folder the variables, all
  /// made before, then have the values of its last version. Throws kDeadlineExceeded when no worker
  /// joined; kFailedPrecondition on a task that has to serve(), for a checkpoint of another
  /// program, and naming the steps that a worker defines otherwise.
  void start();

  /// Gives the step to the next worker that is free, and returns at once (waits while the queue is
  /// full, or another thread joins). Infrastructure errors are retried on another worker; each
  /// closure's changes count once. Throws kNotFound naming the nearest steps; kInvalidArgument for
  /// the wrong number of arguments; the first failure of earlier closures (ClosureError), after
  /// those that ran have ended: then nothing runs, what was queued is cancelled, and the next call
  /// works again.
  template <class... Args>
  RemoteValue schedule(std::string_view step, const Args&... arguments) {
    return schedule_nest(step, Nest(Nest::List{internal::to_nest(arguments)...}));
  }
  /// `arguments`: a list.
  RemoteValue schedule_nest(std::string_view step, Nest arguments);

  /// Waits until every closure has ended. Throws as schedule(), and kDeadlineExceeded naming what
  /// runs. If a server is lost later, closures since the last checkpoint are done again: after
  /// `join({.durable = true})` the last checkpoint contains all that ended.
  void join(JoinClosures options);
  void join(TimePoint deadline = TimePoint::max()) { join({.deadline = deadline}); }
  /// Whether every closure has ended. Throws as join().
  bool done();
  /// The values, in order; waits for each.
  std::vector<Nest> fetch(std::span<const RemoteValue> values) const;

  /// One T per worker, made there by `make(int worker)` when a step first gets it. With workers in
  /// other processes: on every task, in the same order, before start(). An error of `make` is an
  /// input error of each closure that uses the value.
  template <class Make>
  auto create_per_worker(Make make) {
    using T = std::decay_t<std::invoke_result_t<Make&, int>>;
    const std::uint64_t id = define_resource(
        internal::type_name(typeid(T)), "made by a function",
        [make = std::move(make)](int worker, std::uint64_t) mutable -> std::shared_ptr<void> {
          return std::make_shared<T>(make(worker));
        });
    return PerWorkerValues<T>(new_handle(id, internal::type_name(typeid(T))));
  }
  /// Each worker reads the whole dataset, or what the function gives for its InputContext. The
  /// function may not make variables (input error). As create_per_worker() for other processes.
  PerWorkerDataset create_per_worker_dataset(const Dataset& dataset);
  PerWorkerDataset create_per_worker_dataset(std::function<Dataset(const InputContext&)> make);
  /// The same of what Strategy::distribute_dataset() gives, called in the function on each worker:
  /// batches for its replicas. Every pass is the dataset's first epoch.
  PerWorkerDistributedDataset create_per_worker_dataset(
      std::function<DistributedDataset(const InputContext&)> make);

  /// Runs the step once on each worker that lives, outside closures, and returns what each gave, by
  /// worker; nothing for those that do not live. For reading per-worker values: a step that changes
  /// variables is kFailedPrecondition in another process.
  template <class... Args>
  std::vector<Nest> run_on_each(std::string_view step, const Args&... arguments) {
    return run_nest_on_each(step, Nest(Nest::List{internal::to_nest(arguments)...}));
  }

  /// Saves a version of the checkpoint now; it contains what was assigned outside closures, too.
  /// Returns when it is on the disk. Throws what kept it from that; kDeadlineExceeded;
  /// kFailedPrecondition without a checkpoint_folder.
  void save_checkpoint(TimePoint deadline = TimePoint::max());
  /// Closures scheduled so far, counted over the coordinators of a strategy. After start() with a
  /// checkpoint: those that it contains, so that a program that was started again continues with
  /// the closure of this number.
  std::uint64_t num_scheduled() const;

  /// What runs, what each worker does: for people.
  std::string describe() const;
  bool operator==(const ClusterCoordinator&) const = default;

 private:
  friend struct internal::CoordinatorInside;
  internal::StepRegistry& registry_to_define(std::string_view step);
  std::uint64_t define_resource(
      std::string type, std::string text,
      std::function<std::shared_ptr<void>(int worker, std::uint64_t instance)> make);
  PerWorkerHandle new_handle(std::uint64_t id, std::string type);
  /// `make` gets the worker's context and a number unlike that of any other worker's pass.
  template <class Iterator>
  PerWorkerDatasetOf<Iterator> define_dataset(
      std::function<std::shared_ptr<Iterator>(const InputContext&, std::uint64_t epoch)> make);
  std::vector<Nest> run_nest_on_each(std::string_view step, Nest arguments);

  std::shared_ptr<internal::CoordinatorCore> core_;
};

}  // namespace tutti

// Schedules steps on live workers: asynchronous training with parameter servers.
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

/// State of a closure's result.
enum class RemoteValueState { kNotReady, kReady, kAborted };

namespace internal {

/// State that the RemoteValue handles of one closure share. Thread-safe.
class RemoteResult {
 public:
  void set(Nest value) { end(RemoteValueState::kReady, std::move(value), nullptr); }
  /// Makes get() throw `error`.
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

/// Future result of a closure, returned by schedule(). A handle: copies share the result.
/// Thread-safe. Corresponds to tf.distribute.experimental.coordinator.RemoteValue.
class RemoteValue {
 public:
  explicit RemoteValue(std::shared_ptr<internal::RemoteResult> result)
      : result_(std::move(result)) {}

  RemoteValueState state() const { return result_->state(); }
  /// Waits for the result and returns it. Throws ClosureError if the closure failed, kCancelled if
  /// it was cancelled and must be scheduled again, and kDeadlineExceeded at the deadline.
  Nest get(TimePoint deadline = TimePoint::max()) const { return result_->get(deadline); }
  /// Same as get(), but returns a C++ value and throws kInvalidArgument if the result has another
  /// type.
  template <class T = Tensor>
  T fetch(TimePoint deadline = TimePoint::max()) const {
    return internal::from_nest<T>(get(deadline), "fetch");
  }

 private:
  std::shared_ptr<internal::RemoteResult> result_;
};

/// Options for ClusterCoordinator::join().
struct JoinClosures {
  /// If true, saves a checkpoint when all closures have ended.
  bool durable = false;
  TimePoint deadline = TimePoint::max();
};

namespace internal {
class CoordinatorCore;
struct CoordinatorTestAccess;
}  // namespace internal

/// Handle to a strategy's only coordinator. Copies of the handle, and handles created later from
/// the same strategy, share that coordinator; the options of later handles are ignored. The
/// coordinator's threads end when the last handle is destroyed. Thread-safe. Corresponds to
/// tf.distribute.coordinator.ClusterCoordinator.
class ClusterCoordinator {
 public:
  /// `strategy` must outlive this handle.
  explicit ClusterCoordinator(CoordinatedStrategy& strategy,
                              ClusterCoordinatorOptions options = {});

  /// Registers `fn`, a function or lambda, under the name `step`. Its parameters and result may be
  /// Tensor, numbers, std::string, and std containers of these types; parameters may also be
  /// per-worker values (T, T& or const T& for a PerWorkerValues<T>). `fn` may capture objects that
  /// the program created during set-up. Call define() on every task, before start(). Throws
  /// kAlreadyExists for a name in use, and kFailedPrecondition after start().
  template <class Fn>
  void define(std::string_view step, Fn fn) {
    registry_to_define(step).define(step, std::move(fn));
  }
  /// On workers and servers whose chief is another process, serves until the chief is done, and
  /// returns the exit code for this process: 0, or 1 if the chief was lost or failed. On the chief,
  /// and if all tasks are in one process, returns nullopt at once. Call it after all steps are
  /// defined and before start(): `if (const auto code = coordinator.serve()) return *code;`.
  std::optional<int> serve();
  /// Waits until workers can run closures. With a checkpoint_folder, also restores the variables,
  /// which must all exist, from the last version in it. Throws kDeadlineExceeded if no worker joins
  /// in time. Throws kFailedPrecondition on a task that must call serve(), for a checkpoint of
  /// another program, or if a worker defines different steps; the error names the difference.
  void start();

  /// Queues one call to the step for the next free worker and returns at once, except that it waits
  /// while the queue is full or another thread is in join(). A closure that fails with an
  /// infrastructure error is retried on another worker; its changes to variables are applied only
  /// once. Throws kNotFound, listing the steps, for an unknown step; kInvalidArgument for the wrong
  /// number of arguments; and ClosureError if an earlier closure failed. ClosureError is thrown
  /// once running closures have ended and queued closures have been cancelled; later calls work
  /// again.
  template <class... Args>
  RemoteValue schedule(std::string_view step, const Args&... arguments) {
    return schedule_nest(step, Nest(Nest::List{internal::to_nest(arguments)...}));
  }
  /// Same as schedule(), but takes the arguments as one list.
  RemoteValue schedule_nest(std::string_view step, Nest arguments);

  /// Waits until every closure has ended. Throws ClosureError like schedule(), and
  /// kDeadlineExceeded, naming the running closures, at the deadline. If a server is lost later,
  /// closures since the last checkpoint are repeated. `join({.durable = true})` saves a checkpoint
  /// that contains all closures.
  void join(JoinClosures options);
  void join(TimePoint deadline = TimePoint::max()) { join({.deadline = deadline}); }
  /// Returns true if every closure has ended. Throws the same errors as join().
  bool done();
  /// Waits for all results and returns them in order.
  std::vector<Nest> fetch(std::span<const RemoteValue> values) const;

  /// Defines one value of type T per worker, which `make(int worker)` creates on the worker when a
  /// step first uses it. If workers are other processes, call this on every task, in the same
  /// order, before start(). If `make` throws, each closure that uses the value fails with an input
  /// error.
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
  /// Defines a dataset that each worker reads: all of `dataset`, or the dataset that `make` returns
  /// for the worker's InputContext. Closures fail with an input error if `make` creates variables.
  /// If workers are other processes, see create_per_worker().
  PerWorkerDataset create_per_worker_dataset(const Dataset& dataset);
  PerWorkerDataset create_per_worker_dataset(std::function<Dataset(const InputContext&)> make);
  /// Overload for a `make` that returns the result of Strategy::distribute_dataset(): iterators
  /// return batches for the worker's replicas. Every pass repeats the dataset's first epoch.
  PerWorkerDistributedDataset create_per_worker_dataset(
      std::function<DistributedDataset(const InputContext&)> make);

  /// Saves a version of the checkpoint now, including changes made outside closures, and returns
  /// when it is on disk. Throws the error that prevented saving, kDeadlineExceeded at the deadline,
  /// and kFailedPrecondition without a checkpoint_folder.
  void save_checkpoint(TimePoint deadline = TimePoint::max());
  /// Returns the number of closures scheduled so far. Immediately after start() with a checkpoint,
  /// it is the number of closures whose effects the checkpoint contains, so a restarted program
  /// continues by scheduling the closure with this index.
  std::uint64_t num_scheduled() const;

  bool operator==(const ClusterCoordinator&) const = default;

 private:
  friend struct internal::CoordinatorTestAccess;
  internal::StepRegistry& registry_to_define(std::string_view step);
  std::uint64_t define_resource(
      std::string type, std::string text,
      std::function<std::shared_ptr<void>(int worker, std::uint64_t instance)> make);
  PerWorkerHandle new_handle(std::uint64_t id, std::string type);
  /// `make` receives the worker's context and an epoch number that differs for each worker and
  /// pass.
  template <class Iterator>
  PerWorkerDatasetOf<Iterator> define_dataset(
      std::function<std::shared_ptr<Iterator>(const InputContext&, std::uint64_t epoch)> make);

  std::shared_ptr<internal::CoordinatorCore> core_;
};

}  // namespace tutti

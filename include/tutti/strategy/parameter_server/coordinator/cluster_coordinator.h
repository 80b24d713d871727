// Scheduler of steps on the workers that are alive: asynchronous training with parameter servers.
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

/// Future result of a closure, which schedule() returns at once. A handle: copies share the result.
/// Thread-safe. tf.distribute.experimental.coordinator.RemoteValue.
class RemoteValue {
 public:
  explicit RemoteValue(std::shared_ptr<internal::RemoteResult> result)
      : result_(std::move(result)) {}

  RemoteValueState state() const { return result_->state(); }
  /// Waits for the result and returns it. Throws the closure's own error (ClosureError); kCancelled
  /// if it was cancelled (schedule it again); kDeadlineExceeded.
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

/// Options of ClusterCoordinator::join().
struct JoinClosures {
  /// If true, saves a checkpoint after every closure has ended.
  bool durable = false;
  TimePoint deadline = TimePoint::max();
};

namespace internal {
class CoordinatorCore;
struct CoordinatorTestAccess;
}  // namespace internal

/// Handle of the coordinator of a strategy. There is one per strategy: copies, and coordinators
/// made later from the same strategy, share it; the options of the latter are ignored. Its threads
/// end with the last handle. Thread-safe. tf.distribute.coordinator.ClusterCoordinator.
class ClusterCoordinator {
 public:
  /// `strategy` must outlive it.
  explicit ClusterCoordinator(CoordinatedStrategy& strategy,
                              ClusterCoordinatorOptions options = {});

  /// Registers `fn` as `step`: a function or lambda whose parameters and result are Tensor,
  /// numbers, std::string, std containers of these, and per-worker values (T, T& or const T& of a
  /// PerWorkerValues<T>). It may capture objects that the set-up part of the program made. Call it
  /// on every task, before start(). Throws kAlreadyExists; kFailedPrecondition after start().
  template <class Fn>
  void define(std::string_view step, Fn fn) {
    registry_to_define(step).define(step, std::move(fn));
  }
  /// On workers and servers whose chief is another process: serves until the chief is done, and
  /// returns the exit code for this process: 0, or 1 if the chief was lost or failed. On the chief,
  /// and if all is in one process: returns nullopt at once. Call it when all steps are defined,
  /// before start(): `if (const auto code = coordinator.serve()) return *code;`.
  std::optional<int> serve();
  /// Waits until workers can run closures. With a checkpoint_folder, it also gives the variables,
  /// all made before, the values of its last version. Throws kDeadlineExceeded if no worker joined;
  /// kFailedPrecondition on a task that has to serve(), for a checkpoint of another program, and if
  /// a worker defines other steps, which the error names.
  void start();

  /// Queues one call of the step for the next free worker and returns at once (it waits while the
  /// queue is full or another thread joins). Infrastructure errors are retried on another worker;
  /// each closure's changes count once. Throws kNotFound naming the nearest steps; kInvalidArgument
  /// for the wrong number of arguments; the first failure of earlier closures (ClosureError). That
  /// failure is thrown when running closures have ended and queued ones were cancelled; the next
  /// call works again.
  template <class... Args>
  RemoteValue schedule(std::string_view step, const Args&... arguments) {
    return schedule_nest(step, Nest(Nest::List{internal::to_nest(arguments)...}));
  }
  /// Same as schedule(), but with the arguments as a list.
  RemoteValue schedule_nest(std::string_view step, Nest arguments);

  /// Waits until every closure has ended. Throws as schedule() does, and kDeadlineExceeded naming
  /// the running closures. If a server is lost later, closures since the last checkpoint are
  /// repeated; after `join({.durable = true})` that checkpoint contains all closures that ended.
  void join(JoinClosures options);
  void join(TimePoint deadline = TimePoint::max()) { join({.deadline = deadline}); }
  /// Returns true if every closure has ended. Throws as join() does.
  bool done();
  /// Waits for each result and returns them in order.
  std::vector<Nest> fetch(std::span<const RemoteValue> values) const;

  /// Creates one T per worker, made on it by `make(int worker)` when a step first uses it. If
  /// workers are other processes, call this on every task, in the same order, before start(). An
  /// error of `make` is an input error of each closure that uses the value.
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
  /// Creates a dataset that each worker reads: the whole one, or the one that the function returns
  /// for its InputContext. The function may not make variables (input error). If workers are other
  /// processes, see create_per_worker().
  PerWorkerDataset create_per_worker_dataset(const Dataset& dataset);
  PerWorkerDataset create_per_worker_dataset(std::function<Dataset(const InputContext&)> make);
  /// Overload for Strategy::distribute_dataset(), which the function calls on each worker:
  /// iterators return batches for the worker's replicas. Every pass is the dataset's first epoch.
  PerWorkerDistributedDataset create_per_worker_dataset(
      std::function<DistributedDataset(const InputContext&)> make);

  /// Saves a version of the checkpoint now, including changes made outside closures, and returns
  /// when it is on disk. Throws the error that prevented it; kDeadlineExceeded; kFailedPrecondition
  /// without a checkpoint_folder.
  void save_checkpoint(TimePoint deadline = TimePoint::max());
  /// Returns the number of closures scheduled so far by all coordinators of the strategy. After
  /// start() with a checkpoint, that is the number of closures that it contains, so a restarted
  /// program continues with the closure of this number.
  std::uint64_t num_scheduled() const;

  bool operator==(const ClusterCoordinator&) const = default;

 private:
  friend struct internal::CoordinatorTestAccess;
  internal::StepRegistry& registry_to_define(std::string_view step);
  std::uint64_t define_resource(
      std::string type, std::string text,
      std::function<std::shared_ptr<void>(int worker, std::uint64_t instance)> make);
  PerWorkerHandle new_handle(std::uint64_t id, std::string type);
  /// `make` receives the worker's context and a number that is different for each worker and pass.
  template <class Iterator>
  PerWorkerDatasetOf<Iterator> define_dataset(
      std::function<std::shared_ptr<Iterator>(const InputContext&, std::uint64_t epoch)> make);

  std::shared_ptr<internal::CoordinatorCore> core_;
};

}  // namespace tutti

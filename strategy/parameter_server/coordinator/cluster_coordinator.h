// Schedules steps on workers, whoever of them lives: asynchronous training with parameter servers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
#include "tutti/strategy/input_plan.h"
#include "tutti/strategy/parameter_server/coordinator/per_worker.h"
#include "tutti/strategy/parameter_server/coordinator/remote_value.h"
#include "tutti/strategy/parameter_server/coordinator/snapshot_options.h"
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"
#include "tutti/strategy/parameter_server/coordinator/watchdog.h"

namespace tutti {

class CoordinatedStrategy;

/// How a coordinator gives closures out, how often it tries again, and what it keeps. What
/// makes no sense is kInvalidArgument when the coordinator is made.
struct ClusterCoordinatorOptions {
  /// schedule() waits while so many closures are queued.
  std::size_t most_queued = 4096;
  /// Closures that one worker has at a time.
  int window = 2;
  /// Attempts that infrastructure may end, and different workers that may die of a closure, before
  /// it fails.
  int most_attempts = 4;
  int most_workers_lost = 2;
  /// Worker i gets its first closure after min(i * start_delay, most_start_delay).
  Duration start_delay = Duration::zero();
  Duration most_start_delay = std::chrono::minutes(5);
  /// Of workers in other processes: start() waits for all of them; after this long it goes on with
  /// those that came.
  Duration join_timeout = std::chrono::seconds(300);
  /// When all workers have been gone for so long, what is queued fails.
  Duration most_absence = std::chrono::hours(1);
  /// Whether a closure that a server's failure ended is tried again, as one that a worker's did, or
  /// fails.
  enum class ServerErrors { kRaise, kRetry } server_errors = ServerErrors::kRaise;
  /// `describe` is filled in.
  WatchdogOptions watchdog = {};
  /// Gets each record of the journal before anybody acts on it; empty: none is kept.
  std::function<void(std::span<const std::byte>)> journal = {};
  /// What is kept on the disk, so that lost servers and coordinators lose nothing. Servers in
  /// processes of their own: ParameterServerOptions::durability.
  SnapshotOptions snapshots = {};
};

namespace internal {
class ClosureQueue;
class CoordinatorCore;
class WorkerLink;
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
  /// Returns when the workers can be given closures. With SnapshotOptions the variables, all made
  /// before, then have the values of the last cut in the folder. Throws kDeadlineExceeded when no
  /// worker came; kFailedPrecondition on a task that has to serve(), and naming the steps that a
  /// worker defines otherwise.
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

  /// Waits until every closure has ended. Throws as schedule(), and kDeadlineExceeded saying what
  /// runs.
  void join(TimePoint deadline = TimePoint::max());
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
  /// worker; nothing for those that do not live. For reading per-worker values.
  template <class... Args>
  std::vector<Nest> run_on_each(std::string_view step, const Args&... arguments) {
    return run_nest_on_each(step, Nest(Nest::List{internal::to_nest(arguments)...}));
  }

  /// With SnapshotOptions: takes a cut now. Variables that were made or assigned outside steps are
  /// in it. Throws what kept the servers from saving; kDeadlineExceeded; kFailedPrecondition
  /// without a folder.
  void save_snapshot(TimePoint deadline = TimePoint::max());
  /// Closures scheduled so far, also by earlier coordinators with the same folder, or of the same
  /// strategy: where a program that was started again goes on.
  std::uint64_t num_scheduled() const;

  /// What runs, what each worker does: for people.
  std::string describe() const;
  bool operator==(const ClusterCoordinator&) const = default;

 private:
  friend struct internal::CoordinatorInside;
  internal::ClosureQueue& closures() const;
  internal::WorkerLink& worker(int index) const;
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

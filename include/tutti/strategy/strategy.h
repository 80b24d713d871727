// Strategy: places variables and runs a step on all replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/json.h"
#include "tutti/core/source_location.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/per_replica.h"
#include "tutti/data/dataset.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/input/input_plan.h"
#include "tutti/strategy/replica_context.h"

namespace tutti {

class CrossDeviceOps;
class StrategyExtended;
struct LocalStrategyOptions;

namespace internal {
class StrategyVariableCreator;
class WorkerTeam;
/// Returns the workers that train together under `strategy`; nullptr if this process trains alone.
WorkerTeam* team_of(const Strategy& strategy);
template <class T>
const T& argument_of_replica(const T& value, std::size_t) {
  return value;
}
template <class T>
const T& argument_of_replica(const PerReplica<T>& value, std::size_t replica) {
  return value[value.size() == 1 ? 0 : replica];
}
}  // namespace internal

/// Base class of strategies, which distribute training over replicas. Concurrent calls from user
/// threads are serialized. A subclass decides where variables are stored; the StrategyExtended
/// member implements what is common to strategies that run replicas on threads, and owns those
/// threads. Not copyable. Corresponds to tf.distribute.Strategy.
class Strategy {
 public:
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// Returns the name that --strategy accepts: "one_device", "mirrored", "central_storage", ...
  virtual std::string_view name() const;
  /// Returns the number of replicas, on all workers, over which gradients are summed.
  virtual int num_replicas_in_sync() const;
  /// Returns the device of each local replica, in replica order; a device may occur several times.
  virtual std::span<const Device> replica_devices() const;
  /// Return the number of processes that train together, the index of this process, and the index
  /// of its first replica among all num_replicas_in_sync() (in worker order).
  virtual int num_workers() const;
  virtual int worker() const;
  virtual int first_replica() const;
  /// Returns true if this process writes checkpoints, logs and reports: worker 0.
  virtual bool is_chief() const { return worker() == 0; }
  /// On a task that does not train (a parameter server, or a chief whose workers train
  /// independently), serves or waits until the training tasks are done, and returns the exit code
  /// of this process. Returns nullopt at once on all other tasks. A program that may run on several
  /// tasks begins with `if (const auto code = strategy.serve()) return *code;`.
  virtual std::optional<int> serve() { return std::nullopt; }
  /// Return the distinct compute devices, in order, and the devices that store variables.
  virtual std::vector<Device> worker_devices() const;
  virtual std::vector<Device> parameter_devices() const { return worker_devices(); }
  /// Returns the cross-device operation that combines the values of this process's replicas.
  virtual CrossDeviceOps& cross_device_ops();
  /// Returns the name of the algorithm that sums gradients (between workers, if there are several).
  virtual std::string_view reduction_name();

  /// Returns a scope; variables that this thread creates while the scope is open belong to this
  /// strategy. Scopes of one strategy may be nested, and reopened after close(). Throws
  /// kFailedPrecondition inside another strategy's scope ("Mixing different strategies").
  [[nodiscard]] Scope scope();

  /// Calls fn once per replica, each in its own ReplicaContext and in a DeviceScope of its device:
  /// tensors are created there, and operations copy their inputs there. Each replica receives its
  /// element of a PerReplica<T> argument; all replicas receive the other arguments. Returns fn's
  /// results as a PerReplica, or nothing if fn returns void. If a replica throws, the others are
  /// aborted. run() then rethrows the exception of the lowest-numbered replica that failed on its
  /// own (a tutti::Error with the prefix "replica r, step s: "); see last_failure(). Throws
  /// kFailedPrecondition inside a replica. A result that is a single non-finite number in host
  /// memory is logged once as a warning.
  template <class Fn, class... Args>
  auto run(Fn&& fn, const Args&... args) {
    using R = std::invoke_result_t<Fn&, decltype(internal::argument_of_replica(args, 0))...>;
    (check_argument(args), ...);
    if constexpr (std::is_void_v<R>) {
      run_on_replicas([&](ReplicaContext& context) {
        [[maybe_unused]] const auto i = static_cast<std::size_t>(context.local_index());
        (note_argument(context, internal::argument_of_replica(args, i)), ...);
        fn(internal::argument_of_replica(args, i)...);
      });
    } else {
      std::vector<std::optional<R>> results(num_bodies());
      run_on_replicas([&](ReplicaContext& context) {
        [[maybe_unused]] const auto i = static_cast<std::size_t>(context.local_index());
        (note_argument(context, internal::argument_of_replica(args, i)), ...);
        results[i].emplace(fn(internal::argument_of_replica(args, i)...));
        note_result(context, *results[i]);
      });
      results.resize(replica_devices().size());  // A mesh has only one position's result.
      std::vector<R> values;
      values.reserve(results.size());
      for (auto& result : results) values.push_back(std::move(*result));
      return PerReplica<R>(std::move(values));
    }
  }

  /// Combines one value per replica (SUM or MEAN) on the first parameter device, in the order that
  /// cross_device_ops() uses. With `axis`, reduces over both replicas and that axis; MEAN divides
  /// by the axis's total length over all replicas, so it is exact even if lengths differ, and
  /// returns float32 for integers. Without `axis`, reduces elementwise; shapes must be equal. Must
  /// be called in a cross-replica context or in the default context.
  Tensor reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<int> axis = {},
                const SourceLocation& where = SourceLocation::current());
  Tensor reduce(std::string_view op, const PerReplica<Tensor>& value, std::optional<int> axis = {},
                const SourceLocation& where = SourceLocation::current());
  /// Same as reduce() above, but over several axes.
  Tensor reduce(ReduceOp op, const PerReplica<Tensor>& value, std::span<const int> axes,
                const SourceLocation& where = SourceLocation::current());
  /// Overload for a value that is not distributed: MEAN returns the value; SUM throws
  /// kInvalidArgument if there is more than one replica.
  Tensor reduce(ReduceOp op, const Tensor& value, std::optional<int> axis = {});
  /// Returns a copy of the reduced value on each device of `destinations`.
  PerReplica<Tensor> reduce_to(ReduceOp op, const PerReplica<Tensor>& value,
                               std::span<const Device> destinations,
                               const SourceLocation& where = SourceLocation::current());
  /// Reduces many values in packed form. Returns the results in the order of the pairs.
  std::vector<PerReplica<Tensor>> batch_reduce_to(
      ReduceOp op,
      std::span<const std::pair<PerReplica<Tensor>, std::vector<Device>>> value_destination_pairs,
      const SourceLocation& where = SourceLocation::current());
  /// Returns a copy of `value` on each device of `destinations`.
  PerReplica<Tensor> broadcast_to(const Tensor& value, std::span<const Device> destinations);
  /// Returns the replicas' values, concatenated in replica order along `axis`.
  Tensor gather(const PerReplica<Tensor>& value, int axis,
                const SourceLocation& where = SourceLocation::current());
  /// Throws kUnimplemented: sparse values cannot be gathered.
  Tensor gather(const PerReplica<IndexedSlices>& value, int axis);

  /// Calls fn(component, argument) for each component of `variable`, one after the other, in a
  /// DeviceScope of the component's device. fn receives a Variable that has only this component.
  void update(const Variable& variable, const std::function<void(Variable&, const Tensor&)>& fn,
              const PerReplica<Tensor>& argument);
  void update(const Variable& variable, const std::function<void(Variable&, const Tensor&)>& fn,
              const Tensor& argument);
  /// Returns true if the variable was created in the scope of this strategy.
  bool variable_created_in_scope(const Variable& variable) const;

  /// Returns the values of this process's replicas; for a value that is not distributed, a list
  /// with only that value.
  template <class T>
  const std::vector<T>& local_results(const PerReplica<T>& value) const {
    return value.values();
  }
  template <class T>
  std::vector<T> local_results(const T& value) const {
    return {value};
  }

  /// Distributes a dataset batched by the GLOBAL batch size: each replica on each worker gets its
  /// slice. All workers must pass the same dataset (docs/input_sharding.md). Throws
  /// kInvalidArgument ("call dataset.batch()") for a dataset known to yield single examples
  /// (DatasetSource::batch_depth()).
  DistributedDataset distribute_dataset(const Dataset& global, InputOptions options = {});
  /// Calls fn once, so that each worker has one input pipeline. fn returns a dataset batched by the
  /// PER-REPLICA batch size; consecutive elements go to consecutive replicas.
  DistributedDataset distribute_datasets_from_function(
      const std::function<Dataset(const InputContext&)>& fn, InputOptions options = {});
  /// Returns fn(context) for each local replica.
  template <class Fn>
  auto distribute_values_from_function(Fn&& fn) {
    using R = std::invoke_result_t<Fn&, const ValueContext&>;
    std::vector<R> values;
    const int count = static_cast<int>(replica_devices().size());
    for (int r = 0; r < count; ++r) values.push_back(fn(ValueContext{r, num_replicas_in_sync()}));
    return PerReplica<R>(std::move(values));
  }

  /// Returns relative shares of the global batch, one per replica; empty: equal shares.
  virtual std::span<const double> replica_weights() const;

  /// Save and restore the random seed and the step counters, for checkpoints. One of the counters
  /// is part of the random keys.
  virtual Json save_state() const;
  virtual void restore_state(const Json& state);

  /// Description of the last run that failed.
  struct Failure {
    int replica = -1;
    std::uint64_t step = 0;
    std::vector<std::string> messages;  // error of each replica; empty if the replica did not fail
  };
  virtual const Failure& last_failure() const;

  /// Times spent in run() since the last call to take_run_times(); zeros if they are not measured.
  struct RunTimes {
    double run = 0.0;            // seconds that the caller of run() waited
    double communication = 0.0;  // mean seconds per replica in gradient exchange and collectives,
                                 // including waits for other replicas
  };
  virtual RunTimes take_run_times();

  /// Returns the number of programs that XLA has compiled, one per distinct program text; 0 on
  /// other devices.
  int num_compiled() const;
  /// Returns the StableHLO text of the last program that XLA ran; empty if there was none.
  const std::string& last_program() const;
  /// Requests a stop. All workers stop after the same step, on which they agree. Returns
  /// immediately.
  void request_stop(std::string_view reason);
  /// Returns true if training must stop after this step. When a worker has requested a stop, all
  /// workers agree on a step after which they stop. All workers must call this when step number
  /// `step` (1, 2, ...) is done. Waits only for the workers to reach this agreement, for at most 4
  /// s. In a process that trains alone or independently, returns true if request_stop() has been
  /// called since the last call.
  bool stops_after(std::int64_t step);

 protected:
  /// For a strategy with replicas on threads of this process: StrategyExtended implements all
  /// functions above. `team`: the workers that train together, including this process. A run that
  /// fails on one worker fails on all workers, and replica_weights are the weights of all workers'
  /// replicas.
  Strategy(std::string_view name, LocalStrategyOptions options,
           std::shared_ptr<internal::WorkerTeam> team = nullptr);
  /// For a strategy that has no StrategyExtended and must therefore override all functions that
  /// StrategyExtended implements.
  Strategy();
  /// Throws kUnimplemented for a strategy that has no StrategyExtended.
  StrategyExtended& extended() const;
  friend class Scope;
  friend class internal::StrategyVariableCreator;
  friend internal::WorkerTeam* internal::team_of(const Strategy& strategy);
  template <class T>
  void check_argument(const T&) const {}
  template <class T>
  void check_argument(const PerReplica<T>& value) const {
    check_argument_count(value.size());
  }
  void check_argument_count(std::size_t count) const;
  /// Returns the number of times that one call to run() calls its function in this process.
  std::size_t num_bodies() const;
  template <class T>
  static void note_argument(ReplicaContext&, const T&) {}
  static void note_argument(ReplicaContext& context, const Batch& batch) {
    context.note_batch(batch);
  }
  template <class T>
  static void note_result(ReplicaContext&, const T&) {}
  template <std::floating_point T>
  static void note_result(ReplicaContext& context, const T& result) {
    context.note_result(static_cast<double>(result));
  }
  static void note_result(ReplicaContext& context, const Tensor& result);
  InputPlan input_plan(InputCut cut, InputOptions options);

  /// Returns the values of all replicas in replica order; `local` holds the values of this worker's
  /// replicas. With several workers, all of them must call it with the same `who` (this is
  /// checked), and the other workers' values are on the host.
  virtual std::vector<Tensor> values_of_all_replicas(const PerReplica<Tensor>& local,
                                                     std::string_view who);
  /// Calls body once per local replica. Usually calls extended().run(body).
  virtual void run_on_replicas(const std::function<void(ReplicaContext&)>& body) = 0;
  /// Creates a variable's storage from an initial value, inside scope(). Usually calls
  /// extended().create_storage().
  virtual std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                          VariableOptions options) = 0;
  /// Same as create_storage(), but takes an initializer. By default, the initializer computes the
  /// value on the first parameter device.
  virtual std::shared_ptr<VariableStorage> create_storage_from(
      const Variable::Initializer& initializer, const RandomKey& key, VariableOptions options);
  /// In multi-worker training, sets the functions of `plan` that exchange data with other workers.
  virtual void complete_input_plan(InputPlan& plan);

 private:
  PerReplica<Gradient> of_all_replicas(const PerReplica<Tensor>& value, std::string_view who);
  Tensor reduce_values(ReduceOp op, const PerReplica<Tensor>& value);

  Mutex ops_mutex_;  // held during calls to cross_device_ops(), which must not run concurrently
  std::unique_ptr<StrategyExtended> extended_;
  std::atomic<bool> is_asked_to_stop_ = false;  // used if the process is not part of a job
};

/// Returns the strategy that is current outside every scope: one replica on cpu:0. Opening its
/// scope has no effect.
Strategy& default_strategy();

}  // namespace tutti

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

/// Distributes training. Concurrent calls of user threads are serialized. A subclass decides where
/// variables live; the StrategyExtended member holds the shared part of strategies with replicas on
/// threads, and owns and joins these threads. Not copyable. tf.distribute.Strategy.
class Strategy {
 public:
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// Returns "one_device", "mirrored", "central_storage", ...: the names of --strategy.
  virtual std::string_view name() const;
  /// Returns the number of replicas over which gradients are summed, of all workers.
  virtual int num_replicas_in_sync() const;
  /// Returns the device of each local replica, in replica order; a device may occur several times.
  virtual std::span<const Device> replica_devices() const;
  /// Return the number of processes that train together, this process's number, and the number of
  /// its first replica among all num_replicas_in_sync() (numbered in worker order).
  virtual int num_workers() const;
  virtual int worker() const;
  virtual int first_replica() const;
  /// Returns true if this process writes checkpoints, logs and reports: worker 0.
  virtual bool is_chief() const { return worker() == 0; }
  /// Serves or waits on a task that does not train (a parameter server, or a chief whose workers
  /// train by themselves) until the training tasks are done, and returns the exit code of this
  /// process. Returns nullopt at once on all other tasks. A program that may run on several tasks
  /// begins with `if (const auto code = strategy.serve()) return *code;`.
  virtual std::optional<int> serve() { return std::nullopt; }
  /// Return the distinct devices that compute, in order, and those that hold variables.
  std::vector<Device> worker_devices() const;
  virtual std::vector<Device> parameter_devices() const { return worker_devices(); }
  /// Returns the operation that combines values of this process.
  virtual CrossDeviceOps& cross_device_ops();
  /// Returns the name of the algorithm that sums gradients (between workers, if there are several).
  virtual std::string_view reduction_name();

  /// Returns a scope; while it lives, variables made by this thread belong to this strategy. Scopes
  /// of one strategy may be nested, and reopened after close(). Throws kFailedPrecondition inside
  /// another strategy's scope ("Mixing different strategies").
  [[nodiscard]] Scope scope();

  /// Calls fn once per replica, each in its own ReplicaContext and in a DeviceScope of its device:
  /// tensors are created there, and operations copy their inputs there. PerReplica<T> arguments are
  /// split, others passed to all. Returns PerReplica of fn's results (void: nothing). If a replica
  /// throws, the others are aborted. run() then rethrows the original exception of the
  /// lowest-numbered replica that did not merely get kAborted (a tutti::Error with prefix "replica
  /// r, step s: "); see last_failure(). Throws kFailedPrecondition inside a replica. A result that
  /// is one non-finite floating number in host memory is logged once as a warning.
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
      results.resize(replica_devices().size());  // positions of a mesh return the same value
      std::vector<R> values;
      values.reserve(results.size());
      for (auto& result : results) values.push_back(std::move(*result));
      return PerReplica<R>(std::move(values));
    }
  }

  /// Combines one value per replica (SUM or MEAN), on the first parameter device, in the order of
  /// cross_device_ops(). With `axis`: reduces over replicas and that axis; MEAN divides by the
  /// axis's total length, so it is exact for uneven replicas, and integers give float32. Without:
  /// elementwise, for equal shapes. Cross-replica or default context only.
  Tensor reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<int> axis = {},
                const SourceLocation& where = SourceLocation::current());
  Tensor reduce(std::string_view op, const PerReplica<Tensor>& value, std::optional<int> axis = {},
                const SourceLocation& where = SourceLocation::current());
  /// Same as above, but over several axes.
  Tensor reduce(ReduceOp op, const PerReplica<Tensor>& value, std::span<const int> axes,
                const SourceLocation& where = SourceLocation::current());
  /// Overload for a value that is not distributed: MEAN returns it; SUM throws kInvalidArgument
  /// with more than one replica.
  Tensor reduce(ReduceOp op, const Tensor& value, std::optional<int> axis = {});
  /// Returns the reduced value on each device of `destinations`.
  PerReplica<Tensor> reduce_to(ReduceOp op, const PerReplica<Tensor>& value,
                               std::span<const Device> destinations,
                               const SourceLocation& where = SourceLocation::current());
  /// Reduces many values at once, packed; results are in the order of the pairs.
  std::vector<PerReplica<Tensor>> batch_reduce_to(
      ReduceOp op,
      std::span<const std::pair<PerReplica<Tensor>, std::vector<Device>>> value_destination_pairs,
      const SourceLocation& where = SourceLocation::current());
  /// Returns `value` on each of these devices.
  PerReplica<Tensor> broadcast_to(const Tensor& value, std::span<const Device> destinations);
  /// Concatenates over replicas in replica order along `axis`.
  Tensor gather(const PerReplica<Tensor>& value, int axis,
                const SourceLocation& where = SourceLocation::current());
  /// Throws kUnimplemented naming this function.
  Tensor gather(const PerReplica<IndexedSlices>& value, int axis);

  /// Calls fn(component, argument) for each component of `variable`, one after the other, in a
  /// DeviceScope of the component's device. The component is a Variable with only that component.
  void update(const Variable& variable, const std::function<void(Variable&, const Tensor&)>& fn,
              const PerReplica<Tensor>& argument);
  void update(const Variable& variable, const std::function<void(Variable&, const Tensor&)>& fn,
              const Tensor& argument);
  /// Returns true if the variable was made in the scope of this strategy.
  bool variable_created_in_scope(const Variable& variable) const;

  /// Returns the values of this process's replicas; a value that is not distributed, as a list.
  template <class T>
  const std::vector<T>& local_results(const PerReplica<T>& value) const {
    return value.values();
  }
  template <class T>
  std::vector<T> local_results(const T& value) const {
    return {value};
  }

  /// Distributes a dataset batched by the GLOBAL batch: each replica, also of other workers, gets
  /// its slice. All workers must pass the same dataset (docs/deviations.md: one cutting rule).
  /// Throws kInvalidArgument ("call dataset.batch()") for a dataset known to yield single examples
  /// (DatasetSource::batch_depth()).
  DistributedDataset distribute_dataset(const Dataset& global, InputOptions options = {});
  /// Calls fn once (one input pipeline per worker), which returns a dataset batched by the
  /// PER-REPLICA batch; consecutive elements go to consecutive replicas.
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

  /// Returns shares of the global batch, one per replica, in any unit; empty: equal shares.
  virtual std::span<const double> replica_weights() const;

  /// Save and restore the step numbers that a checkpoint stores; one of them keys random numbers.
  virtual Json save_state() const;
  virtual void restore_state(const Json& state);

  /// Description of the last run that failed.
  struct Failure {
    int replica = -1;
    std::uint64_t step = 0;
    std::vector<std::string> messages;  // of each replica; empty if it had none
  };
  virtual const Failure& last_failure() const;

  /// Times of run() since the last call; zeros if they are not measured.
  struct RunTimes {
    double run = 0.0;            // seconds that the caller of run() waited
    double communication = 0.0;  // seconds per replica, on average, in gradient exchange and
                                 // collectives, including waits for other replicas
  };
  virtual RunTimes take_run_times();

  /// Returns the number of programs, one per new text, that XLA has compiled; 0 on other devices.
  int num_compiled() const;
  /// Returns the StableHLO text of the last program that XLA ran; empty if there was none.
  const std::string& last_program() const;
  /// Requests all workers to stop after a step that they agree on. Returns at once.
  void request_stop(std::string_view reason);
  /// Returns true after the same step on all workers, once one has requested a stop. All workers
  /// call it when step number `step` (1, 2, ...) is done. Waits 4 s at most, and only while they
  /// agree. In a process that trains alone or independently: true if stopped since the last call.
  bool stops_after(std::int64_t step);

 protected:
  /// For a strategy with replicas on threads of this process, for which StrategyExtended implements
  /// all functions above. `team`: the workers that train together, including this process. A run
  /// that fails on one of them fails on all, and replica_weights are those of all replicas.
  Strategy(std::string_view name, LocalStrategyOptions options,
           std::shared_ptr<internal::WorkerTeam> team = nullptr);
  /// For a strategy without such replicas; it overrides all that StrategyExtended implements.
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
  /// Returns how often run() calls its function in this process.
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

  /// Returns the values of all replicas in replica order, given `local`, those of this worker. With
  /// several workers, all call it, `who` is compared, and values of the others are on the host.
  virtual std::vector<Tensor> values_of_all_replicas(const PerReplica<Tensor>& local,
                                                     std::string_view who);
  /// Calls body once per local replica, usually by extended().run(body).
  virtual void run_on_replicas(const std::function<void(ReplicaContext&)>& body) = 0;
  /// Creates a variable's storage inside scope() from an initial value, e.g. by
  /// extended().create_storage().
  virtual std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                          VariableOptions options) = 0;
  /// Same as create_storage(), but by default makes the value on the first parameter device.
  virtual std::shared_ptr<VariableStorage> create_storage_from(
      const Variable::Initializer& initializer, const RandomKey& key, VariableOptions options);
  /// Sets InputPlan::rows_of_workers if there are several workers.
  virtual void complete_input_plan(InputPlan& plan);

 private:
  PerReplica<Gradient> of_all_replicas(const PerReplica<Tensor>& value, std::string_view who);
  Tensor reduce_values(ReduceOp op, const PerReplica<Tensor>& value);

  Mutex ops_mutex_;  // held while cross_device_ops() works: it takes one call at a time
  std::unique_ptr<StrategyExtended> extended_;
  std::atomic<bool> is_asked_to_stop_ = false;  // for a process that is not part of a job
};

/// Returns the strategy outside every scope: one replica on cpu:0, whose scope changes nothing.
Strategy& default_strategy();

}  // namespace tutti

// The strategy: where variables live and how a step runs on all replicas.
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
/// Returns the workers that train together under `strategy`; nullptr where this process trains
/// alone.
WorkerTeam* team_of(const Strategy& strategy);
template <class T>
const T& argument_of_replica(const T& value, std::size_t) {
  return value;
}
template <class T>
const T& argument_of_replica(const PerReplica<T>& value, std::size_t replica) {
  return value[replica];
}
}  // namespace internal

/// Distributes training. One user thread at a time calls it (others wait). What strategies with
/// replicas on threads share is a member, the StrategyExtended that owns and joins these threads;
/// a subclass adds where variables live. tf.distribute.Strategy. Not copyable.
class Strategy {
 public:
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// "one_device", "mirrored", "central_storage": the names of --strategy.
  virtual std::string_view name() const;
  /// Replicas over which gradients are summed: of all workers.
  virtual int num_replicas_in_sync() const;
  /// The device of each local replica, in replica order; a device may occur several times.
  virtual std::span<const Device> replica_devices() const;
  /// The processes that train together, the number of this one, and the first of its replicas
  /// among all num_replicas_in_sync() (numbered in worker order).
  virtual int num_workers() const;
  virtual int worker() const;
  virtual int first_replica() const;
  /// Whether this process writes checkpoints, logs and reports: of several workers, worker 0.
  virtual bool is_chief() const { return worker() == 0; }
  /// On a task that does not train (a parameter server, or a chief whose workers train by
  /// themselves): serves, or waits, until those that train are done, and returns the exit code for
  /// this process. On all other tasks: nothing, at once. A program that may run on several tasks
  /// begins with `if (const auto code = strategy.serve()) return *code;`.
  virtual std::optional<int> serve() { return std::nullopt; }
  /// The devices that compute, each once, in order; and those that hold variables.
  std::vector<Device> worker_devices() const;
  virtual std::vector<Device> parameter_devices() const { return worker_devices(); }
  /// The operation that combines values of this process.
  virtual CrossDeviceOps& cross_device_ops();
  /// What sums gradients, for logs and metrics: between workers, where there are several.
  virtual std::string_view reduction_name();

  /// While the returned object lives, variables made by this thread are this strategy's. May be
  /// entered again while open, and used again after it was closed. Throws kFailedPrecondition
  /// inside another strategy's scope ("Mixing different strategies").
  [[nodiscard]] Scope scope();

  /// Calls fn once per replica, each in its own ReplicaContext and in a DeviceScope of its device:
  /// tensors are made there, and operations move there what is elsewhere. PerReplica<T> arguments
  /// are split, others passed to all. Returns PerReplica of what fn returns (void: nothing). If a
  /// replica throws, the others are aborted and the original exception of the lowest-numbered
  /// replica that did not merely see kAborted is thrown again (a tutti::Error with "replica r,
  /// step s: " in front); see last_failure(). kFailedPrecondition inside a replica. A result that
  /// is one floating number, in the host's memory, and is not finite is named in a warning, once.
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
      std::vector<std::optional<R>> results(replica_devices().size());
      run_on_replicas([&](ReplicaContext& context) {
        [[maybe_unused]] const auto i = static_cast<std::size_t>(context.local_index());
        (note_argument(context, internal::argument_of_replica(args, i)), ...);
        results[i].emplace(fn(internal::argument_of_replica(args, i)...));
        note_result(context, *results[i]);
      });
      std::vector<R> values;
      values.reserve(results.size());
      for (auto& result : results) values.push_back(std::move(*result));
      return PerReplica<R>(std::move(values));
    }
  }

  /// Combines one value per replica (SUM or MEAN), on the first parameter device. With `axis`: the
  /// sum over replicas and over that axis; MEAN divides by the total length of the axis, so it is
  /// exact for uneven replicas, and integers give float32. Without: elementwise, shapes must be
  /// equal. In the order of cross_device_ops(). Cross-replica or default context only.
  Tensor reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<int> axis = {},
                const SourceLocation& where = SourceLocation::current());
  Tensor reduce(std::string_view op, const PerReplica<Tensor>& value, std::optional<int> axis = {},
                const SourceLocation& where = SourceLocation::current());
  /// Several axes at once.
  Tensor reduce(ReduceOp op, const PerReplica<Tensor>& value, std::span<const int> axes,
                const SourceLocation& where = SourceLocation::current());
  /// A value that is not distributed: MEAN gives it back, SUM is an error with more than one
  /// replica (kInvalidArgument).
  Tensor reduce(ReduceOp op, const Tensor& value, std::optional<int> axis = {});
  /// The reduced value on each device of `destinations`.
  PerReplica<Tensor> reduce_to(ReduceOp op, const PerReplica<Tensor>& value,
                               std::span<const Device> destinations,
                               const SourceLocation& where = SourceLocation::current());
  /// Many values at once, packed; results in the order of the pairs.
  std::vector<PerReplica<Tensor>> batch_reduce_to(
      ReduceOp op,
      std::span<const std::pair<PerReplica<Tensor>, std::vector<Device>>> value_destination_pairs,
      const SourceLocation& where = SourceLocation::current());
  /// `value` on each of these devices.
  PerReplica<Tensor> broadcast_to(const Tensor& value, std::span<const Device> destinations);
  /// Concatenates over replicas in replica order along `axis`.
  Tensor gather(const PerReplica<Tensor>& value, int axis,
                const SourceLocation& where = SourceLocation::current());
  /// Names the API in its kUnimplemented.
  Tensor gather(const PerReplica<IndexedSlices>& value, int axis);

  /// Calls fn(component, argument) for each component of `variable`, one after the other, in a
  /// DeviceScope of the component's device; the component is a Variable that reads and writes that
  /// component alone.
  void update(const Variable& variable, const std::function<void(Variable&, const Tensor&)>& fn,
              const PerReplica<Tensor>& argument);
  void update(const Variable& variable, const std::function<void(Variable&, const Tensor&)>& fn,
              const Tensor& argument);
  /// Whether the scope of this strategy made the variable.
  bool variable_created_in_scope(const Variable& variable) const;

  /// The values of this process's replicas; of a value that is not distributed, itself.
  template <class T>
  const std::vector<T>& local_results(const PerReplica<T>& value) const {
    return value.values();
  }
  template <class T>
  std::vector<T> local_results(const T& value) const {
    return {value};
  }

  /// `global` is batched by the GLOBAL batch; each replica gets its slice, also of several workers,
  /// which must give the same dataset (docs/deviations.md: one cutting rule). Throws
  /// kInvalidArgument ("try dataset.batch()") for a dataset known to yield single examples
  /// (DatasetSource::batch_depth()).
  DistributedDataset distribute_dataset(const Dataset& global, InputOptions options = {});
  /// fn is called once (one input pipeline per worker) and returns a dataset batched by the
  /// PER-REPLICA batch; consecutive elements go to consecutive replicas.
  DistributedDataset distribute_datasets_from_function(
      const std::function<Dataset(const InputContext&)>& fn, InputOptions options = {});
  /// fn(context) for each local replica.
  template <class Fn>
  auto distribute_values_from_function(Fn&& fn) {
    using R = std::invoke_result_t<Fn&, const ValueContext&>;
    std::vector<R> values;
    const int count = static_cast<int>(replica_devices().size());
    for (int r = 0; r < count; ++r) values.push_back(fn(ValueContext{r, num_replicas_in_sync()}));
    return PerReplica<R>(std::move(values));
  }

  /// Shares of the global batch, one per replica, in any unit; empty: equal shares.
  virtual std::span<const double> replica_weights() const;

  /// The step number that keys random numbers, as a checkpoint keeps it.
  virtual Json save_state() const;
  virtual void restore_state(const Json& state);

  /// What went wrong in the last run that failed.
  struct Failure {
    int replica = -1;
    std::uint64_t step = 0;
    std::vector<std::string> messages;  // of every replica; empty where it had none
  };
  virtual const Failure& last_failure() const;

  /// Where the time of run() went since the last call; zeros where there is nothing to split.
  struct RunTimes {
    double run = 0.0;            // seconds that the caller of run() waited for it
    double communication = 0.0;  // seconds of a replica, on average, in gradient exchange and
                                 // collectives, waiting for the others included
  };
  virtual RunTimes take_run_times();

  /// Programs that XLA has compiled so far: a step whose text is known needs none. 0 on other
  /// devices.
  int num_compiled() const;
  /// The program of the last step that XLA ran, as text of StableHLO; empty: none did.
  const std::string& last_program() const;
  /// Asks all workers that train together to stop after a step that they agree on. Returns at once.
  void request_stop(std::string_view reason);
  /// Called by all workers when step number `step` (1, 2, ...) is done: true after the same step on
  /// all, once one has asked. Waits 4 s at most, and only while they agree. Where this process
  /// trains alone, or apart from the others: whether it was asked since the last call.
  bool stops_after(std::int64_t step);

 protected:
  /// A strategy with replicas on threads of this process, for which StrategyExtended answers all
  /// functions above. `team`: the workers that train together, of which this process is one. Then a
  /// run that fails here ends theirs, and the other way round; replica_weights are those of all
  /// replicas.
  Strategy(std::string_view name, LocalStrategyOptions options,
           std::shared_ptr<internal::WorkerTeam> team = nullptr);
  /// A strategy without such replicas, which overrides all that StrategyExtended would answer.
  Strategy();
  /// Throws kUnimplemented for a strategy that has none.
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

  /// The values of all replicas in replica order: `local` of this worker's, with several workers
  /// also those of the others, on the host. Then all workers call it; `who` is compared.
  virtual std::vector<Tensor> values_of_all_replicas(const PerReplica<Tensor>& local,
                                                     std::string_view who);
  /// Calls body once per local replica: extended().run(body).
  virtual void run_on_replicas(const std::function<void(ReplicaContext&)>& body) = 0;
  /// Makes a variable's storage inside scope(), from an initial value, such as
  /// extended().create_storage().
  virtual std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                          VariableOptions options) = 0;
  /// The same from what makes the initial value; here it does so on the first parameter device.
  virtual std::shared_ptr<VariableStorage> create_storage_from(
      const Variable::Initializer& initializer, const RandomKey& key, VariableOptions options);
  /// With several workers: sets InputPlan::rows_of_workers.
  virtual void complete_input_plan(InputPlan& plan);

 private:
  PerReplica<Gradient> of_all_replicas(const PerReplica<Tensor>& value, std::string_view who);
  Tensor reduce_values(ReduceOp op, const PerReplica<Tensor>& value);

  Mutex ops_mutex_;  // held while cross_device_ops() works: it takes one call at a time
  std::unique_ptr<StrategyExtended> extended_;
  std::atomic<bool> is_asked_to_stop_ = false;  // without a job to ask
};

/// One replica on cpu:0, whose scope changes nothing: what get_strategy() returns when there is
/// none.
Strategy& default_strategy();

}  // namespace tutti

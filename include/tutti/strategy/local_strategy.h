// What strategies with replicas on threads share: options, runs, reduction of gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/registry.h"
#include "tutti/strategy/strategy.h"
#include "tutti/strategy/variables/placement.h"
#include "tutti/tensor/device.h"

namespace tutti {

class LocalStrategy;
namespace internal {
class WorkerTeam;
WorkerTeam* team_of(const LocalStrategy& strategy);
}  // namespace internal

/// Devices by value or by name: `{"gpu:0", "gpu:1"}`, "cpu:0-3".
struct DeviceList {
  DeviceList() = default;
  DeviceList(std::initializer_list<const char*> names);
  DeviceList(std::vector<Device> list) : devices(std::move(list)) {}
  DeviceList(std::string_view list) : devices(parse_devices(list)) {}
  DeviceList(const std::string& list) : devices(parse_devices(list)) {}
  DeviceList(const char* list) : devices(parse_devices(list)) {}
  std::vector<Device> devices;
};

/// kThreads: replica 0 on the thread that calls run(), each other on its own. kSequential: the same
/// threads, but one at a time in replica order, each until it blocks: a deterministic schedule for
/// tests.
enum class ReplicaExecution { kThreads, kSequential };

/// The devices and replicas of this process, and how their values are combined: what all strategies
/// take. Checked when the strategy is made (kInvalidArgument, kUnimplemented name the field).
struct LocalStrategyOptions {
  /// Which devices compute; empty: default_devices(), every GPU or else the CPU. On those of XLA
  /// ("xla:0-3") each run() is one compiled program (TpuStrategy), which options of how gradients
  /// are summed and of unequal shares have no part in (kInvalidArgument), and replica r of xla:i
  /// has its tensors on cpu:i for the host. MirroredStrategy, OneDeviceStrategy and TpuStrategy.
  DeviceList devices = {};
  /// Number of replicas; 0: one per device. Replica r runs on device r * num_devices / replicas
  /// (consecutive replicas share a device).
  int replicas = 0;
  /// Unset: canonical; on GPUs as CrossDeviceOpsSpec::name says.
  CrossDeviceOpsSpec cross_device_ops = {};
  /// Unset: canonical unless another operation is named (or taken, on GPUs), which is then used
  /// with one line that same bits are not promised. true: canonical where none is named; another
  /// one that is not canonical is an error. false: no line.
  std::optional<bool> deterministic = std::nullopt;
  ReplicaExecution execution = ReplicaExecution::kThreads;
  /// Shares of the global batch for devices of different speed; one positive number per replica, or
  /// none.
  std::vector<double> replica_weights = {};
  /// How long a replica waits for the others in a collective before kDeadlineExceeded names those
  /// missing.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Base of OneDeviceStrategy, MirroredStrategy, CentralStorageStrategy and, with other workers
/// beside this process, of MultiWorkerMirroredStrategy.
class LocalStrategy : public Strategy {
 public:
  ~LocalStrategy() override;
  int num_replicas_in_sync() const override;
  int num_workers() const override;
  int worker() const override;
  int first_replica() const override;
  std::span<const Device> replica_devices() const override;
  std::span<const double> replica_weights() const override;
  CrossDeviceOps& cross_device_ops() override;
  std::string_view reduction_name() override;
  Json save_state() const override;
  void restore_state(const Json& state) override;
  const Failure& last_failure() const override;
  RunTimes take_run_times() override;
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
  /// The workers that train together; nullptr where this process trains alone.
  internal::WorkerTeam* team() const;
  friend internal::WorkerTeam* internal::team_of(const LocalStrategy& strategy);
  /// `team`: the workers that train together, of which this process is one. Then a run that fails
  /// here ends theirs, and the other way round; replica_weights are those of all replicas.
  LocalStrategy(std::string_view strategy_name, LocalStrategyOptions options,
                std::shared_ptr<internal::WorkerTeam> team = nullptr);
  void complete_input_plan(InputPlan& plan) override;
  std::vector<Tensor> values_of_all_replicas(const PerReplica<Tensor>& local,
                                             std::string_view who) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;
  /// ON_READ variables, and others mirrored on the replicas' devices.
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  /// The storage of an ON_READ variable: one component per replica.
  std::shared_ptr<VariableStorage> create_on_read_storage(const Tensor& initial_value,
                                                          VariableOptions options);
  /// The storage of an ON_WRITE variable: equal components where `placement` says (on GPUs with
  /// options.on_host: one, in the host's memory), kept equal by every write. The replicas that
  /// share a component share the work of its updates.
  std::shared_ptr<VariableStorage> create_mirrored_storage(
      const Tensor& initial_value, VariableOptions options,
      const std::shared_ptr<const Placement>& placement);
  /// Throws kInvalidArgument naming the variable unless synchronization and aggregation are known
  /// and not NONE; whether ON_READ.
  bool is_on_read(const VariableOptions& options) const;
  /// Called once per update of a step, by one replica, when all have applied theirs and before any
  /// goes on.
  void set_after_updates(std::function<void()> action);
  /// Replicas of this process are number `first` and following of `total`, whose others it
  /// exchanges no values with. Before the first run.
  void number_replicas_apart(int first, int total);
  /// Runs that ended well; a checkpoint holds it, and next to it the number of those after which
  /// random numbers change.
  std::uint64_t num_steps() const;
  /// Which replica is to apply updates of a variable of `num_bytes`: spreads bytes over replicas in
  /// order of creation.
  int next_work_number(std::size_t num_bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

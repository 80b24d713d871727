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

/// What strategies with replicas on threads of this process share: the replicas and their devices,
/// how a step runs on them, its number and failures, and variables of equal components. A member of
/// Strategy. tf.distribute.StrategyExtended.
class StrategyExtended {
 public:
  /// As the constructor of Strategy; `ops_mutex` is held while the operation of `options` works.
  StrategyExtended(Strategy& strategy, Mutex& ops_mutex, std::string_view name,
                   LocalStrategyOptions options, std::shared_ptr<internal::WorkerTeam> team);
  ~StrategyExtended();
  StrategyExtended(const StrategyExtended&) = delete;
  StrategyExtended& operator=(const StrategyExtended&) = delete;

  /// Calls body once per local replica, each on its thread. What Strategy::run() documents.
  void run(const std::function<void(ReplicaContext&)>& body);
  /// The storage of a variable. ON_READ: one component per replica. Otherwise equal components
  /// where `placement` says, kept equal by every write; nullptr: on all devices of replicas. On
  /// GPUs with options.on_host: one, in the host's memory. The replicas that share a component
  /// share the work of its updates. Throws as is_on_read().
  std::shared_ptr<VariableStorage> create_storage(
      const Tensor& initial_value, VariableOptions options,
      std::shared_ptr<const Placement> placement = nullptr);
  /// Throws kInvalidArgument naming the variable unless synchronization and aggregation are known
  /// and not NONE; whether ON_READ.
  bool is_on_read(const VariableOptions& options) const;
  /// Which replica is to apply updates of a variable of `num_bytes`: spreads bytes over replicas in
  /// order of creation.
  int next_work_number(std::size_t num_bytes);
  /// Called once per update of a step, by one replica, when all have applied theirs and before any
  /// goes on.
  void set_after_updates(std::function<void()> action);
  /// Replicas of this process are number `first` and following of `total`, whose others it
  /// exchanges no values with. Before the first run.
  void number_replicas_apart(int first, int total);
  /// Runs that ended well; a checkpoint holds it, and next to it the number of those after which
  /// random numbers change.
  std::uint64_t num_steps() const;
  /// The workers that train together; nullptr where this process trains alone.
  internal::WorkerTeam* team() const;

 private:
  friend class Strategy;
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

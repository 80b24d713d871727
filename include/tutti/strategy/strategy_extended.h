// Shared part of strategies with replicas on threads: options, runs, reduction of gradients.
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

namespace internal {
struct ReplicaServices;
}  // namespace internal

/// List of devices, by value or by name: `{"gpu:0", "gpu:1"}`, "cpu:0-3".
struct DeviceList {
  DeviceList() = default;
  DeviceList(std::initializer_list<const char*> names);
  DeviceList(std::vector<Device> list) : devices(std::move(list)) {}
  DeviceList(std::string_view list) : devices(parse_devices(list)) {}
  DeviceList(const std::string& list) : devices(parse_devices(list)) {}
  DeviceList(const char* list) : devices(parse_devices(list)) {}
  std::vector<Device> devices;
};

/// Scheduling of replicas. kThreads: replica 0 runs on the thread that calls run(), each other
/// replica on its own thread. kSequential: the same threads, but one at a time in replica order,
/// each until it blocks; a deterministic schedule for tests.
enum class ReplicaExecution { kThreads, kSequential };

/// Devices and replicas of this process, and how their values are combined. All strategies take and
/// check them in the constructor (kInvalidArgument and kUnimplemented name the field).
struct LocalStrategyOptions {
  /// Devices that compute; empty: default_devices(), every GPU or else the CPU. On XLA devices
  /// ("xla:0-3") each run() is one compiled program (TpuStrategy); options on how gradients are
  /// summed and on unequal shares then throw kInvalidArgument, and replica r of xla:i keeps its
  /// tensors on cpu:i for the host. XLA: MirroredStrategy, OneDeviceStrategy and TpuStrategy only.
  DeviceList devices = {};
  /// Number of replicas; 0: one per device. Replica r runs on device r * num_devices / replicas
  /// (consecutive replicas share a device).
  int replicas = 0;
  /// Unset: canonical; on GPUs see CrossDeviceOpsSpec::name.
  CrossDeviceOpsSpec cross_device_ops = {};
  /// Unset: canonical, unless another algorithm is named (or chosen, on GPUs); a warning then
  /// states that identical bits are not guaranteed. true: canonical if none is named, and an error
  /// if the named one is not canonical. false: like unset, without the warning.
  std::optional<bool> deterministic = std::nullopt;
  ReplicaExecution execution = ReplicaExecution::kThreads;
  /// Shares of the global batch for devices of different speed: one positive number per replica.
  std::vector<double> replica_weights = {};
  /// Time to wait for other replicas in a collective before kDeadlineExceeded names the missing.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Shared implementation of strategies with replicas on threads of this process: the replicas and
/// their devices, how a step runs on them, its number and failures, and variables with equal
/// components. A member of Strategy. tf.distribute.StrategyExtended.
class StrategyExtended {
 public:
  /// Takes the parameters of Strategy's constructor; `ops_mutex` is held while values are combined.
  StrategyExtended(Strategy& strategy, Mutex& ops_mutex, std::string_view name,
                   LocalStrategyOptions options, std::shared_ptr<internal::WorkerTeam> team);
  ~StrategyExtended();
  StrategyExtended(const StrategyExtended&) = delete;
  StrategyExtended& operator=(const StrategyExtended&) = delete;

  /// Calls body once per local replica, each on its thread; see Strategy::run().
  void run(const std::function<void(ReplicaContext&)>& body);
  /// Creates the storage of a variable. ON_READ: one component per replica. Otherwise components
  /// are placed by `placement` and kept equal by every write; nullptr: on all devices of replicas.
  /// With options.on_host on GPUs: one component, in host memory. Replicas that share a component
  /// share the work of its updates. Throws as is_on_read().
  std::shared_ptr<VariableStorage> create_storage(
      const Tensor& initial_value, VariableOptions options,
      std::shared_ptr<const Placement> placement = nullptr);
  /// Returns true if the variable is ON_READ. Throws kInvalidArgument naming the variable unless
  /// synchronization and aggregation are known and not NONE.
  bool is_on_read(const VariableOptions& options) const;
  /// Returns the number of the replica that applies updates of a variable of `num_bytes`; spreads
  /// bytes over replicas in order of creation.
  int next_work_number(std::size_t num_bytes);
  /// Sets an action that one replica calls once per update of a step, after all replicas have
  /// applied theirs and before any continues.
  void set_after_updates(std::function<void()> action);
  /// Numbers the replicas of this process `first` and following, of `total`; no values are
  /// exchanged with the others. Must be called before the first run.
  void number_replicas_apart(int first, int total);
  /// Returns the number of successful runs. A checkpoint stores it, and also the number of those
  /// that train or draw random numbers.
  std::uint64_t num_steps() const;
  /// Returns the workers that train together; nullptr if this process trains alone.
  internal::WorkerTeam* team() const;
  /// Returns what the replicas share, for variables that exchange their parts.
  const internal::ReplicaServices& services() const;

 private:
  friend class Strategy;
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

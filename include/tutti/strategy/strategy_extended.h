// Common implementation of the strategies whose replicas are threads: options, runs, reduction of
// gradients.
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

/// List of devices, given as Device values or by name: `{"gpu:0", "gpu:1"}`, "cpu:0-3".
struct DeviceList {
  DeviceList() = default;
  DeviceList(std::initializer_list<const char*> names);
  DeviceList(std::vector<Device> list) : devices(std::move(list)) {}
  DeviceList(std::string_view list) : devices(parse_devices(list)) {}
  DeviceList(const std::string& list) : devices(parse_devices(list)) {}
  DeviceList(const char* list) : devices(parse_devices(list)) {}
  std::vector<Device> devices;
};

/// Scheduling of replicas. kThreads: replica 0 runs on the thread that calls run(), every other
/// replica on its own thread. kSequential: the same threads run one at a time in replica order,
/// each until it blocks; a deterministic schedule for tests.
enum class ReplicaExecution { kThreads, kSequential };

/// Options for the devices and replicas of this process, and for combining their values. The
/// constructors of all strategies check them, and throw kInvalidArgument or kUnimplemented, naming
/// the invalid field.
struct LocalStrategyOptions {
  /// Devices that compute; empty: default_devices(), i.e. all GPUs, or cpu:0 if there are none. On
  /// XLA devices ("xla:0-3"), each run() is one compiled program (TpuStrategy); setting
  /// `replica_weights` or an option for summing gradients then throws kInvalidArgument, and the
  /// replica on xla:i has cpu:i as its device on the host. Only MirroredStrategy, OneDeviceStrategy
  /// and TpuStrategy support XLA devices.
  DeviceList devices = {};
  /// Number of replicas; 0: one per device. Replica r runs on device r * num_devices / replicas
  /// (consecutive replicas share a device).
  int replicas = 0;
  /// Algorithm that combines values. Unset: canonical; for GPUs, see CrossDeviceOpsSpec::name.
  CrossDeviceOpsSpec cross_device_ops = {};
  /// Unset: canonical, unless another algorithm is named or is chosen for GPUs; a warning then
  /// states that results may not be bit-identical. true: canonical; throws if another algorithm is
  /// named. false: same as unset, but without the warning.
  std::optional<bool> deterministic = std::nullopt;
  ReplicaExecution execution = ReplicaExecution::kThreads;
  /// Relative shares of the global batch, for devices of different speeds: one positive number per
  /// replica.
  std::vector<double> replica_weights = {};
  /// Time to wait for other replicas in a collective before throwing kDeadlineExceeded, which names
  /// the missing replicas.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Shared implementation of strategies with replicas on threads of this process. Owns the replicas,
/// runs steps on them, counts steps and records failures, and creates variables with equal
/// components. Owned by Strategy. Corresponds to tf.distribute.StrategyExtended.
class StrategyExtended {
 public:
  /// Takes the parameters of Strategy's constructor; `ops_mutex` is held while values are being
  /// combined.
  StrategyExtended(Strategy& strategy, Mutex& ops_mutex, std::string_view name,
                   LocalStrategyOptions options, std::shared_ptr<internal::WorkerTeam> team);
  ~StrategyExtended();
  StrategyExtended(const StrategyExtended&) = delete;
  StrategyExtended& operator=(const StrategyExtended&) = delete;

  /// Calls body once per local replica, on the replica's thread; see Strategy::run().
  void run(const std::function<void(ReplicaContext&)>& body);
  /// Creates the storage of a variable. ON_READ: one component per replica. Otherwise, `placement`
  /// places the components, and every write keeps them equal; if it is nullptr, each of the
  /// replicas' devices has one component. With options.on_host on GPUs: one component, in host
  /// memory. Replicas that share a component share the work of its updates. Throws the same errors
  /// as is_on_read().
  std::shared_ptr<VariableStorage> create_storage(
      const Tensor& initial_value, VariableOptions options,
      std::shared_ptr<const Placement> placement = nullptr);
  /// Returns true if the variable is ON_READ. Throws kInvalidArgument, naming the variable, for an
  /// unknown synchronization or aggregation, and for the synchronization NONE.
  bool is_on_read(const VariableOptions& options) const;
  /// Returns the index of the replica that applies updates to the next variable, which has
  /// `num_bytes` bytes. Chooses the replica to which the fewest bytes have been assigned.
  int next_work_number(std::size_t num_bytes);
  /// Sets an action that one replica runs after each update in a step, when all replicas have
  /// applied their updates and before any of them continues.
  void set_after_updates(std::function<void()> action);
  /// Numbers this process's replicas `first`, `first` + 1, ..., out of `total` replicas in all
  /// processes. The processes exchange no values. Must be called before the first run().
  void number_replicas_apart(int first, int total);
  /// Returns the number of successful run() calls. A checkpoint stores it, together with the number
  /// of calls that trained or drew random numbers.
  std::uint64_t num_steps() const;
  /// Returns the workers that train together; nullptr if this process trains alone.
  internal::WorkerTeam* team() const;
  /// Returns the data that replicas share. Variables use it to exchange values.
  const internal::ReplicaServices& services() const;

 private:
  friend class Strategy;
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

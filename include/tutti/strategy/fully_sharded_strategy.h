// Synchronous training with variables, gradients and optimizer slots sharded over the replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "tutti/cluster/control/join_options.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {

class ClusterResolver;
namespace internal {
class ReadAhead;
struct TeamSetup;
}  // namespace internal

/// Options of FullyShardedStrategy.
struct FullyShardedOptions {
  /// With several workers, `replicas` is the number of replicas across all workers, as in
  /// MultiWorkerOptions.
  LocalStrategyOptions local = {};
  /// ZeRO stage, which selects the values that are sharded across the replicas. 1: optimizer slots.
  /// 2: also the sums of gradients. 3: also the parameters; a replica gathers a full parameter only
  /// while a layer uses it.
  int stage = 3;
  /// Used by stage 3 only. If true, parameters gathered for the forward pass are released after the
  /// layer and gathered again for the backward pass; if false, they are kept until the backward
  /// pass. Same as in PyTorch's FSDP.
  bool reshard_after_forward = true;
  /// Variables with fewer bytes are mirrored, because gathering them would cost more than sharding
  /// saves.
  std::int64_t min_shard_bytes = 64 << 10;
  /// Options for connecting the workers and for detecting failed ones.
  WorkerGroupOptions cluster = {};
};

/// Strategy that divides the elements of each variable evenly among the replicas. Each replica
/// stores the optimizer slots of its shard and updates this shard; the ZeRO stage selects what else
/// is sharded. With every ZeRO stage, results are bit-identical to those of MirroredStrategy with
/// the same number of replicas. With several workers, all of them must make the same calls,
/// including saves and reads of variables outside run(). Implements ZeRO (Rajbhandari et al.,
/// "ZeRO: memory optimizations toward training trillion parameter models", SC 2020). Corresponds to
/// PyTorch's fully_shard().
class FullyShardedStrategy final : public Strategy {
 public:
  /// Throws kInvalidArgument, naming the option, if stage is not 1, 2 or 3, or if min_shard_bytes
  /// is negative.
  explicit FullyShardedStrategy(FullyShardedOptions options = {});
  /// Trains on the cluster's chief and workers, or in this process alone if the cluster has no such
  /// tasks. Waits until all of them have joined. Throws the same errors as
  /// MultiWorkerMirroredStrategy.
  explicit FullyShardedStrategy(const ClusterResolver& resolver, FullyShardedOptions options = {});
  /// Same as above, but for workers that are already connected. Ignores options.cluster.
  explicit FullyShardedStrategy(std::unique_ptr<Communicator> communicator,
                                FullyShardedOptions options = {});
  FullyShardedStrategy(std::unique_ptr<Communicator> communicator, LocalStrategyOptions local)
      : FullyShardedStrategy(std::move(communicator),
                             FullyShardedOptions{.local = std::move(local)}) {}
  /// Overload for MirroredStrategy's options; uses the default stage.
  explicit FullyShardedStrategy(LocalStrategyOptions local)
      : FullyShardedStrategy(FullyShardedOptions{.local = std::move(local)}) {}
  template <std::convertible_to<DeviceList> Devices>
  explicit FullyShardedStrategy(const Devices& devices)
      : FullyShardedStrategy(LocalStrategyOptions{.devices = devices}) {}
  /// Returns the ZeRO stage set in the options.
  int stage() const { return stage_; }

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;

 private:
  FullyShardedStrategy(internal::TeamSetup setup, const FullyShardedOptions& options);
  bool is_cut(const Tensor& initial_value, const VariableOptions& options) const;

  const std::shared_ptr<internal::WorkerTeam> team_;  // nullptr if this process trains alone
  const std::shared_ptr<internal::ReadAhead> reads_;  // nullptr if team_ is nullptr
  const int stage_;
  const bool reshard_after_forward_;
  const std::int64_t min_shard_bytes_;
  std::shared_ptr<const Placement> placement_;  // placement of sharded variables
};

}  // namespace tutti

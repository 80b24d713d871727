// Synchronous training with variables, gradients and optimizer slots cut over the replicas.
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

/// Devices and replicas, and what of a variable each replica keeps.
struct FullyShardedOptions {
  /// With several workers `replicas` are those of all, as in MultiWorkerOptions.
  LocalStrategyOptions local = {};
  /// What is cut over the replicas: 1, optimizer slots; 2, sums of gradients, too; 3, parameters,
  /// too: a replica has a whole parameter only while a layer uses it. The stages of ZeRO.
  int stage = 3;
  /// Of stage 3. true: what the forward pass gathered is let go after the layer, and gathered again
  /// for the backward pass; false: it is kept until then. FSDP's word.
  bool reshard_after_forward = true;
  /// Variables of fewer bytes are mirrored: what they would save is less than what they would cost.
  std::int64_t min_shard_bytes = 64 << 10;
  /// How several workers find and watch each other.
  WorkerGroupOptions cluster = {};
};

/// Each replica owns an equal part of every variable and of the optimizer's slots; it gathers whole
/// values when it reads them, gets the sum of gradients of its part, and updates that. The same
/// bits as MirroredStrategy with as many replicas, at every stage. Over several workers, too: then
/// all of them make the same calls, reads of variables outside run and saves among them. ZeRO
/// (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC
/// 2020), PyTorch's fully_shard().
class FullyShardedStrategy final : public Strategy {
 public:
  /// Throws kInvalidArgument naming the option for a stage that is not 1, 2 or 3 and a negative
  /// min_shard_bytes.
  explicit FullyShardedStrategy(FullyShardedOptions options = {});
  /// Over the cluster's chief and workers; without any, this process alone. Waits for all of them.
  /// Throws as MultiWorkerMirroredStrategy.
  explicit FullyShardedStrategy(const ClusterResolver& resolver, FullyShardedOptions options = {});
  /// The same for workers that are connected otherwise. options.cluster is of no use here.
  explicit FullyShardedStrategy(std::unique_ptr<Communicator> communicator,
                                FullyShardedOptions options = {});
  FullyShardedStrategy(std::unique_ptr<Communicator> communicator, LocalStrategyOptions local)
      : FullyShardedStrategy(std::move(communicator),
                             FullyShardedOptions{.local = std::move(local)}) {}
  /// With the default stage: what MirroredStrategy takes.
  explicit FullyShardedStrategy(LocalStrategyOptions local)
      : FullyShardedStrategy(FullyShardedOptions{.local = std::move(local)}) {}
  template <std::convertible_to<DeviceList> Devices>
  explicit FullyShardedStrategy(const Devices& devices)
      : FullyShardedStrategy(LocalStrategyOptions{.devices = devices}) {}
  /// That of the options.
  int stage() const { return stage_; }

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;

 private:
  FullyShardedStrategy(internal::TeamSetup setup, const FullyShardedOptions& options);
  bool is_cut(const Tensor& initial_value, const VariableOptions& options) const;

  const std::shared_ptr<internal::WorkerTeam> team_;  // nullptr: this process alone
  const std::shared_ptr<internal::ReadAhead> reads_;  // nullptr as team_
  const int stage_;
  const bool reshard_after_forward_;
  const std::int64_t min_shard_bytes_;
  std::shared_ptr<const Placement> placement_;  // of what looks like one component
};

}  // namespace tutti

// Synchronous training on the devices of XLA: each step is one compiled program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITHOUT_XLA
#error "this build of tutti leaves XLA out; configure it with -DTUTTI_XLA=ON"
#endif

#include <string>
#include <string_view>

#include "tutti/strategy/strategy_extended.h"
#include "tutti/tensor/xla/xla_devices.h"

namespace tutti {

/// TPUs that a program trains on: tf.distribute.cluster_resolver.TPUClusterResolver. Supports only
/// the TPUs of this host, or the devices of another PJRT plugin in their place (docs/tpu.md).
class TpuClusterResolver {
 public:
  /// "" or "local": this host. Throws kUnimplemented for any other address, naming it.
  explicit TpuClusterResolver(std::string_view tpu = "");
  /// Opens the plugin and returns the number of devices, xla:0 .. xla:count-1. Throws kUnavailable,
  /// with reason and remedy, if that fails.
  int num_devices() const;
  /// Returns "tpu" or "cpu".
  std::string platform() const;
};

/// One replica per XLA device, variables on all of them: MirroredStrategy("xla:0-3") without naming
/// the devices. Each run() traces the operations of the step function and passes them to XLA as one
/// program (StableHLO), compiled if its text is new; values are computed only then. So a step may
/// read on the host only results of earlier steps (kFailedPrecondition for its own values). All
/// replicas must do the same work on the same shapes; kInvalidArgument names the difference (use
/// batch(n, drop_remainder)). An operation without a StableHLO form throws kUnimplemented with its
/// name and line. Results and variables are copied to the host when it reads them.
/// tf.distribute.TPUStrategy.
class TpuStrategy final : public Strategy {
 public:
  /// Without devices, uses the first options.replicas XLA devices; if that is 0, all TPUs, or one
  /// device if the CPU substitutes for them. Throws kInvalidArgument for more devices than exist
  /// and for devices of other kinds, kUnavailable without a plugin, and as
  /// LocalStrategyOptions::devices.
  explicit TpuStrategy(LocalStrategyOptions options = {});
  explicit TpuStrategy(const TpuClusterResolver& resolver, LocalStrategyOptions options = {});

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;
};

}  // namespace tutti

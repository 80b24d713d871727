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

/// Which TPUs a program trains on: tf.distribute.cluster_resolver.TPUClusterResolver. There are
/// those of this host alone, or what another PJRT plugin has in their place (docs/tpu.md).
class TpuClusterResolver {
 public:
  /// "" or "local": this host. Throws kUnimplemented naming any other address.
  explicit TpuClusterResolver(std::string_view tpu = "");
  /// xla:0 .. xla:count-1. Opens the plugin; throws kUnavailable with reason and remedy.
  int num_devices() const;
  /// "tpu", "cpu".
  std::string platform() const;
};

/// A replica per XLA device, variables on all of them: MirroredStrategy("xla:0-3") that need not
/// name its devices. Each run() notes what the step's function does to tensors and hands it over
/// as one program (StableHLO), which is compiled when its text is new; only then anything is
/// computed. So a step may read on the host what steps before it left (kFailedPrecondition for its
/// own values), all replicas do the same on the same shapes (kInvalidArgument names where they
/// differ: try batch(n, drop_remainder)), and an operation that has no form in StableHLO is refused
/// by name and line (kUnimplemented). Results and variables come to the host when it reads them.
/// tf.distribute.TPUStrategy.
class TpuStrategy final : public Strategy {
 public:
  /// Without devices the first options.replicas of XLA's; 0 of them: all TPUs, or one where the CPU
  /// stands in. Throws kInvalidArgument for more than there are and for devices of other kinds,
  /// kUnavailable without a plugin, and what LocalStrategyOptions::devices says.
  explicit TpuStrategy(LocalStrategyOptions options = {});
  explicit TpuStrategy(const TpuClusterResolver& resolver, LocalStrategyOptions options = {});

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;
};

}  // namespace tutti

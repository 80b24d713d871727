// Strategy that trains synchronously on XLA devices: each step is one compiled program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITHOUT_XLA
#error "this build of tutti has no XLA; configure it with -DTUTTI_XLA=ON"
#endif

#include <string>
#include <string_view>

#include "tutti/strategy/strategy_extended.h"
#include "tutti/tensor/xla/xla_devices.h"

namespace tutti {

/// Resolver for the TPUs that a program trains on. Supports only the TPUs of this host, or the
/// devices of another PJRT plugin that replaces them (docs/tpu.md). Equivalent of
/// tf.distribute.cluster_resolver.TPUClusterResolver.
class TpuClusterResolver {
 public:
  /// `tpu`: "" or "local" for this host. Throws kUnimplemented, naming the address, for any other
  /// value.
  explicit TpuClusterResolver(std::string_view tpu = "");
  /// Opens the plugin and returns the number of its devices, which are xla:0, xla:1, ... If opening
  /// fails, throws kUnavailable with the reason and the remedy.
  int num_devices() const;
  /// Returns the platform of the plugin, such as "tpu" or "cpu".
  std::string platform() const;
};

/// Strategy with one replica per XLA device and a copy of every variable on each, like
/// MirroredStrategy("xla:0-3"), but without naming the devices. Each run() traces the operations of
/// the step function and passes them to XLA as one StableHLO program, which is compiled if its text
/// is new. XLA computes values only after the trace, so a step that reads its own values on the
/// host throws kFailedPrecondition; it may read results of earlier steps. All replicas must do the
/// same work on the same shapes; otherwise, kInvalidArgument names the difference. Use batch(n,
/// drop_remainder). An operation without a StableHLO form throws kUnimplemented with its name and
/// line. Results and variables are copied to the host when the host reads them.
/// Corresponds to tf.distribute.TPUStrategy.
class TpuStrategy final : public Strategy {
 public:
  /// If options.devices is empty, uses the first options.replicas XLA devices; if options.replicas
  /// is also 0, uses all TPUs, or one device if the plugin's platform is the CPU. Throws
  /// kInvalidArgument for more devices than exist and for devices that are not XLA devices,
  /// kUnavailable without a plugin, and the errors described at LocalStrategyOptions::devices.
  explicit TpuStrategy(LocalStrategyOptions options = {});
  explicit TpuStrategy(const TpuClusterResolver& resolver, LocalStrategyOptions options = {});

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;
};

}  // namespace tutti

// Synchronous training with a copy of every variable on every device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string_view>

#include "tutti/strategy/strategy_extended.h"

namespace tutti {

/// Strategy with a copy of every variable on every device. CrossDeviceOps sums gradients over
/// replicas, and each copy is updated from equal values, so copies stay bit-identical. Corresponds
/// to tf.distribute.MirroredStrategy.
class MirroredStrategy final : public Strategy {
 public:
  /// Throws kInvalidArgument for duplicate devices and kUnavailable for a device that does not
  /// exist.
  explicit MirroredStrategy(LocalStrategyOptions options = {});
  /// Takes only devices: `MirroredStrategy("cpu:0-1")`.
  template <std::convertible_to<DeviceList> Devices>
  explicit MirroredStrategy(const Devices& devices)
      : MirroredStrategy(LocalStrategyOptions{.devices = devices}) {}

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;
};

}  // namespace tutti

// Synchronous training with the variables on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/strategy/strategy_extended.h"

namespace tutti {

/// Options of CentralStorageStrategy.
struct CentralStorageOptions {
  LocalStrategyOptions local = {};
  /// Device for variables and slots. Default: the CPU, or the GPU if it is the only device.
  std::optional<Device> parameter_device = std::nullopt;
};

/// Strategy that stores variables on one device, sums gradients there and applies each sum once.
/// Corresponds to tf.distribute.experimental.CentralStorageStrategy.
class CentralStorageStrategy final : public Strategy {
 public:
  explicit CentralStorageStrategy(CentralStorageOptions options = {});
  /// Overload for MirroredStrategy's options; uses the default parameter device.
  explicit CentralStorageStrategy(LocalStrategyOptions local)
      : CentralStorageStrategy(CentralStorageOptions{.local = std::move(local)}) {}
  template <std::convertible_to<DeviceList> Devices>
  explicit CentralStorageStrategy(const Devices& devices)
      : CentralStorageStrategy(LocalStrategyOptions{.devices = devices}) {}
  std::vector<Device> parameter_devices() const override { return {parameter_device_}; }

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;

 private:
  Device parameter_device_;
  std::shared_ptr<const Placement> placement_;
};

}  // namespace tutti

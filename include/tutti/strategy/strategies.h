// Synchronous training within one process: variables mirrored on its devices, or on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "tutti/strategy/local_strategy.h"

namespace tutti {

/// Every device holds a copy of every variable; gradients are summed over replicas by
/// CrossDeviceOps and each copy is updated from equal values: mirrored variables stay
/// bit-identical. tf.distribute.MirroredStrategy.
class MirroredStrategy final : public LocalStrategy {
 public:
  /// Throws kInvalidArgument for duplicate devices, kUnavailable for a device that is not here.
  explicit MirroredStrategy(LocalStrategyOptions options = {});
  /// `MirroredStrategy("cpu:0-1")`.
  template <std::convertible_to<DeviceList> Devices>
  explicit MirroredStrategy(const Devices& devices)
      : MirroredStrategy(LocalStrategyOptions{.devices = devices}) {}
  std::string_view name() const override { return "mirrored"; }
};

/// One replica on `device`, variables there too. Nothing travels; of the communication options its
/// policy for values that are not finite counts. tf.distribute.OneDeviceStrategy.
class OneDeviceStrategy final : public LocalStrategy {
 public:
  explicit OneDeviceStrategy(Device device, const CommunicationOptions& communication = {});
  explicit OneDeviceStrategy(std::string_view device,
                             const CommunicationOptions& communication = {})
      : OneDeviceStrategy(Device::parse(device), communication) {}
  std::string_view name() const override { return "one_device"; }
};

/// Devices and replicas, and where variables live.
struct CentralStorageOptions {
  LocalStrategyOptions local = {};
  /// Where variables and slots live. Default: the CPU, or the GPU when it is the only device.
  std::optional<Device> parameter_device = std::nullopt;
};

/// Variables live on the parameter device; gradients are summed to it and applied once.
/// tf.distribute.experimental.CentralStorageStrategy.
class CentralStorageStrategy final : public LocalStrategy {
 public:
  explicit CentralStorageStrategy(CentralStorageOptions options = {});
  /// With the default parameter device: what MirroredStrategy takes.
  explicit CentralStorageStrategy(LocalStrategyOptions local)
      : CentralStorageStrategy(CentralStorageOptions{.local = std::move(local)}) {}
  template <std::convertible_to<DeviceList> Devices>
  explicit CentralStorageStrategy(const Devices& devices)
      : CentralStorageStrategy(LocalStrategyOptions{.devices = devices}) {}
  std::string_view name() const override { return "central_storage"; }
  std::vector<Device> parameter_devices() const override { return {parameter_device_}; }

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;

 private:
  Device parameter_device_;
  std::shared_ptr<const Placement> placement_;
};

}  // namespace tutti

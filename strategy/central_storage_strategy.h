// Synchronous training with every variable on one device, computed on all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/strategy/local_strategy.h"

namespace tutti {

struct CentralStorageOptions {
  LocalStrategyOptions local = {};
  /// Default: the CPU, or the GPU when it is the only device.
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
  ~CentralStorageStrategy() override;
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

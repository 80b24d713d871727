// Everything on one device: the strategy to develop with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/local_strategy.h"

namespace tutti {

namespace internal {
struct Placement;
}  // namespace internal

/// One replica on `device`, variables there too. tf.distribute.OneDeviceStrategy.
class OneDeviceStrategy final : public LocalStrategy {
 public:
  explicit OneDeviceStrategy(Device device);
  explicit OneDeviceStrategy(std::string_view device) : OneDeviceStrategy(Device::parse(device)) {}
  ~OneDeviceStrategy() override;
  std::string_view name() const override { return "one_device"; }

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;

 private:
  std::shared_ptr<const internal::Placement> placement_;
};

}  // namespace tutti

// Training on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "tutti/strategy/local_strategy.h"

namespace tutti {

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

}  // namespace tutti

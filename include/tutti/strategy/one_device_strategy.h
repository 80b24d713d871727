// Training on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "tutti/strategy/strategy_extended.h"

namespace tutti {

/// Strategy that runs one replica on one device and stores variables there. Values are never
/// exchanged, so the only communication option with an effect is the policy for non-finite values.
/// Corresponds to tf.distribute.OneDeviceStrategy.
class OneDeviceStrategy final : public Strategy {
 public:
  explicit OneDeviceStrategy(Device device, const CommunicationOptions& communication = {});
  explicit OneDeviceStrategy(std::string_view device,
                             const CommunicationOptions& communication = {})
      : OneDeviceStrategy(Device::parse(device), communication) {}

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;
};

}  // namespace tutti

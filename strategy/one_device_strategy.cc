// Implements OneDeviceStrategy: one replica, and variables on its device.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/one_device_strategy.h"

#include "strategy/strategy_options.h"

namespace tutti {
namespace {

LocalStrategyOptions options_for(Device device, const CommunicationOptions& communication) {
  LocalStrategyOptions options;
  options.cross_device_ops.options = communication;
  options.devices = DeviceList(std::vector<Device>{device});
  return options;
}

}  // namespace

OneDeviceStrategy::OneDeviceStrategy(Device device, const CommunicationOptions& communication)
    : Strategy("one_device", internal::checked_for_workers(options_for(device, communication))) {}

std::shared_ptr<VariableStorage> OneDeviceStrategy::create_storage(const Tensor& initial_value,
                                                                   VariableOptions options) {
  return extended().create_storage(initial_value, std::move(options));
}

void OneDeviceStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  extended().run(body);
}

}  // namespace tutti

// OneDeviceStrategy: one replica, variables on its device.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/one_device_strategy.h"

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
    : LocalStrategy("one_device", options_for(device, communication)),
      placement_(std::make_shared<const Placement>(Placement::mirrored({device}))) {}

OneDeviceStrategy::~OneDeviceStrategy() = default;

std::shared_ptr<VariableStorage> OneDeviceStrategy::create_storage(const Tensor& initial_value,
                                                                   VariableOptions options) {
  if (is_on_read(options)) return create_on_read_storage(initial_value, std::move(options));
  return create_mirrored_storage(initial_value, std::move(options), placement_);
}

}  // namespace tutti

// Options of the one replica of OneDeviceStrategy.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/one_device_strategy.h"

#include "strategy/local_options.h"

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
    : LocalStrategy("one_device",
                    internal::checked_for_workers(options_for(device, communication))) {}

}  // namespace tutti

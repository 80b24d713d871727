// Which component each replica reads, on all devices or on one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/variables/placement.h"

#include <algorithm>

namespace tutti {

Placement Placement::mirrored(const std::vector<Device>& replica_devices) {
  Placement placement;
  placement.replica_devices = replica_devices;
  for (const Device& device : replica_devices) {
    auto found = std::ranges::find(placement.devices, device);
    const auto index = found - placement.devices.begin();
    if (found == placement.devices.end()) {
      placement.devices.push_back(device);
      placement.num_sharers.push_back(0);
    }
    placement.component_of_replica.push_back(static_cast<int>(index));
    placement.place_among_sharers.push_back(
        placement.num_sharers[static_cast<std::size_t>(index)]++);
  }
  return placement;
}

Placement Placement::central(const std::vector<Device>& replica_devices, Device device,
                             int first_replica, int num_replicas) {
  const auto num_local = static_cast<int>(replica_devices.size());
  Placement placement;
  placement.devices = {device};
  placement.replica_devices = replica_devices;
  placement.num_sharers = {num_replicas == 0 ? num_local : num_replicas};
  for (int r = 0; r < num_local; ++r) {
    placement.component_of_replica.push_back(0);
    placement.place_among_sharers.push_back(first_replica + r);
  }
  return placement;
}

}  // namespace tutti

// Where the components of a variable are, and which replicas share them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/tensor/device.h"

namespace tutti {

namespace internal {
class ConsistencyCheck;
}  // namespace internal

/// Where the components of ON_WRITE variables are and which replicas share the work of writing
/// each.
struct Placement {
  std::vector<Device> devices;  // of the components
  std::vector<Device> replica_devices;
  std::vector<int> component_of_replica;
  std::vector<int> place_among_sharers;  // per replica: its number among those of its component
  std::vector<int> num_sharers;          // per component
  /// Learns of writes outside steps; nullptr: there are no other workers.
  std::shared_ptr<internal::ConsistencyCheck> check = nullptr;

  /// A component on each of the replicas' devices.
  static Placement mirrored(const std::vector<Device>& replica_devices);
  /// One component, on `device`. With other workers: of `num_replicas` replicas of all workers
  /// these are number `first_replica` and following, and each write falls to one of all.
  static Placement central(const std::vector<Device>& replica_devices, Device device,
                           int first_replica = 0, int num_replicas = 0);
};

}  // namespace tutti

// Devices of a variable's components, and the replicas that share each component.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/tensor/device.h"

namespace tutti {

namespace internal {
class ConsistencyCheck;
}  // namespace internal

/// Devices that hold the components of ON_WRITE variables, and the replicas that share the work of
/// writing each component.
struct Placement {
  std::vector<Device> devices;  // devices of the components
  std::vector<Device> replica_devices;
  std::vector<int> component_of_replica;
  std::vector<int> place_among_sharers;  // each replica's index among those sharing its component
  std::vector<int> num_sharers;          // number of replicas that share each component
  /// The consistency check to notify of writes outside steps; nullptr if there are no other
  /// workers.
  std::shared_ptr<internal::ConsistencyCheck> check = nullptr;

  /// Returns a placement with one component on each distinct device of the replicas.
  static Placement mirrored(const std::vector<Device>& replica_devices);
  /// Returns a placement with one component, on `device`. With several workers, `replica_devices`
  /// are those of the replicas first_replica, first_replica + 1, ..., and each write is performed
  /// by one of the `num_replicas` replicas across all workers.
  static Placement central(const std::vector<Device>& replica_devices, Device device,
                           int first_replica = 0, int num_replicas = 0);
};

}  // namespace tutti

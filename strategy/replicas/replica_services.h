// What the replicas of a strategy share: devices, operations, the other workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {

class Strategy;

namespace internal {

/// What the replicas of a strategy share for its whole life.
struct ReplicaServices {
  Strategy& strategy;
  std::vector<Device> replica_devices;
  CrossDeviceOps& ops;
  Mutex& ops_mutex;  // held while `ops` works, except by slices of a sliceable operation
  CommunicationOptions communication;
  std::shared_ptr<WorkerTeam> team = nullptr;  // nullptr: this process has all replicas
  /// Called once, by the leader, when all replicas have applied their updates and before any reads.
  std::function<void()> after_updates = {};
  /// Of workers that train apart: the number of this one's first replica among those of all, and
  /// how many there are; they exchange nothing. 0: this process counts for itself.
  int first_apart = 0;
  int num_apart = 0;

  int first_number() const { return num_apart > 0 ? first_apart : first_replica(); }
  int num_in_sync() const { return num_apart > 0 ? num_apart : num_replicas(); }
  /// Of those that exchange values, as the next two.
  int first_replica() const { return team ? team->first_replica() : 0; }
  int num_workers() const { return team ? team->num_workers() : 1; }
  int num_replicas() const {
    return team ? team->num_replicas() : static_cast<int>(replica_devices.size());
  }
  /// The values of all replicas in replica order, by replica of this worker; also what other
  /// workers' replicas have. `what` is compared between workers.
  ReplicaValues of_all_replicas(ReplicaValues local, std::string_view what) const {
    return team ? team->gather(local, what) : std::move(local);
  }
};

}  // namespace internal
}  // namespace tutti

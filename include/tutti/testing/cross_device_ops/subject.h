// The operation that the conformance kit checks: how its groups are made.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cross_device_ops/communicator.h"

namespace tutti::conformance {

/// Makes one rank's communicator; called by each rank's own thread, all at the same time.
using RankFactory = std::function<std::unique_ptr<Communicator>(int rank)>;

/// An operation under test. Cases of a shape without a function are skipped, and so are those for
/// which its function throws kUnimplemented.
struct Subject {
  Subject() = default;
  /// An operation of the registry: local groups, and messages or shared memory between threads as
  /// far as it can. Throws for an unknown name.
  explicit Subject(const std::string& registered_name);

  /// Sets the devices of local groups; several consecutive replicas share one where there are too
  /// few. With GPUs there are local groups alone: communicators work on host memory.
  void use_devices(std::vector<Device> of_groups);

  std::string name;
  /// One object for all replicas, of which there is one per device.
  std::function<std::unique_ptr<CrossDeviceOps>(const std::vector<Device>& devices)> local;
  std::function<RankFactory(int world, Duration timeout)> spread;
  std::function<RankFactory(int world, Duration timeout)> threads;
  std::vector<Device> devices;  // none: CPUs
};

}  // namespace tutti::conformance

// A reduction on GPUs that runs beside what their compute streams do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace tutti {

namespace internal {
class DeviceWork;
}  // namespace internal

/// What CrossDeviceOps::start_all_reduce_in_place() has queued. Empty: nothing is pending. Threads:
/// one at a time.
class PendingReduction {
 public:
  PendingReduction();
  /// Joins.
  ~PendingReduction();
  PendingReduction(PendingReduction&&) noexcept;
  PendingReduction& operator=(PendingReduction&&) noexcept;

  /// What the compute streams get from now on sees the result. Does not wait for a GPU. Once more
  /// does nothing.
  void join();

  /// For operations: work to be joined, and what is to be queued when it is, in this order.
  void add(std::unique_ptr<internal::DeviceWork> work);
  void after_join(std::function<void()> action);

 private:
  std::vector<std::unique_ptr<internal::DeviceWork>> works_;
  std::vector<std::function<void()>> actions_;
};

}  // namespace tutti

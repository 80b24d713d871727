// Updates of variables that wait to become one launch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_map>
#include <vector>

#include "tutti/tensor/gpu/gpu_device.h"

namespace tutti {

/// Updates grouped into launches, which follow each other in the order in which they were begun.
/// One thread at a time.
struct GpuDevice::PendingUpdates {
 public:
  /// What the updates of one launch have in common.
  struct Launch {
    DType dtype = DType::kFloat32;
    DeviceRule rule;
    const double* step_values = nullptr;
  };

  bool empty() const { return groups_.empty(); }
  /// Whether the launches would still apply all updates of the item's weights in the order of the
  /// calls.
  bool fits(const Launch& launch, const DeviceUpdateItem& item) const;
  void add(const Launch& launch, const DeviceUpdateItem& item, std::vector<BufferRef> buffers);
  void run(DeviceMath& math) const;

 private:
  struct Group {
    Launch launch;
    std::vector<DeviceUpdateItem> items;
  };
  std::size_t group_of(const Launch& launch) const;

  std::vector<Group> groups_;
  std::unordered_map<const void*, std::size_t> last_group_;  // of each variable's weights
  std::vector<BufferRef> buffers_;
};

}  // namespace tutti

// Updates of variables that wait to become one launch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_map>
#include <vector>

#include "tutti/tensor/gpu/gpu_device.h"

namespace tutti {

/// Groups of updates by element type and rule with its numbers; launched in the order in which
/// groups were begun. One thread at a time.
struct GpuDevice::PendingUpdates {
 public:
  bool empty() const { return groups_.empty(); }
  /// Whether the launches would still apply all updates of the item's weights in the order of the
  /// calls.
  bool fits(DType dtype, const DeviceRule& rule, const DeviceUpdateItem& item) const;
  void add(DType dtype, const DeviceRule& rule, const DeviceUpdateItem& item,
           std::vector<BufferRef> buffers);
  void launch(DeviceMath& math) const;

 private:
  struct Group {
    DType dtype = DType::kFloat32;
    DeviceRule rule;
    std::vector<DeviceUpdateItem> items;
  };
  std::size_t group_of(DType dtype, const DeviceRule& rule) const;

  std::vector<Group> groups_;
  std::unordered_map<const void*, std::size_t> last_group_;  // of each variable's weights
  std::vector<BufferRef> buffers_;
};

}  // namespace tutti

// Updates of variables that wait to become one launch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/pending_updates.h"

#include <algorithm>
#include <iterator>

namespace tutti {

std::size_t GpuDevice::PendingUpdates::group_of(DType dtype, const DeviceRule& rule) const {
  const auto found = std::ranges::find_if(groups_, [&](const Group& group) {
    return group.dtype == dtype && group.rule.id == rule.id &&
           group.rule.constants == rule.constants;
  });
  return static_cast<std::size_t>(found - groups_.begin());
}

bool GpuDevice::PendingUpdates::fits(DType dtype, const DeviceRule& rule,
                                     const DeviceUpdateItem& item) const {
  const auto last = last_group_.find(item.weights);
  return last == last_group_.end() || last->second < group_of(dtype, rule);
}

void GpuDevice::PendingUpdates::add(DType dtype, const DeviceRule& rule,
                                    const DeviceUpdateItem& item, std::vector<BufferRef> buffers) {
  const std::size_t group = group_of(dtype, rule);
  if (group == groups_.size()) groups_.push_back({dtype, rule, {}});
  groups_[group].items.push_back(item);
  last_group_[item.weights] = group;
  std::ranges::move(buffers, std::back_inserter(buffers_));
}

void GpuDevice::PendingUpdates::launch(DeviceMath& math) const {
  for (const Group& group : groups_) math.update({group.dtype, group.rule, group.items, nullptr});
}

}  // namespace tutti

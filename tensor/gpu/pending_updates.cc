// Updates of variables that wait to become one launch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/pending_updates.h"

#include <algorithm>
#include <iterator>

namespace tutti {

std::size_t GpuDevice::PendingUpdates::group_of(const Launch& launch) const {
  const auto found = std::ranges::find_if(groups_, [&](const Group& group) {
    return group.launch.dtype == launch.dtype && group.launch.rule.id == launch.rule.id &&
           group.launch.rule.constants == launch.rule.constants &&
           group.launch.step_values == launch.step_values;
  });
  return static_cast<std::size_t>(found - groups_.begin());
}

bool GpuDevice::PendingUpdates::fits(const Launch& launch, const DeviceUpdateItem& item) const {
  const auto last = last_group_.find(item.weights);
  return last == last_group_.end() || last->second < group_of(launch);
}

void GpuDevice::PendingUpdates::add(const Launch& launch, const DeviceUpdateItem& item,
                                    std::vector<BufferRef> buffers) {
  const std::size_t group = group_of(launch);
  if (group == groups_.size()) groups_.push_back({launch, {}});
  groups_[group].items.push_back(item);
  last_group_[item.weights] = group;
  std::ranges::move(buffers, std::back_inserter(buffers_));
}

void GpuDevice::PendingUpdates::run(DeviceMath& math) const {
  for (const auto& [launch, items] : groups_) {
    math.update({launch.dtype, launch.rule, items, launch.step_values});
  }
}

}  // namespace tutti

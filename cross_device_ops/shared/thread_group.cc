// Windows of threads, their groups, and where each rank is.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/thread_group.h"

namespace tutti::internal {

ThreadGroup::ThreadGroup(int size)
    : layout_(size),
      memory_(BufferRef::allocate(layout_.size * layout_.num_bytes)),
      states_(layout_.size) {
  for (int rank = 0; rank < size; ++rank) Window(window(rank), nullptr, layout_).make();
}

std::shared_ptr<ThreadGroup> ThreadGroup::subgroup(const std::vector<int>& ranks,
                                                   std::uint32_t number) {
  MutexLock lock(mutex_);
  std::weak_ptr<ThreadGroup>& place = subgroups_[{number, ranks}];
  std::shared_ptr<ThreadGroup> group = place.lock();
  if (!group) {
    group = std::make_shared<ThreadGroup>(static_cast<int>(ranks.size()));
    place = group;
  }
  return group;
}

void ThreadGroup::set_state(int rank, std::function<std::string()> state) {
  MutexLock lock(mutex_);
  states_[static_cast<std::size_t>(rank)] = std::move(state);
}

std::vector<std::string> ThreadGroup::states() const {
  MutexLock lock(mutex_);
  std::vector<std::string> texts;
  for (const auto& state : states_) texts.push_back(state ? state() : "has left the group");
  return texts;
}

}  // namespace tutti::internal

// What the ranks of a group share that are threads of one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cross_device_ops/shared/window_group.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// The windows of all ranks, there from the beginning, and where each rank is. Threads: any.
class ThreadGroup {
 public:
  explicit ThreadGroup(int size);

  int size() const { return static_cast<int>(layout_.size); }
  std::byte* window(int rank) const {
    return memory_->data() + static_cast<std::size_t>(rank) * layout_.num_bytes;
  }

  /// The group of some of the ranks, the same object for all of them.
  std::shared_ptr<ThreadGroup> subgroup(const std::vector<int>& ranks, std::uint32_t number);

  void set_state(int rank, std::function<std::string()> state);
  std::vector<std::string> states() const;

 private:
  const WindowLayout layout_;
  const BufferRef memory_;
  mutable Mutex mutex_;
  std::vector<std::function<std::string()>> states_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::pair<std::uint32_t, std::vector<int>>, std::weak_ptr<ThreadGroup>> subgroups_
      TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal

// Memory that one allocator takes from another.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_map>

#include "tutti/tensor/buffer_allocator.h"

namespace tutti {

/// Takes its memory from another allocator, so that it counts there and returns there.
class MemoryOfAllocator final : public MemorySource {
 public:
  explicit MemoryOfAllocator(BufferAllocator& allocator) : allocator_(allocator) {}

  std::byte* allocate(std::size_t size) override {
    BufferRef buffer = allocator_.allocate(size);
    std::byte* const data = buffer->data();
    MutexLock lock(mutex_);
    buffers_.emplace(data, std::move(buffer));
    return data;
  }
  void release(std::byte* data) noexcept override {
    BufferRef buffer;  // returned after the lock is released
    MutexLock lock(mutex_);
    const auto found = buffers_.find(data);
    buffer = std::move(found->second);
    buffers_.erase(found);
  }

 private:
  BufferAllocator& allocator_;
  Mutex mutex_;
  std::unordered_map<std::byte*, BufferRef> buffers_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti

// The memory of a captured graph: what its kernels read and write, kept for them alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tensor/buffer_allocator.h"
#include "tutti/core/sync.h"

namespace tutti {

class GpuDevice;

/// Each launch of a captured graph reads and writes the addresses of its capture. So what is
/// allocated on the device while the work is captured comes from here and returns here: the next
/// operation of the capture may have it, nobody else. Owned by the graph; memory that tensors still
/// hold outlives it. Any thread that takes part in the capture.
class GraphMemory {
 public:
  explicit GraphMemory(Device device);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  Device device() const { return device_; }
  AllocatorStatistics statistics() const { return pool_->statistics(); }

  /// That of `device` in this thread's scope; nullptr when there is none.
  static GraphMemory* current(Device device);

  BufferAllocator& allocator() { return *pool_; }
  /// A buffer that was freed while work was captured which may use it.
  void keep(BufferRef buffer);
  /// A copy of `bytes` bytes in pinned memory, for copies that each launch repeats.
  const void* keep_pinned(const void* from, std::size_t bytes);

 private:
  struct Pinned;
  const Device device_;
  std::shared_ptr<BufferAllocator> pool_;
  Mutex mutex_;
  std::vector<BufferRef> kept_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Pinned>> pinned_ TUTTI_GUARDED_BY(mutex_);
};

/// While it lives, this thread's tensors on the devices of `memories` (one each) are made of them.
class GraphMemoryScope {
 public:
  using Memories = std::vector<std::unique_ptr<GraphMemory>>;
  explicit GraphMemoryScope(const Memories& memories);
  ~GraphMemoryScope();
  GraphMemoryScope(const GraphMemoryScope&) = delete;
  GraphMemoryScope& operator=(const GraphMemoryScope&) = delete;

 private:
  const Memories* previous_;
};

}  // namespace tutti

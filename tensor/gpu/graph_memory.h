// The memory of a captured graph: what its kernels read and write, kept for them alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/tensor/buffer_allocator.h"

namespace tutti {

class GpuDevice;

/// Each launch of a captured graph reads and writes the addresses of its capture. So what is
/// allocated on the device while the work is captured comes from here and returns here: the next
/// operation of the capture may have it, nobody else. Owned by the graph; memory that tensors still
/// hold outlives it. Not shared between threads.
class GraphMemory {
 public:
  explicit GraphMemory(Device device);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  Device device() const { return device_; }
  AllocatorStatistics statistics() const { return pool_->statistics(); }

  /// Of this thread's scope; nullptr outside.
  static GraphMemory* current();
  /// current(), if it is of `device`.
  static GraphMemory* current(Device device);

  BufferAllocator& allocator() { return *pool_; }
  /// Whether `allocator` is the device's own, whose buffers a capture may use.
  bool concerns(const BufferAllocator& allocator) const { return &allocator == &device_allocator_; }
  /// A buffer that was freed while work was captured which may use it.
  void keep(BufferRef buffer);
  /// A copy of `bytes` bytes in pinned memory, for copies that each launch repeats.
  const void* keep_pinned(const void* from, std::size_t bytes);

 private:
  struct Pinned;
  const Device device_;
  BufferAllocator& device_allocator_;
  std::shared_ptr<BufferAllocator> pool_;
  std::vector<BufferRef> kept_;
  std::vector<std::unique_ptr<Pinned>> pinned_;
};

/// While it lives, this thread's tensors on memory.device() are made of `memory`.
class GraphMemoryScope {
 public:
  explicit GraphMemoryScope(GraphMemory& memory);
  ~GraphMemoryScope();
  GraphMemoryScope(const GraphMemoryScope&) = delete;
  GraphMemoryScope& operator=(const GraphMemoryScope&) = delete;

 private:
  GraphMemory* previous_;
};

}  // namespace tutti

// The memory of captured graphs.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu/graph_memory.h"

#include <cstring>
#include <utility>

#include "tensor/device_backend.h"
#include "tensor/gpu/gpu_device.h"

namespace tutti {
namespace {

thread_local const GraphMemoryScope::Memories* current_memories = nullptr;

}  // namespace

struct GraphMemory::Pinned {
  Pinned(DeviceBackend& owner, std::size_t bytes)
      : backend(owner), data(owner.allocate_pinned(bytes)) {}
  ~Pinned() {
    if (data) backend.release_pinned(data);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  DeviceBackend& backend;
  void* const data;
};

GraphMemory::GraphMemory(Device device)
    : device_(device),
      pool_(std::make_shared<BufferAllocator>(
          std::make_unique<MemoryOfAllocator>(GpuDevice::of(device).allocator()),
          BufferAllocatorOptions{.name = concat("captured graph on ", device),
                                 .granularity = GpuDevice::kAlignment})) {}

GraphMemory::~GraphMemory() = default;

GraphMemory* GraphMemory::current(Device device) {
  if (!current_memories) return nullptr;
  for (const auto& memory : *current_memories) {
    if (memory->device() == device) return memory.get();
  }
  return nullptr;
}

void GraphMemory::keep(BufferRef buffer) {
  MutexLock lock(mutex_);
  kept_.push_back(std::move(buffer));
}

const void* GraphMemory::keep_pinned(const void* from, std::size_t bytes) {
  MutexLock lock(mutex_);
  const Pinned& block =
      *pinned_.emplace_back(std::make_unique<Pinned>(GpuDevice::of(device_).backend(), bytes));
  if (!block.data) {
    fail(ErrorCode::kResourceExhausted, "captured graph on ", device_, ": no pinned memory for ",
         bytes, " bytes; try making this tensor before the step is captured");
  }
  std::memcpy(block.data, from, bytes);
  return block.data;
}

GraphMemoryScope::GraphMemoryScope(const Memories& memories)
    : previous_(std::exchange(current_memories, &memories)) {}
GraphMemoryScope::~GraphMemoryScope() { current_memories = previous_; }

}  // namespace tutti

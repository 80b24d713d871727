// The memory of captured graphs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/graph_memory.h"

#include <cstring>
#include <utility>

#include "tutti/tensor/gpu/gpu_device.h"
#include "tutti/tensor/gpu/memory_of_allocator.h"

namespace tutti {
namespace {

thread_local GraphMemory* current_memory = nullptr;

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
      device_allocator_(GpuDevice::of(device).allocator()),
      pool_(std::make_shared<BufferAllocator>(
          std::make_unique<MemoryOfAllocator>(device_allocator_),
          BufferAllocatorOptions{.name = concat("captured graph on ", device),
                                 .granularity = GpuDevice::kAlignment})) {}

GraphMemory::~GraphMemory() = default;

GraphMemory* GraphMemory::current() { return current_memory; }

GraphMemory* GraphMemory::current(Device device) {
  return current_memory && current_memory->device() == device ? current_memory : nullptr;
}

void GraphMemory::keep(BufferRef buffer) { kept_.push_back(std::move(buffer)); }

const void* GraphMemory::keep_pinned(const void* from, std::size_t bytes) {
  const Pinned& block =
      *pinned_.emplace_back(std::make_unique<Pinned>(GpuDevice::of(device_).backend(), bytes));
  if (!block.data) {
    fail(ErrorCode::kResourceExhausted, "captured graph on ", device_, ": no pinned memory for ",
         bytes, " bytes; try making this tensor before the step is captured");
  }
  std::memcpy(block.data, from, bytes);
  return block.data;
}

GraphMemoryScope::GraphMemoryScope(GraphMemory& memory)
    : previous_(std::exchange(current_memory, &memory)) {}
GraphMemoryScope::~GraphMemoryScope() { current_memory = previous_; }

}  // namespace tutti

// The memory of captured graphs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/graph_memory.h"

#include <cstring>
#include <unordered_map>
#include <utility>

#include "tutti/tensor/gpu/gpu_device.h"

namespace tutti {
namespace {

thread_local const GraphMemoryScope::Memories* current_memories = nullptr;

template <class Matches>
GraphMemory* find_current(const Matches& matches) {
  if (!current_memories) return nullptr;
  for (const auto& memory : *current_memories) {
    if (matches(*memory)) return memory.get();
  }
  return nullptr;
}

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

GraphMemory* GraphMemory::current(Device device) {
  return find_current([&](const GraphMemory& memory) { return memory.device() == device; });
}

GraphMemory* GraphMemory::current(const BufferAllocator& allocator) {
  return find_current([&](const GraphMemory& memory) { return memory.concerns(allocator); });
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

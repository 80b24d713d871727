// Buffers in memory that the ranks of one host share.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/host_memory.h"

#include "tutti/core/error.h"

namespace tutti {
namespace {

class PlaceSource final : public MemorySource {
 public:
  explicit PlaceSource(std::shared_ptr<HostMemory> memory) : memory_(std::move(memory)) {}
  std::byte* allocate(std::size_t size) override {
    try {
      return memory_->place(memory_->rank()) + memory_->allocate(size, HostMemory::Use::kBuffers);
    } catch (const Error&) {
      return nullptr;
    }
  }
  void release(std::byte* data) noexcept override {
    memory_->release(static_cast<std::size_t>(data - memory_->place(memory_->rank())));
  }

 private:
  const std::shared_ptr<HostMemory> memory_;
};

}  // namespace

std::shared_ptr<BufferAllocator> allocator_in(std::shared_ptr<HostMemory> memory) {
  return std::make_shared<BufferAllocator>(
      std::make_unique<PlaceSource>(std::move(memory)),
      BufferAllocatorOptions{.name = "memory shared between processes",
                             .advice = "try fewer ranks on this host, or more memory for them",
                             .granularity = 4096});
}

}  // namespace tutti

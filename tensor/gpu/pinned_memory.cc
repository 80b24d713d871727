// Host memory that GPUs copy from and to without anybody waiting.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/pinned_memory.h"

#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/buffer_allocator.h"
#include "tutti/tensor/device_backend.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {
namespace {

class PinnedMemory final : public MemorySource {
 public:
  std::byte* allocate(std::size_t size) override {
    return static_cast<std::byte*>(gpu_backend()->allocate_pinned(size));
  }
  void release(std::byte* data) noexcept override { gpu_backend()->release_pinned(data); }
};

BufferAllocator& pinned_allocator() {
  // Never destroyed, as that of other host memory; the process takes it with it.
  static BufferAllocator& allocator =
      *std::make_unique<BufferAllocator>(
           std::make_unique<PinnedMemory>(),
           BufferAllocatorOptions{.name = "pinned memory", .max_cached = kMaxCachedBytes})
           .release();
  return allocator;
}

}  // namespace

BufferRef allocate_pinned(std::size_t bytes) {
  try {
    return BufferRef::allocate(bytes, pinned_allocator());
  } catch (const Error& error) {
    log_warning_once(concat(error.message(), "; other host memory is used, which is slower"));
    return BufferRef::allocate(bytes);
  }
}

}  // namespace tutti

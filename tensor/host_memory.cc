// Host memory for tensors.
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cstdlib>

#include "tutti/tensor/buffer_allocator.h"

namespace tutti {
namespace {

class HostMemory final : public MemorySource {
 public:
  static constexpr std::size_t kAlignment = 64;

  std::byte* allocate(std::size_t size) override {
    // Passes over large values otherwise spend a good part of their time on finding pages. Where
    // the system has no such pages, the advice is in vain.
    const bool is_large = size >= kHugePage;
    void* data = nullptr;
    if (::posix_memalign(&data, is_large ? kHugePage : kAlignment, size) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
    if (is_large) (void)::madvise(data, size, MADV_HUGEPAGE);
#endif
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) noexcept override { std::free(data); }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
};

}  // namespace

std::unique_ptr<MemorySource> make_host_memory() { return std::make_unique<HostMemory>(); }

BufferAllocator& host_allocator() {
  // Never destroyed: tensors in static storage may outlive every other static object.
  static BufferAllocator& allocator =
      *std::make_unique<BufferAllocator>(
           make_host_memory(), BufferAllocatorOptions{.granularity = HostMemory::kAlignment,
                                                      .max_cached = kMaxCachedBytes})
           .release();
  return allocator;
}

}  // namespace tutti

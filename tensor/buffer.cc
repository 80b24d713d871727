// The caching allocator: freed buffers wait, by size class, for the next request of that class.
// SPDX-License-Identifier: Apache-2.0
//
// A size class is a multiple of 64 bytes, at most a quarter above what was asked for. A cached
// buffer keeps its Buffer object and its memory together, so that a hit costs one lock and no call
// of malloc. When more than kMaxCachedBytes wait, the classes whose last hit or return is oldest
// are emptied first.
#include "tutti/tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kStepsPerDoubling = 4;
constexpr std::size_t kNumClasses = 64 * kStepsPerDoubling;

struct SizeClass {
  std::size_t index = 0;
  std::size_t bytes = 0;
};

/// Classes 64, 128, 192, 256, then four steps per doubling: 320, 384, 448, 512, 640, ...
SizeClass size_class(std::size_t size) {
  const std::size_t units = std::max<std::size_t>((size + kAlignment - 1) / kAlignment, 1);
  if (units <= kStepsPerDoubling) return {units - 1, units * kAlignment};
  const auto log2 = static_cast<std::size_t>(std::bit_width(units - 1)) - 1;  // 2^log2 < units
  const std::size_t step = (std::size_t{1} << log2) / kStepsPerDoubling;
  const std::size_t steps = (units + step - 1) / step;  // 5, 6, 7 or 8
  return {(log2 - 1) * kStepsPerDoubling + steps - kStepsPerDoubling - 1,
          steps * step * kAlignment};
}

/// nullptr when there is no memory.
std::byte* allocate_bytes(std::size_t size) {
  // Passes over large values otherwise spend a good part of their time on finding pages. Where the
  // system has no such pages, the advice is in vain.
  const bool is_large = size >= kHugePage;
  void* data = nullptr;
  if (::posix_memalign(&data, is_large ? kHugePage : kAlignment, size) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
  if (is_large) (void)::madvise(data, size, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(data);
}

}  // namespace

Buffer::~Buffer() { std::free(data_); }

class BufferAllocator {
 public:
  /// Never destroyed: tensors in static storage may outlive every other static object.
  static BufferAllocator& instance() {
    static BufferAllocator& allocator = *std::make_unique<BufferAllocator>().release();
    return allocator;
  }

  Buffer* allocate(std::size_t size) {
    const SizeClass wanted = checked_size_class(size);
    std::unique_ptr<Buffer> buffer = take_cached(wanted);
    if (!buffer) buffer = make_buffer(wanted);
    buffer->size_ = size;
    buffer->references_.store(1, std::memory_order_relaxed);
    return buffer.release();
  }

  void recycle(Buffer* handed_out) {
    std::unique_ptr<Buffer> buffer(handed_out);
    const std::size_t capacity = buffer->capacity_;
    std::vector<std::unique_ptr<Buffer>> evicted;  // freed after the lock is released
    MutexLock lock(mutex_);
    statistics_.in_use -= capacity;
    if (capacity > kMaxCachedBytes) {
      evicted.push_back(std::move(buffer));
      return;
    }
    statistics_.cached += capacity;
    FreeList& list = lists_[size_class(capacity).index];
    list.last_use = ++clock_;
    list.buffers.push_back(std::move(buffer));
    while (statistics_.cached > kMaxCachedBytes) evict_oldest(evicted);
  }

  AllocatorStatistics statistics() {
    MutexLock lock(mutex_);
    return statistics_;
  }

  void trim() {
    std::vector<std::unique_ptr<Buffer>> evicted;
    MutexLock lock(mutex_);
    while (statistics_.cached > 0) evict_oldest(evicted);
  }

 private:
  struct FreeList {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::uint64_t last_use = 0;
  };

  static SizeClass checked_size_class(std::size_t size) {
    constexpr std::size_t kMaxSize = std::size_t{1} << 60;
    if (size > kMaxSize) fail_memory(size);
    return size_class(size);
  }

  [[noreturn]] static void fail_memory(std::size_t size) {
    fail(ErrorCode::kResourceExhausted, "allocator: no memory for ", size,
         " bytes; try a smaller batch");
  }

  std::unique_ptr<Buffer> take_cached(const SizeClass& wanted) {
    MutexLock lock(mutex_);
    FreeList& list = lists_[wanted.index];
    ++statistics_.allocations;
    statistics_.in_use += wanted.bytes;
    statistics_.peak_in_use = std::max(statistics_.peak_in_use, statistics_.in_use);
    if (list.buffers.empty()) return nullptr;
    std::unique_ptr<Buffer> buffer = std::move(list.buffers.back());
    list.buffers.pop_back();
    list.last_use = ++clock_;
    ++statistics_.cache_hits;
    statistics_.cached -= wanted.bytes;
    return buffer;
  }

  std::unique_ptr<Buffer> make_buffer(const SizeClass& wanted) {
    auto buffer = std::make_unique<Buffer>();
    buffer->capacity_ = wanted.bytes;
    buffer->data_ = allocate_bytes(wanted.bytes);
    if (!buffer->data_) {
      trim();
      buffer->data_ = allocate_bytes(wanted.bytes);
    }
    if (!buffer->data_) {
      MutexLock lock(mutex_);
      statistics_.in_use -= wanted.bytes;
      fail_memory(wanted.bytes);
    }
    return buffer;
  }

  void evict_oldest(std::vector<std::unique_ptr<Buffer>>& evicted) TUTTI_REQUIRES(mutex_) {
    FreeList* oldest = nullptr;
    for (FreeList& list : lists_) {
      if (list.buffers.empty()) continue;
      if (!oldest || list.last_use < oldest->last_use) oldest = &list;
    }
    TUTTI_CHECK(oldest, "allocator: ", statistics_.cached, " cached bytes in no list");
    statistics_.cached -= oldest->buffers.back()->capacity_;
    evicted.push_back(std::move(oldest->buffers.back()));
    oldest->buffers.pop_back();
  }

  Mutex mutex_;
  std::array<FreeList, kNumClasses> lists_ TUTTI_GUARDED_BY(mutex_);
  AllocatorStatistics statistics_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t clock_ TUTTI_GUARDED_BY(mutex_) = 0;
};

BufferRef BufferRef::allocate(std::size_t size) {
  BufferRef reference;
  reference.buffer_ = BufferAllocator::instance().allocate(size);
  return reference;
}

void BufferRef::recycle() { BufferAllocator::instance().recycle(buffer_); }

AllocatorStatistics allocator_statistics() { return BufferAllocator::instance().statistics(); }

void trim_allocator_cache() { BufferAllocator::instance().trim(); }

}  // namespace tutti

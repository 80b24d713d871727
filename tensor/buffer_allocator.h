// The caching allocator of one kind of memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/tensor/buffer.h"

namespace tutti {

/// Where an allocator gets memory from. Both are called by any thread.
struct MemorySource {
  std::function<std::byte*(std::size_t size)> allocate;  // nullptr when there is none left
  std::function<void(std::byte* data)> release;          // throws nothing
};

struct BufferAllocatorOptions {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  std::string name = "allocator";  // who runs out of memory
  std::string advice = "try a smaller batch";
  /// Size classes are multiples of it; a power of two. The source sees to the alignment itself.
  std::size_t granularity = 64;
  std::size_t max_cached = kUnlimited;  // bytes that wait
  std::size_t limit = kUnlimited;       // bytes in use and waiting
  /// Asks whoever else holds memory of this allocator in vain to free it, when it is short.
  std::function<void()> on_shortage = {};
  /// Told of each buffer that begins to wait. May not allocate.
  std::function<void(std::byte*)> on_recycle = {};
  /// Asked on the thread that frees a buffer. Takes the buffer, and returns true, while work is
  /// captured there that may use it: then it must not become another's.
  std::function<bool(BufferRef& freed)> keep_freed = {};
};

/// Freed buffers wait, by size class, for the next request of that class. A buffer may be handed
/// out again as soon as it was freed: work of a GPU that still uses it was put into the stream
/// before all work of the next owner. Any thread.
class BufferAllocator : public std::enable_shared_from_this<BufferAllocator> {
 public:
  BufferAllocator(MemorySource source, BufferAllocatorOptions options);
  ~BufferAllocator();
  BufferAllocator& operator=(BufferAllocator&&) = delete;

  /// Throws kResourceExhausted saying how much is in use, waits and is allowed.
  BufferRef allocate(std::size_t size);
  AllocatorStatistics statistics() const;
  /// The peak starts anew at what is in use.
  void reset_peak();
  std::size_t limit() const { return limit_.load(std::memory_order_relaxed); }
  /// Instead of BufferAllocatorOptions::limit. What is in use beyond it stays.
  void set_limit(std::size_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  /// Gives the memory that waits back to its source.
  void trim();

 private:
  friend class Buffer;
  friend class BufferRef;
  struct SizeClass {
    std::size_t index = 0;
    std::size_t bytes = 0;
  };
  struct FreeList {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::uint64_t last_use = 0;
  };
  static constexpr std::size_t kStepsPerDoubling = 4;
  static constexpr std::size_t kNumClasses = 64 * kStepsPerDoubling;

  SizeClass size_class(std::size_t size) const;
  std::unique_ptr<Buffer> take_cached(const SizeClass& wanted);
  std::unique_ptr<Buffer> make_buffer(const SizeClass& wanted);
  void stay_within_limit(std::size_t wanted);
  /// Whether what is held is within the limit, after giving back what waits.
  bool fits_limit();
  [[noreturn]] void fail_memory(std::size_t wanted) const TUTTI_REQUIRES(mutex_);
  void recycle(Buffer* handed_out);
  void evict_oldest(std::vector<std::unique_ptr<Buffer>>& evicted) TUTTI_REQUIRES(mutex_);

  const MemorySource source_;
  const BufferAllocatorOptions options_;
  std::atomic<std::size_t> limit_;
  mutable Mutex mutex_;
  std::array<FreeList, kNumClasses> lists_ TUTTI_GUARDED_BY(mutex_);
  AllocatorStatistics statistics_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t clock_ TUTTI_GUARDED_BY(mutex_) = 0;
};

/// Memory of another allocator, which outlives it: it counts there and returns there.
MemorySource memory_of(BufferAllocator& allocator);
/// The host's memory, for an allocator.
MemorySource host_memory();
/// The allocator of the host's memory.
BufferAllocator& host_allocator();

}  // namespace tutti

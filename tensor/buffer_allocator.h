// Caching allocator for one kind of memory: host, pinned or GPU memory.
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

/// Source of an allocator's memory. Both functions must be thread-safe.
struct MemorySource {
  std::function<std::byte*(std::size_t size)> allocate;  // returns nullptr if no memory is left
  std::function<void(std::byte* data)> release;          // must not throw
};

struct BufferAllocatorOptions {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  std::string name = "allocator";  // name in error messages
  std::string advice = "try a smaller batch";
  /// Unit of the size classes in bytes, a power of two. The source itself aligns the memory.
  std::size_t granularity = 64;
  std::size_t max_cached = kUnlimited;  // maximum bytes in the cache
  std::size_t limit = kUnlimited;       // maximum total bytes, in use plus cached
  /// Called when memory is short. Should make other components free memory of this allocator that
  /// they do not need.
  std::function<void()> on_shortage = {};
  /// Called for each freed buffer. Must not allocate.
  std::function<void(std::byte*)> on_recycle = {};
  /// Called on the thread that frees a buffer. If that thread is capturing work that may use the
  /// buffer, takes ownership of the buffer, which is then not reused, and returns true.
  std::function<bool(BufferRef& freed)> keep_freed = {};
};

/// Caching allocator that keeps freed buffers, by size class, for reuse. A buffer may be reused as
/// soon as it is freed, because GPU work that still uses it precedes all work of the next owner in
/// the stream. Thread-safe.
class BufferAllocator : public std::enable_shared_from_this<BufferAllocator> {
 public:
  BufferAllocator(MemorySource source, BufferAllocatorOptions options);
  ~BufferAllocator();
  BufferAllocator& operator=(BufferAllocator&&) = delete;

  /// Allocates a buffer. If the allocation fails, throws kResourceExhausted, naming the limit and
  /// the bytes in use and in the cache.
  BufferRef allocate(std::size_t size);
  AllocatorStatistics statistics() const;
  /// Resets the peak to the current usage.
  void reset_peak();
  std::size_t limit() const { return limit_.load(std::memory_order_relaxed); }
  /// Replaces BufferAllocatorOptions::limit. Memory in use is kept even if it exceeds the limit.
  void set_limit(std::size_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  /// Returns cached memory to its source.
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
  /// Frees cached memory until the total is within the limit. Returns false if the memory in use
  /// alone exceeds it.
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

/// Returns a source that allocates from another allocator. The allocator must outlive the source
/// and counts the memory as in use.
MemorySource memory_of(BufferAllocator& allocator);
/// Returns the source of host memory.
MemorySource host_memory();
/// Returns the allocator for host memory.
BufferAllocator& host_allocator();

}  // namespace tutti

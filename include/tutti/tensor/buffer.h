// Memory of tensors: reference-counted buffers from a caching allocator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "tutti/tensor/device.h"

namespace tutti {

class BufferAllocator;

/// One allocation of host memory aligned to 64 bytes, or of GPU memory aligned to 256 bytes. Owned
/// by the BufferRefs that refer to it.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  friend class BufferRef;
  friend class BufferAllocator;
  BufferAllocator* allocator_ = nullptr;
  std::shared_ptr<BufferAllocator>
      keeps_alive_;  // owner of allocator_; null if allocator_ is never destroyed
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::atomic<std::uint32_t> references_{0};
};

/// A counted reference to a Buffer. unique() has acquire order, so reads by all former holders
/// happen before writes by the sole owner. std::shared_ptr::use_count() does not guarantee that.
class BufferRef {
 public:
  BufferRef() = default;
  /// Allocates `size` bytes of uninitialized host memory, from the cache if possible. Thread-safe.
  static BufferRef allocate(std::size_t size);
  /// Same as allocate(size), but in the memory of `device` or, within a GraphMemoryScope, of the
  /// captured graph. If memory runs out, throws kResourceExhausted, naming the device and its
  /// memory use.
  static BufferRef allocate(std::size_t size, Device device);

  BufferRef(const BufferRef& other) : buffer_(other.buffer_) { retain(); }
  BufferRef(BufferRef&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferRef() { release(); }

  Buffer* operator->() const { return buffer_; }
  Buffer* get() const { return buffer_; }
  explicit operator bool() const { return buffer_ != nullptr; }
  /// Returns true if no other reference exists.
  bool unique() const { return num_references() == 1; }
  int num_references() const {
    return static_cast<int>(buffer_->references_.load(std::memory_order_acquire));
  }

 private:
  friend class BufferAllocator;
  void retain() const {
    if (buffer_) buffer_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  void release() {
    // Release publishes this holder's accesses; acquire lets the last holder see all of them.
    if (buffer_ && buffer_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) recycle();
  }
  void recycle();
  Buffer* buffer_ = nullptr;
};

/// Statistics of an allocator; sizes in bytes.
struct AllocatorStatistics {
  std::size_t in_use = 0;
  std::size_t cached = 0;
  std::size_t peak_in_use = 0;
  std::uint64_t allocations = 0;
  std::uint64_t cache_hits = 0;
};

/// Returns the memory statistics of `device`. CPU devices without a separate memory
/// (device_memory.h) share the host's statistics.
AllocatorStatistics allocator_statistics(Device device = {});
/// Maximum size of the host allocator's cache, in bytes. If it is exceeded, memory of the least
/// recently used size classes is freed. A GPU's cache is limited only by the device.
inline constexpr std::size_t kMaxCachedBytes = std::size_t{1} << 30;

/// Frees the cached memory of `device`.
void trim_allocator_cache(Device device = {});

}  // namespace tutti

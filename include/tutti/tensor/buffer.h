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

/// Bytes of one allocator: of host memory, aligned to 64, or of a GPU's, aligned to 256. Owned by
/// the BufferRefs that name it.
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
  std::shared_ptr<BufferAllocator> keeps_alive_;  // an allocator that does not live for ever
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::atomic<std::uint32_t> references_{0};
};

/// A counted reference. unique() has acquire order, so that a writer which is alone sees all reads
/// of former holders done: this is what std::shared_ptr::use_count() does not promise.
class BufferRef {
 public:
  BufferRef() = default;
  /// A buffer of `size` bytes of host memory with undefined content, from the allocator's cache if
  /// it can. Any thread.
  static BufferRef allocate(std::size_t size);
  /// The same in the memory of `device`: within a GraphMemoryScope (gpu/step_capture.h) from the
  /// graph's memory. Throws kResourceExhausted naming the device and what it holds.
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
  /// Whether no other reference exists.
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
    // Release: what this holder read or wrote happens before; acquire: the last one sees all of it.
    if (buffer_ && buffer_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) recycle();
  }
  void recycle();
  Buffer* buffer_ = nullptr;
};

/// What the allocator holds. Bytes.
struct AllocatorStatistics {
  std::size_t in_use = 0;
  std::size_t cached = 0;
  std::size_t peak_in_use = 0;
  std::uint64_t allocations = 0;
  std::uint64_t cache_hits = 0;
};

/// For the host's memory (all CPU devices without a memory of their own), such a device's, or a
/// GPU's.
AllocatorStatistics allocator_statistics(Device device = {});
/// The limit of the host's cache: 1 GiB. Beyond it the size classes that were not asked for longest
/// are given back. A GPU's cache has no limit but that of the device.
inline constexpr std::size_t kMaxCachedBytes = std::size_t{1} << 30;

/// Gives cached memory back to the system, or to the GPU.
void trim_allocator_cache(Device device = {});

}  // namespace tutti

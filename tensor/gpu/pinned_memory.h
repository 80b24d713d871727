// Pinned host memory: buffers, a ring, and copies between a GPU and the host beside computations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tensor/buffer_allocator.h"
#include "tensor/device_backend.h"
#include "tensor/gpu_device.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/buffer.h"

namespace tutti {

// Host memory that GPUs copy from and to without anybody waiting.

/// A buffer of pinned host memory with undefined content, from a cache; where the system has none
/// left, of other host memory, from and to which copies keep the thread that asks for them (said
/// once). Freed, it may be handed out again at once: whoever lets a GPU copy waits for that first.
/// Any thread.
BufferRef allocate_pinned(std::size_t bytes);

// Pinned host memory through which bytes reach a device without anybody waiting.

/// Filled front to back, again and again. A place is used again once the copy from it is done. One
/// thread at a time.
class PinnedRing {
 public:
  /// Both outlive this. `peers`: of the device to which the copies go.
  PinnedRing(DeviceBackend& backend, std::size_t size, const PeerWatch& peers);
  ~PinnedRing();
  PinnedRing& operator=(PinnedRing&&) = delete;

  std::size_t largest_piece() const { return size_ / 4; }
  /// A place for at most largest_piece() bytes; nullptr when the system has no pinned memory. Waits
  /// for the oldest copies while there is no room.
  std::byte* place(std::size_t bytes);
  /// `event` comes after the copy from the last place.
  void set_copied(std::shared_ptr<DeviceEvent> event);

 private:
  struct Piece {
    std::size_t begin = 0, end = 0;
    std::shared_ptr<DeviceEvent> copied;
  };
  void wait_for_oldest();
  void drop_done();

  DeviceBackend& backend_;
  const std::size_t size_;
  const PeerWatch& peers_;
  std::byte* memory_ = nullptr;
  std::size_t next_ = 0;
  std::deque<Piece> pieces_;  // the oldest first
};

// Copies of batches to a GPU beside its computations.
//
// Copies in the compute stream would wait for all steps that are queued there. So large ones go
// through the copy stream, into memory of their own: a buffer is written again once the work that
// was queued when it was freed is done, which is not the work of the step under way.

/// The uploads of one device. begin() and settle() are called by the thread that holds the context;
/// buffers may be freed by any thread.
class Uploads {
 public:
  /// Smaller copies are not worth two events.
  static constexpr std::size_t kLeastBytes = std::size_t{128} << 10;

  Uploads(DeviceBackend& backend, BufferAllocator& device_allocator, const PeerWatch& peers);

  BufferAllocator& allocator() { return *allocator_; }
  /// Fills a buffer of allocator(); what the compute stream gets from now on comes after it.
  void fill(DeviceContext& context, std::byte* to, const std::byte* from, std::size_t bytes);
  /// Whether buffers were freed of which settle() does not know yet.
  bool any_freed() const { return any_freed_.load(std::memory_order_relaxed); }
  /// Notes that what is queued now may still use them.
  void settle(DeviceContext& context);

 private:
  void wait_until_unused(DeviceContext& context, std::byte* buffer);

  PinnedRing ring_;
  std::atomic<bool> any_freed_{false};
  Mutex mutex_;
  std::vector<std::byte*> freed_ TUTTI_GUARDED_BY(mutex_);
  std::unordered_map<std::byte*, std::shared_ptr<DeviceEvent>> unused_after_
      TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<BufferAllocator> allocator_;
};

// Pinned memory through which bytes come from a device while others use the device.

/// Blocks of pinned memory for copies to the host: a copy to other memory keeps the calling thread,
/// and with it the device's context, until the device is there. As many blocks as threads that copy
/// at once. Any thread.
class Downloads {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

  explicit Downloads(DeviceBackend& backend) : backend_(backend) {}
  ~Downloads();
  Downloads& operator=(Downloads&&) = delete;

  /// A block for one copy after the other; nullptr when the system has no pinned memory.
  void* take();
  /// After the last copy is done. A block whose copy may still come is never given back.
  void give_back(void* block);

 private:
  DeviceBackend& backend_;
  Mutex mutex_;
  std::vector<void*> idle_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti

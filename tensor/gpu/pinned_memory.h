// Pinned host memory: buffers, a ring, and copies that run concurrently with a GPU's computations.
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

// Host memory for copies to and from GPUs, so that the copies do not block a thread.

/// Allocates pinned host memory with undefined content, from a cache. Falls back to pageable memory
/// (logged once), in which case copies block the calling thread. Freed memory may be reused at
/// once, so wait for its GPU copies first. Thread-safe.
BufferRef allocate_pinned(std::size_t bytes);

// Pinned host memory for copies to a device, so that the copies do not block a thread.

/// Ring buffer that is filled from front to back repeatedly. A piece of the ring is reused after
/// the copy from it is done. Not thread-safe.
class PinnedRing {
 public:
  /// `backend` and `peers` (those of the destination device) must outlive this object.
  PinnedRing(DeviceBackend& backend, std::size_t size, const PeerWatch& peers);
  ~PinnedRing();
  PinnedRing& operator=(PinnedRing&&) = delete;

  std::size_t largest_piece() const { return size_ / 4; }
  /// Returns memory for at most largest_piece() bytes; nullptr if the system has no pinned memory.
  /// Waits for the oldest copies while the ring has no room.
  std::byte* place(std::size_t bytes);
  /// Sets the event that is recorded after the copy from the newest piece.
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

// Copies batches to a GPU concurrently with its computations. Copies on the compute stream would
// wait for all steps that are queued on that stream. Large copies therefore use both the copy
// stream and device memory that is reserved for them. A freed buffer may be overwritten as soon as
// all work queued before the free is done, even while later steps run.

/// Uploads to one device. Only the thread that holds the context may call fill() and settle(); any
/// thread may free buffers.
class Uploads {
 public:
  /// Minimum size, in bytes, of a copy that is worth the cost of two events.
  static constexpr std::size_t kLeastBytes = std::size_t{128} << 10;

  Uploads(DeviceBackend& backend, BufferAllocator& device_allocator, const PeerWatch& peers);

  BufferAllocator& allocator() { return *allocator_; }
  /// Copies into a buffer of allocator(). Work that is queued in the compute stream after this call
  /// runs after the copy.
  void fill(DeviceContext& context, std::byte* to, const std::byte* from, std::size_t bytes);
  /// Returns true if buffers were freed since the last call to settle().
  bool any_freed() const { return any_freed_.load(std::memory_order_relaxed); }
  /// Records that work queued so far may still use the freed buffers.
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

// Pinned memory for copies from a device. Other threads can use the device during a copy.

/// Blocks of pinned memory for copies to the host. A copy to other memory would block the calling
/// thread, and with it the device's context, until the device reaches the copy. The number of
/// blocks is the largest number of concurrent copies so far. Thread-safe.
class Downloads {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

  explicit Downloads(DeviceBackend& backend) : backend_(backend) {}
  ~Downloads();
  Downloads& operator=(Downloads&&) = delete;

  /// Returns a block for any number of successive copies, or nullptr if the system has no pinned
  /// memory.
  void* take();
  /// Accepts a block for reuse. Requires: its last copy is done.
  void recycle(void* block);

 private:
  DeviceBackend& backend_;
  Mutex mutex_;
  std::vector<void*> idle_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti

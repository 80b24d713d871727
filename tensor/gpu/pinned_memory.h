// Pinned host memory: buffers, and a ring through which bytes reach a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "tutti/tensor/buffer.h"
#include "tutti/tensor/gpu/peer_work.h"

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
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

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

}  // namespace tutti

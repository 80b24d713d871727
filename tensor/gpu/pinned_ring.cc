// A ring of pinned host memory.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/pinned_ring.h"

#include "tutti/core/error.h"

namespace tutti {

PinnedRing::PinnedRing(DeviceBackend& backend, std::size_t size, const PeerWatch& peers)
    : backend_(backend), size_(size), peers_(peers) {}

PinnedRing::~PinnedRing() {
  for (const Piece& piece : pieces_) {
    if (piece.copied) piece.copied->synchronize();
  }
  if (memory_) backend_.release_pinned(memory_);
}

void PinnedRing::wait_for_oldest() {
  if (pieces_.front().copied) peers_.wait(*pieces_.front().copied);
  pieces_.pop_front();
}

void PinnedRing::drop_done() {
  constexpr int kMost = 2;  // more than are added, so that few stay
  for (int i = 0; i < kMost && !pieces_.empty(); ++i) {
    if (pieces_.front().copied && !pieces_.front().copied->is_done()) return;
    pieces_.pop_front();
  }
}

std::byte* PinnedRing::place(std::size_t bytes) {
  TUTTI_CHECK(bytes <= largest_piece(), "PinnedRing: ", bytes, " bytes of ", size_);
  if (!memory_) memory_ = static_cast<std::byte*>(backend_.allocate_pinned(size_));
  if (!memory_) return nullptr;
  drop_done();
  if (next_ + bytes > size_) {  // the rest of the ring stays empty
    while (!pieces_.empty() && pieces_.front().begin >= next_) wait_for_oldest();
    next_ = 0;
  }
  constexpr std::size_t kAlignment = 64;
  const std::size_t begin = next_;
  next_ = (begin + bytes + kAlignment - 1) / kAlignment * kAlignment;
  // Pieces lie around the ring in the order of their age.
  while (!pieces_.empty() && begin < pieces_.front().end && pieces_.front().begin < next_) {
    wait_for_oldest();
  }
  pieces_.push_back({begin, next_, nullptr});
  return memory_ + begin;
}

void PinnedRing::set_copied(std::shared_ptr<DeviceEvent> event) {
  pieces_.back().copied = std::move(event);
}

}  // namespace tutti

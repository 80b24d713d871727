// A ring of pinned host memory.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/pinned_ring.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti {

PinnedRing::PinnedRing(DeviceBackend& backend, std::size_t size) : backend_(backend), size_(size) {}

PinnedRing::~PinnedRing() {
  for (const Piece& piece : pieces_) {
    if (piece.copied) piece.copied->synchronize();
  }
  if (memory_) backend_.release_pinned(memory_);
}

bool PinnedRing::is_taken(std::size_t begin, std::size_t end) const {
  return std::ranges::any_of(
      pieces_, [&](const Piece& piece) { return begin < piece.end && piece.begin < end; });
}

std::byte* PinnedRing::place(std::size_t bytes) {
  TUTTI_CHECK(bytes <= largest_piece(), "PinnedRing: ", bytes, " bytes of ", size_);
  if (!memory_) memory_ = static_cast<std::byte*>(backend_.allocate_pinned(size_));
  if (!memory_) return nullptr;
  constexpr std::size_t kAlignment = 64;
  const std::size_t begin = next_ + bytes > size_ ? 0 : next_;
  const std::size_t end = (begin + bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (is_taken(begin, end)) {
    if (pieces_.front().copied) pieces_.front().copied->synchronize();
    pieces_.pop_front();
  }
  pieces_.push_back({begin, end, nullptr});
  next_ = end;
  return memory_ + begin;
}

void PinnedRing::set_copied(std::shared_ptr<DeviceEvent> event) {
  pieces_.back().copied = std::move(event);
}

}  // namespace tutti

// Pinned host memory: buffers, and a ring through which bytes reach a device.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/pinned_memory.h"

#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/buffer_allocator.h"
#include "tutti/tensor/device_backend.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {

// Host memory that GPUs copy from and to without anybody waiting.

namespace {

class PinnedMemory final : public MemorySource {
 public:
  std::byte* allocate(std::size_t size) override {
    return static_cast<std::byte*>(gpu_backend()->allocate_pinned(size));
  }
  void release(std::byte* data) noexcept override { gpu_backend()->release_pinned(data); }
};

BufferAllocator& pinned_allocator() {
  // Never destroyed, as that of other host memory; the process takes it with it.
  static BufferAllocator& allocator =
      *std::make_unique<BufferAllocator>(
           std::make_unique<PinnedMemory>(),
           BufferAllocatorOptions{.name = "pinned memory", .max_cached = kMaxCachedBytes})
           .release();
  return allocator;
}

}  // namespace

BufferRef allocate_pinned(std::size_t bytes) {
  try {
    return BufferRef::allocate(bytes, pinned_allocator());
  } catch (const Error& error) {
    log_warning_once(concat(error.message(), "; other host memory is used, which is slower"));
    return BufferRef::allocate(bytes);
  }
}

// A ring of pinned host memory.

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

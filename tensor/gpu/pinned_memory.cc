// Pinned host memory: buffers, a ring, and copies that run concurrently with a GPU's computations.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu/pinned_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensor/buffer_allocator.h"
#include "tensor/device_backend.h"
#include "tensor/gpu_device.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {

// Host memory that lets copies to and from GPUs run without blocking a thread.

namespace {

BufferAllocator& pinned_allocator() {
  // Never destroyed, like other host memory; the process releases the memory when it exits.
  static BufferAllocator& allocator =
      *std::make_unique<BufferAllocator>(
           MemorySource{[](std::size_t size) {
                          return static_cast<std::byte*>(gpu_backend()->allocate_pinned(size));
                        },
                        [](std::byte* data) { gpu_backend()->release_pinned(data); }},
           BufferAllocatorOptions{.name = "pinned memory", .max_cached = kMaxCachedBytes})
           .release();
  return allocator;
}

}  // namespace

BufferRef allocate_pinned(std::size_t bytes) {
  try {
    return pinned_allocator().allocate(bytes);
  } catch (const Error& error) {
    log_warning_once(
        concat(error.message(), "; pageable host memory is used instead, which is slower"));
    return BufferRef::allocate(bytes);
  }
}

// Ring buffer of pinned host memory.

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
  constexpr int kMost = 2;  // place() adds one piece per call, so few pieces remain
  for (int i = 0; i < kMost && !pieces_.empty(); ++i) {
    if (pieces_.front().copied && !pieces_.front().copied->is_done()) return;
    pieces_.pop_front();
  }
}

std::byte* PinnedRing::place(std::size_t bytes) {
  TUTTI_CHECK(bytes <= largest_piece(), "PinnedRing: expected at most ", largest_piece(),
              " bytes, got ", bytes);
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
  // The pieces are ordered by age, both in the list and around the ring.
  while (!pieces_.empty() && begin < pieces_.front().end && pieces_.front().begin < next_) {
    wait_for_oldest();
  }
  pieces_.push_back({begin, next_, nullptr});
  return memory_ + begin;
}

void PinnedRing::set_copied(std::shared_ptr<DeviceEvent> event) {
  pieces_.back().copied = std::move(event);
}

// Copies of batches to a GPU, concurrently with its computations.

namespace {

constexpr std::size_t kRingBytes = std::size_t{64} << 20;

}  // namespace

Uploads::Uploads(DeviceBackend& backend, BufferAllocator& device_allocator, const PeerWatch& peers)
    : ring_(backend, kRingBytes, peers) {
  BufferAllocatorOptions options;
  options.name = "uploads";
  options.granularity = GpuDevice::kAlignment;
  options.max_cached = kMaxCachedBytes;
  options.on_recycle = [this](std::byte* buffer) {
    MutexLock lock(mutex_);
    freed_.push_back(buffer);
    any_freed_ = true;
  };
  MemorySource memory = memory_of(device_allocator);
  memory.release = [this, recycle = std::move(memory.release)](std::byte* buffer) {
    {
      MutexLock lock(mutex_);  // forgets the buffer before its memory is released
      std::erase(freed_, buffer);
      unused_after_.erase(buffer);
    }
    recycle(buffer);
  };
  allocator_ = std::make_unique<BufferAllocator>(std::move(memory), std::move(options));
}

void Uploads::settle(DeviceContext& context) {
  const std::shared_ptr<DeviceEvent> now = context.record(StreamId::kCompute);
  MutexLock lock(mutex_);
  for (std::byte* buffer : freed_) unused_after_[buffer] = now;
  freed_.clear();
  any_freed_ = false;
}

void Uploads::wait_until_unused(DeviceContext& context, std::byte* buffer) {
  std::shared_ptr<DeviceEvent> unused;
  {
    MutexLock lock(mutex_);
    const auto found = unused_after_.find(buffer);
    if (found != unused_after_.end()) {
      unused = std::move(found->second);
      unused_after_.erase(found);
    }
  }
  // Newly allocated memory may still be in use by work of its previous owner.
  if (!unused) unused = context.record(StreamId::kCompute);
  context.wait(StreamId::kCopy, *unused);
}

void Uploads::fill(DeviceContext& context, std::byte* to, const std::byte* from,
                   std::size_t bytes) {
  if (any_freed()) settle(context);
  wait_until_unused(context, to);
  const std::size_t step = ring_.largest_piece();
  std::shared_ptr<DeviceEvent> copied;
  for (std::size_t first = 0; first < bytes; first += step) {
    const std::size_t count = std::min(step, bytes - first);
    std::byte* const place = ring_.place(count);
    if (place) std::memcpy(place, from + first, count);
    context.copy_to_device(to + first, place ? place : from + first, count, StreamId::kCopy);
    copied = context.record(StreamId::kCopy);
    if (place) ring_.set_copied(copied);
  }
  context.wait(StreamId::kCompute, *copied);
}

// Pinned memory for copies from a device.

Downloads::~Downloads() {
  MutexLock lock(mutex_);
  for (void* block : idle_) backend_.release_pinned(block);
}

void* Downloads::take() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      void* const block = idle_.back();
      idle_.pop_back();
      return block;
    }
  }
  return backend_.allocate_pinned(kBlockBytes);
}

void Downloads::recycle(void* block) {
  if (!block) return;
  MutexLock lock(mutex_);
  idle_.push_back(block);
}

}  // namespace tutti

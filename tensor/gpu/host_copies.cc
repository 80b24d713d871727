// Copies between a GPU and the host beside the GPU's computations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/host_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/tensor/gpu/gpu_device.h"
#include "tutti/tensor/gpu/memory_of_allocator.h"

namespace tutti {

// Copies of batches to a GPU beside its computations.

namespace {

constexpr std::size_t kRingBytes = std::size_t{64} << 20;

}  // namespace

/// Forgets what it gives back: another owner may use it.
class Uploads::Memory final : public MemorySource {
 public:
  Memory(Uploads& uploads, BufferAllocator& allocator) : uploads_(uploads), memory_(allocator) {}
  std::byte* allocate(std::size_t size) override { return memory_.allocate(size); }
  void release(std::byte* data) noexcept override {
    {
      MutexLock lock(uploads_.mutex_);
      std::erase(uploads_.freed_, data);
      uploads_.unused_after_.erase(data);
    }
    memory_.release(data);
  }

 private:
  Uploads& uploads_;
  MemoryOfAllocator memory_;
};

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
  allocator_ = std::make_unique<BufferAllocator>(std::make_unique<Memory>(*this, device_allocator),
                                                 std::move(options));
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
  // Fresh memory was somebody else's a moment ago.
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

// Pinned memory through which bytes come from a device.

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

void Downloads::give_back(void* block) {
  if (!block) return;
  MutexLock lock(mutex_);
  idle_.push_back(block);
}

}  // namespace tutti

// Implements buffers, the caching allocator, and host memory.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <unordered_map>

#include "tensor/buffer_allocator.h"
#include "tensor/gpu_device.h"
#include "tutti/core/error.h"
#include "tutti/tensor/device_memory.h"

namespace tutti {

// Buffers and the caching allocator.
//
// A size class is a multiple of the granularity, and at most a quarter larger than the requested
// size rounded up to the granularity. A cached Buffer object keeps its memory, so that a cache hit
// costs one lock and does not call the source. When the cache is full, the least recently used size
// classes are emptied first.

Buffer::~Buffer() {
  if (data_) allocator_->source_.release(data_);
}

BufferAllocator::BufferAllocator(MemorySource source, BufferAllocatorOptions options)
    : source_(std::move(source)), options_(std::move(options)), limit_(options_.limit) {}

BufferAllocator::~BufferAllocator() { trim(); }

/// Size classes are 1, 2, 3, 4 units, then four steps per doubling: 5, 6, 7, 8, 10, ...
BufferAllocator::SizeClass BufferAllocator::size_class(std::size_t size) const {
  const std::size_t unit = options_.granularity;
  const std::size_t units = std::max<std::size_t>((size + unit - 1) / unit, 1);
  if (units <= kStepsPerDoubling) return {units - 1, units * unit};
  const auto log2 = static_cast<std::size_t>(std::bit_width(units - 1)) - 1;  // 2^log2 < units
  const std::size_t step = (std::size_t{1} << log2) / kStepsPerDoubling;
  const std::size_t steps = (units + step - 1) / step;  // 5, 6, 7 or 8
  return {(log2 - 1) * kStepsPerDoubling + steps - kStepsPerDoubling - 1, steps * step * unit};
}

BufferRef BufferAllocator::allocate(std::size_t size) {
  constexpr std::size_t kMaxSize = std::size_t{1} << 60;
  if (size > kMaxSize) {
    const MutexLock lock(mutex_);
    fail_memory(size);
  }
  const SizeClass wanted = size_class(size);
  std::unique_ptr<Buffer> buffer = take_cached(wanted);
  if (!buffer) buffer = make_buffer(wanted);
  buffer->size_ = size;
  buffer->keeps_alive_ = weak_from_this().lock();
  buffer->references_.store(1, std::memory_order_relaxed);
  BufferRef reference;
  reference.buffer_ = buffer.release();
  return reference;
}

std::unique_ptr<Buffer> BufferAllocator::take_cached(const SizeClass& wanted) {
  MutexLock lock(mutex_);
  FreeList& list = lists_[wanted.index];
  ++statistics_.allocations;
  statistics_.in_use += wanted.bytes;
  if (list.buffers.empty()) return nullptr;
  statistics_.peak_in_use = std::max(statistics_.peak_in_use, statistics_.in_use);
  std::unique_ptr<Buffer> buffer = std::move(list.buffers.back());
  list.buffers.pop_back();
  list.last_use = ++clock_;
  ++statistics_.cache_hits;
  statistics_.cached -= wanted.bytes;
  return buffer;
}

std::unique_ptr<Buffer> BufferAllocator::make_buffer(const SizeClass& wanted) {
  auto buffer = std::make_unique<Buffer>();
  buffer->allocator_ = this;
  buffer->capacity_ = wanted.bytes;
  stay_within_limit(wanted.bytes);
  buffer->data_ = source_.allocate(wanted.bytes);
  if (!buffer->data_) {
    if (options_.on_shortage) options_.on_shortage();
    trim();
    buffer->data_ = source_.allocate(wanted.bytes);
  }
  if (!buffer->data_) {
    MutexLock lock(mutex_);
    statistics_.in_use -= wanted.bytes;
    fail_memory(wanted.bytes);
  }
  MutexLock lock(mutex_);  // after allocation, so that failed requests do not count
  statistics_.peak_in_use = std::max(statistics_.peak_in_use, statistics_.in_use);
  return buffer;
}

bool BufferAllocator::fits_limit() {
  std::vector<std::unique_ptr<Buffer>> evicted;
  MutexLock lock(mutex_);
  const auto held = [this]()
                        TUTTI_REQUIRES(mutex_) { return statistics_.in_use + statistics_.cached; };
  while (statistics_.cached > 0 && held() > limit()) evict_oldest(evicted);
  return held() <= limit();
}

void BufferAllocator::stay_within_limit(std::size_t wanted) {
  if (limit() == BufferAllocatorOptions::kUnlimited || fits_limit()) return;
  if (options_.on_shortage) options_.on_shortage();
  if (fits_limit()) return;
  MutexLock lock(mutex_);
  statistics_.in_use -= wanted;
  fail_memory(wanted);
}

void BufferAllocator::fail_memory(std::size_t wanted) const {
  const std::string allowed =
      limit() == BufferAllocatorOptions::kUnlimited ? std::string() : concat(", limit ", limit());
  fail(ErrorCode::kResourceExhausted, options_.name, ": no memory for ", wanted, " bytes; ",
       statistics_.in_use, " in use, ", statistics_.cached, " cached", allowed, "; ",
       options_.advice);
}

void BufferAllocator::recycle(Buffer* handed_out) {
  std::unique_ptr<Buffer> buffer(handed_out);
  const std::shared_ptr<BufferAllocator> self = std::move(buffer->keeps_alive_);
  const std::size_t capacity = buffer->capacity_;
  if (options_.on_recycle) options_.on_recycle(buffer->data_);
  std::vector<std::unique_ptr<Buffer>> evicted;  // freed after the lock is released
  MutexLock lock(mutex_);
  statistics_.in_use -= capacity;
  if (capacity > options_.max_cached) {
    evicted.push_back(std::move(buffer));
    return;
  }
  statistics_.cached += capacity;
  FreeList& list = lists_[size_class(capacity).index];
  list.last_use = ++clock_;
  list.buffers.push_back(std::move(buffer));
  while (statistics_.cached > options_.max_cached) evict_oldest(evicted);
}

AllocatorStatistics BufferAllocator::statistics() const {
  MutexLock lock(mutex_);
  return statistics_;
}

void BufferAllocator::reset_peak() {
  MutexLock lock(mutex_);
  statistics_.peak_in_use = statistics_.in_use;
}

void BufferAllocator::trim() {
  std::vector<std::unique_ptr<Buffer>> evicted;
  MutexLock lock(mutex_);
  while (statistics_.cached > 0) evict_oldest(evicted);
}

void BufferAllocator::evict_oldest(std::vector<std::unique_ptr<Buffer>>& evicted) {
  FreeList* oldest = nullptr;
  for (FreeList& list : lists_) {
    if (list.buffers.empty()) continue;
    if (!oldest || list.last_use < oldest->last_use) oldest = &list;
  }
  TUTTI_CHECK(oldest, options_.name, ": ", statistics_.cached, " cached bytes are not in any list");
  statistics_.cached -= oldest->buffers.back()->capacity_;
  evicted.push_back(std::move(oldest->buffers.back()));
  oldest->buffers.pop_back();
}

BufferRef BufferRef::allocate(std::size_t size) { return host_allocator().allocate(size); }

BufferRef BufferRef::allocate(std::size_t size, Device device) {
  return device.type == DeviceType::kCpu ? internal::cpu_allocator(device).allocate(size)
                                         : GpuDevice::of(device).allocate(size);
}

void BufferRef::recycle() {
  BufferAllocator& allocator = *buffer_->allocator_;
  if (const auto& keep = allocator.options_.keep_freed) {
    BufferRef freed;
    buffer_->references_.store(1, std::memory_order_relaxed);
    freed.buffer_ = buffer_;
    if (keep(freed)) return;
    freed.buffer_ = nullptr;
  }
  allocator.recycle(buffer_);
}

AllocatorStatistics allocator_statistics(Device device) {
  return internal::allocator_of(device).statistics();
}

void trim_allocator_cache(Device device) {
  device.type == DeviceType::kCpu ? internal::cpu_allocator(device).trim()
                                  : GpuDevice::of(device).trim();
}

// Sources of memory.

MemorySource memory_of(BufferAllocator& allocator) {
  struct Taken {
    Mutex mutex;
    std::unordered_map<std::byte*, BufferRef> buffers TUTTI_GUARDED_BY(mutex);
  };
  const auto taken = std::make_shared<Taken>();
  return {.allocate =
              [&allocator, taken](std::size_t size) {
                BufferRef buffer = allocator.allocate(size);
                std::byte* const data = buffer->data();
                MutexLock lock(taken->mutex);
                taken->buffers.emplace(data, std::move(buffer));
                return data;
              },
          .release =
              [taken](std::byte* data) {
                BufferRef buffer;  // destroyed after the lock is released
                MutexLock lock(taken->mutex);
                const auto found = taken->buffers.find(data);
                buffer = std::move(found->second);
                taken->buffers.erase(found);
              }};
}

namespace {

constexpr std::size_t kHostAlignment = 64;

std::byte* allocate_on_host(std::size_t size) {
  // Without huge pages, passes over large values spend much of their time on page-table lookups.
  // Systems without huge pages ignore the advice.
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const bool is_large = size >= kHugePage;
  void* data = nullptr;
  if (::posix_memalign(&data, is_large ? kHugePage : kHostAlignment, size) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
  if (is_large) (void)::madvise(data, size, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(data);
}

}  // namespace

MemorySource host_memory() {
  return {allocate_on_host, [](std::byte* data) { std::free(data); }};
}

BufferAllocator& host_allocator() {
  // Never destroyed: tensors in static storage may outlive every other static object.
  static BufferAllocator& allocator =
      *std::make_unique<BufferAllocator>(
           host_memory(),
           BufferAllocatorOptions{.granularity = kHostAlignment, .max_cached = kMaxCachedBytes})
           .release();
  return allocator;
}

}  // namespace tutti

// Distant tensors by the address of their memory, and the tracer of each thread.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/distant_values.h"

#include <atomic>
#include <unordered_map>
#include <utility>

#include "tensor/buffer_allocator.h"
#include "tensor/step_tracer.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

/// By where a buffer's memory begins; a buffer that is freed takes its entry along.
struct DistantValues {
  std::atomic<int> count{0};
  Mutex mutex;
  std::unordered_map<const std::byte*, std::shared_ptr<DistantValue>> values
      TUTTI_GUARDED_BY(mutex);

  std::shared_ptr<DistantValue> find(const std::byte* data) {
    if (count.load(std::memory_order_acquire) == 0) return nullptr;
    MutexLock lock(mutex);
    const auto found = values.find(data);
    return found == values.end() ? nullptr : found->second;
  }
  void add(const std::byte* data, std::shared_ptr<DistantValue> value) {
    MutexLock lock(mutex);
    values.insert_or_assign(data, std::move(value));
    count = static_cast<int>(values.size());
  }
  void remove(const std::byte* data) {
    if (count.load(std::memory_order_acquire) == 0) return;
    std::shared_ptr<DistantValue> removed;  // destroyed after the lock is released
    MutexLock lock(mutex);
    const auto found = values.find(data);
    if (found == values.end()) return;
    removed = std::move(found->second);
    values.erase(found);
    count = static_cast<int>(values.size());
  }
};

DistantValues& distant_values() {
  // Never destroyed: tensors in static storage may outlive every other static object.
  static DistantValues& all = *std::make_unique<DistantValues>().release();
  return all;
}

/// Host memory that is only touched when the elements come; its own allocator, so that no other
/// buffer pays for looking itself up when it is freed.
BufferAllocator& distant_allocator() {
  static BufferAllocator& allocator =
      *std::make_unique<BufferAllocator>(
           make_host_memory(),
           BufferAllocatorOptions{
               .name = "host memory of distant values",
               .max_cached = kMaxCachedBytes,
               .on_recycle = [](std::byte* data) { distant_values().remove(data); }})
           .release();
  return allocator;
}

thread_local StepTracer* current_tracer = nullptr;
thread_local bool asks_for_addresses = false;

}  // namespace

namespace internal {

Tensor distant_tensor(const TensorSpec& spec, Device device, std::shared_ptr<DistantValue> value) {
  const MutableTensor memory(spec.shape, spec.dtype, distant_allocator());
  distant_values().add(memory.buffer()->data(), std::move(value));
  return memory.freeze().to(device);
}

std::shared_ptr<DistantValue> distant_value(const Tensor& tensor) {
  return distant_values().find(tensor.buffer()->data());
}

std::size_t offset_in_buffer(const Tensor& tensor) {
  const bool outer = std::exchange(asks_for_addresses, true);
  const auto* const first = static_cast<const std::byte*>(tensor.address());
  asks_for_addresses = outer;
  return static_cast<std::size_t>(first - tensor.buffer()->data());
}

void bring_home(const BufferRef& buffer) {
  if (asks_for_addresses) return;
  if (const auto value = distant_values().find(buffer->data())) value->bring(buffer->data());
}

void forget_distant(const BufferRef& buffer) { distant_values().remove(buffer->data()); }

}  // namespace internal

StepTracer* StepTracer::current() { return current_tracer; }

bool host_reads_at_once(const Tensor& value) {
  return value.device().type == DeviceType::kCpu && !StepTracer::current();
}

StepTracerScope::StepTracerScope(StepTracer& tracer)
    : previous_(std::exchange(current_tracer, &tracer)) {}

StepTracerScope::~StepTracerScope() { current_tracer = previous_; }

}  // namespace tutti

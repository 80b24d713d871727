// Lazy values, keyed by their memory addresses, and each thread's hooks.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/step_hooks.h"

#include <atomic>
#include <unordered_map>
#include <utility>

#include "tensor/buffer_allocator.h"
#include "tensor/tensor_impl.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

/// Lazy values, keyed by their buffer's address; freeing a buffer removes its entry.
struct LazyValues {
  std::atomic<int> count{0};
  Mutex mutex;
  std::unordered_map<const std::byte*, std::shared_ptr<LazyValue>> values TUTTI_GUARDED_BY(mutex);

  std::shared_ptr<LazyValue> find(const std::byte* data) {
    if (count.load(std::memory_order_acquire) == 0) return nullptr;
    MutexLock lock(mutex);
    const auto found = values.find(data);
    return found == values.end() ? nullptr : found->second;
  }
  void add(const std::byte* data, std::shared_ptr<LazyValue> value) {
    MutexLock lock(mutex);
    values.insert_or_assign(data, std::move(value));
    count = static_cast<int>(values.size());
  }
  void remove(const std::byte* data) {
    if (count.load(std::memory_order_acquire) == 0) return;
    std::shared_ptr<LazyValue> removed;  // destroyed after the lock is released
    MutexLock lock(mutex);
    const auto found = values.find(data);
    if (found == values.end()) return;
    removed = std::move(found->second);
    values.erase(found);
    count = static_cast<int>(values.size());
  }
};

LazyValues& lazy_values() {
  // Never destroyed, because tensors in static storage may outlive every other static object.
  static LazyValues& all = *std::make_unique<LazyValues>().release();
  return all;
}

/// Allocator of host memory that is first touched when the elements are materialized. It is
/// separate, so that only its own freed buffers are looked up among the lazy values.
BufferAllocator& lazy_allocator() {
  static BufferAllocator& allocator =
      *std::make_unique<BufferAllocator>(
           host_memory(),
           BufferAllocatorOptions{
               .name = "host memory of lazy values",
               .max_cached = kMaxCachedBytes,
               .on_recycle = [](std::byte* data) { lazy_values().remove(data); }})
           .release();
  return allocator;
}

/// Allocator of buffers that have a size and an address, but no memory for their elements.
BufferAllocator& placeholder_allocator() {
  static BufferAllocator& allocator =
      *std::make_unique<BufferAllocator>(
           MemorySource{[memory = host_memory()](std::size_t) { return memory.allocate(1); },
                        host_memory().release},
           BufferAllocatorOptions{
               .name = "placeholders",
               .max_cached = 0,
               .on_recycle = [](std::byte* data) { lazy_values().remove(data); }})
           .release();
  return allocator;
}

thread_local StepRecorder* current_recorder = nullptr;
thread_local StepTracer* current_tracer = nullptr;
thread_local RemoteRecorder* current_remote = nullptr;
thread_local OpPartitioner* current_partitioner = nullptr;
thread_local bool asks_for_addresses = false;

}  // namespace

namespace internal {

Tensor lazy_tensor(const TensorSpec& spec, Device device, std::shared_ptr<LazyValue> value) {
  const MutableTensor memory(spec.shape, spec.dtype, lazy_allocator());
  lazy_values().add(memory.buffer()->data(), std::move(value));
  return memory.freeze().to(device);
}

Tensor placeholder(const TensorSpec& spec, Device device, std::shared_ptr<LazyValue> value) {
  const BufferRef buffer = placeholder_allocator().allocate(num_bytes(spec.shape, spec.dtype));
  lazy_values().add(buffer->data(), std::move(value));
  return tensor_of_buffer(buffer, spec.shape, spec.dtype, device);
}

std::optional<Tensor> traced_tensor(const TensorSpec& spec, Device device, const Tensor* value) {
  return current_tracer ? current_tracer->create(spec, device, value) : std::nullopt;
}

std::shared_ptr<LazyValue> lazy_value(const Tensor& tensor) {
  return lazy_values().find(tensor.buffer()->data());
}

std::size_t offset_in_buffer(const Tensor& tensor) {
  const bool outer = std::exchange(asks_for_addresses, true);
  const auto* const first = static_cast<const std::byte*>(tensor.address());
  asks_for_addresses = outer;
  return static_cast<std::size_t>(first - tensor.buffer()->data());
}

void materialize(const BufferRef& buffer) {
  if (asks_for_addresses) return;
  if (const auto value = lazy_values().find(buffer->data())) value->materialize(buffer->data());
}

void forget_lazy_value(const BufferRef& buffer) { lazy_values().remove(buffer->data()); }

}  // namespace internal

StepRecorder* StepRecorder::current() { return current_recorder; }
StepRecorder* StepRecorder::exchange_current(StepRecorder* recorder) {
  return std::exchange(current_recorder, recorder);
}

StepTracer* StepTracer::current() { return current_tracer; }
StepTracer* StepTracer::exchange_current(StepTracer* tracer) {
  return std::exchange(current_tracer, tracer);
}

RemoteRecorder* RemoteRecorder::current() { return current_remote; }
RemoteRecorder* RemoteRecorder::exchange_current(RemoteRecorder* recorder) {
  return std::exchange(current_remote, recorder);
}

OpPartitioner* OpPartitioner::current() { return current_partitioner; }
OpPartitioner* OpPartitioner::exchange_current(OpPartitioner* partitioner) {
  return std::exchange(current_partitioner, partitioner);
}

std::shared_ptr<const DeviceSpec> remote_device_of(const Tensor& value) {
  return current_remote && value.defined() ? current_remote->device_of(value) : nullptr;
}

bool host_reads_at_once(const Tensor& value) {
  return value.device().type == DeviceType::kCpu && !StepTracer::current() &&
         !remote_device_of(value);
}

}  // namespace tutti

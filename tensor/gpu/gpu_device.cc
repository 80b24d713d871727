// Logical GPUs: opening, operations, copies.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <unordered_map>

#include "tensor/gpu/inventory.h"
#include "tensor/gpu/pinned_memory.h"
#include "tensor/gpu/step_capture.h"
#include "tensor/gpu_device.h"
#include "tensor/op_checks.h"
#include "tutti/core/clock.h"

namespace tutti {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{32} << 20;

/// Workspace that is freed when the call returns; later work on the stream may then reuse the
/// memory.
class CallWorkspace final : public Workspace {
 public:
  explicit CallWorkspace(Device device) : device_(device) {}
  void* allocate(std::size_t bytes) override {
    return buffers_.emplace_back(BufferRef::allocate(bytes, device_))->data();
  }

 private:
  const Device device_;
  std::vector<BufferRef> buffers_;
};

DeviceTensor device_tensor(const Tensor& tensor) {
  return {const_cast<void*>(tensor.address()), tensor.shape(), tensor.dtype()};
}

DeviceTensor device_tensor(const MutableTensor& tensor) {
  return {tensor.address(), tensor.shape(), tensor.dtype()};
}

template <class T>
std::vector<DeviceTensor> device_tensors(std::span<const T> tensors) {
  std::vector<DeviceTensor> result;
  result.reserve(tensors.size());
  for (const T& tensor : tensors) result.push_back(device_tensor(tensor));
  return result;
}

const void* step_values(const OpCall& call) {
  const auto* const dropout = std::get_if<DropoutAttributes>(&call.attributes);
  return dropout ? dropout->step_key : nullptr;
}

/// Throws during a capture, because a replay would not wait, and the host would not read the value
/// again.
void refuse_in_capture(Device device, const char* what) {
  if (!GraphMemory::current(device)) return;
  fail(ErrorCode::kFailedPrecondition, "captured step on ", device, ": ", what,
       ", which a replay cannot repeat; expected a step in which the host never waits for a value; "
       "return the tensor and read it outside the step");
}

BufferAllocatorOptions allocator_options(const LogicalGpu& gpu, std::function<void()> on_shortage) {
  BufferAllocatorOptions options;
  options.name = concat("gpu:", gpu.index);
  options.advice = "try a smaller batch, gradient_accumulation_steps or the policy mixed_bfloat16";
  options.granularity = GpuDevice::kAlignment;
  options.on_shortage = std::move(on_shortage);
  options.keep_freed = [device = Device{DeviceType::kGpu, gpu.index}](BufferRef& freed) {
    GraphMemory* const graph = GraphMemory::current(device);
    if (graph) graph->keep(std::move(freed));
    return graph != nullptr;
  };
  if (gpu.memory_limit > 0) options.limit = static_cast<std::size_t>(gpu.memory_limit);
  return options;
}

constexpr std::size_t kMaxGpus = 256;

struct OpenedGpus {
  Mutex mutex;
  std::vector<std::unique_ptr<GpuDevice>> devices TUTTI_GUARDED_BY(mutex);  // gpu:i at index i
  std::array<std::atomic<GpuDevice*>, kMaxGpus> found{};  // same as `devices`; read without a lock
};

OpenedGpus& opened_gpus() {
  // Never destroyed: tensors in static storage may outlive every other static object.
  static OpenedGpus& opened = *std::make_unique<OpenedGpus>().release();
  return opened;
}

}  // namespace

/// Pending updates, grouped into launches that run in the order of their first updates. Not
/// thread-safe.
struct GpuDevice::PendingUpdates {
  /// Parameters that the updates of one launch share.
  struct Launch {
    DType dtype = DType::kFloat32;
    DeviceRule rule;
    const double* step_values = nullptr;
  };

  bool empty() const { return groups_.empty(); }
  /// Returns true if adding the item to `launch` keeps all updates of the item's weights in call
  /// order.
  bool fits(const Launch& launch, const DeviceUpdateItem& item) const;
  void add(const Launch& launch, const DeviceUpdateItem& item, std::vector<BufferRef> buffers);
  void run(DeviceContext& context) const;

 private:
  struct Group {
    Launch launch;
    std::vector<DeviceUpdateItem> items;
  };
  std::size_t group_of(const Launch& launch) const;

  std::vector<Group> groups_;
  std::unordered_map<const void*, std::size_t> last_group_;  // keyed by the weights' address
  std::vector<BufferRef> buffers_;
};

std::size_t GpuDevice::PendingUpdates::group_of(const Launch& launch) const {
  const auto found = std::ranges::find_if(groups_, [&](const Group& group) {
    return group.launch.dtype == launch.dtype && group.launch.rule.id == launch.rule.id &&
           group.launch.rule.constants == launch.rule.constants &&
           group.launch.step_values == launch.step_values;
  });
  return static_cast<std::size_t>(found - groups_.begin());
}

bool GpuDevice::PendingUpdates::fits(const Launch& launch, const DeviceUpdateItem& item) const {
  const auto last = last_group_.find(item.weights);
  return last == last_group_.end() || last->second < group_of(launch);
}

void GpuDevice::PendingUpdates::add(const Launch& launch, const DeviceUpdateItem& item,
                                    std::vector<BufferRef> buffers) {
  const std::size_t group = group_of(launch);
  if (group == groups_.size()) groups_.push_back({launch, {}});
  groups_[group].items.push_back(item);
  last_group_[item.weights] = group;
  std::ranges::move(buffers, std::back_inserter(buffers_));
}

void GpuDevice::PendingUpdates::run(DeviceContext& context) const {
  for (const auto& [launch, items] : groups_) {
    context.update({launch.dtype, launch.rule, items, launch.step_values});
  }
}

MemorySource GpuDevice::memory(DeviceContext& context) {
  return {[&context](std::size_t size) { return static_cast<std::byte*>(context.allocate(size)); },
          [this, &context](std::byte* data) {
            if (has_pending_.load()) {  // a pending update may use this memory
              MutexLock lock(mutex_);
              flush_updates();
            }
            context.release(data);
          }};
}

GpuDevice* GpuDevice::opened(Device device) {
  const auto index = static_cast<std::size_t>(device.index);
  if (device.type != DeviceType::kGpu || index >= kMaxGpus) return nullptr;
  return opened_gpus().found[index].load(std::memory_order_acquire);
}

GpuDevice& GpuDevice::of(Device device) {
  if (GpuDevice* const found = opened(device)) return *found;
  require_available(device);
  TUTTI_CHECK(device.type == DeviceType::kGpu, "GpuDevice::of: ", device, " is not a GPU");
  const auto index = static_cast<std::size_t>(device.index);
  TUTTI_CHECK(index < kMaxGpus, "GpuDevice::of: expected an index below ", kMaxGpus, ", got ",
              device);
  OpenedGpus& gpus = opened_gpus();
  MutexLock lock(gpus.mutex);
  if (gpus.devices.size() <= index) gpus.devices.resize(index + 1);
  std::unique_ptr<GpuDevice>& found = gpus.devices[index];
  if (!found) found = std::make_unique<GpuDevice>(logical_gpus()[index], *gpu_backend());
  gpus.found[index].store(found.get(), std::memory_order_release);
  return *found;
}

void internal::close_gpus_for_test() {
  std::vector<std::unique_ptr<GpuDevice>> closed;
  OpenedGpus& gpus = opened_gpus();
  MutexLock lock(gpus.mutex);
  closed.swap(gpus.devices);
  for (auto& each : gpus.found) each = nullptr;
}

GpuDevice::GpuDevice(const LogicalGpu& description, DeviceBackend& backend)
    : description_(description),
      device_{DeviceType::kGpu, description.index},
      backend_(backend),
      context_(backend.open(description.ordinal)),
      allocator_(std::make_unique<BufferAllocator>(
          memory(*context_), allocator_options(description, [this] { trim_uploads(); }))),
      downloads_(std::make_unique<Downloads>(backend)),
      staging_(std::make_unique<PinnedRing>(backend, kStagingBytes, peers_)),
      uploads_(std::make_unique<Uploads>(backend, *allocator_, peers_)),
      pending_(std::make_unique<PendingUpdates>()) {}

GpuDevice::~GpuDevice() = default;

BufferRef GpuDevice::allocate(std::size_t bytes) {
  GraphMemory* const graph = GraphMemory::current(device());
  return (graph ? graph->allocator() : *allocator_).allocate(bytes);
}

void GpuDevice::run(const OpCall& call, std::span<const MutableTensor> outputs) {
  const auto inputs = device_tensors(std::span<const Tensor>(call.inputs));
  const auto results = device_tensors(outputs);
  CallWorkspace workspace(device());
  try {
    with_context([&](DeviceContext& context) {
      context.run({call.op, inputs, results, call.attributes, step_values(call)}, workspace);
    });
  } catch (const Error& error) {  // kernel errors name neither the caller nor the device
    throw error.with_context(concat(internal::who(call.op, call.where), " on ", device()));
  }
}

void GpuDevice::fill(const MutableTensor& tensor, double value) {
  if (tensor.num_elements() == 0) return;
  with_context([&](DeviceContext& context) { context.fill(device_tensor(tensor), value); });
}

void GpuDevice::clear(void* data, std::size_t bytes) {
  if (bytes == 0) return;
  with_context([&](DeviceContext& context) { context.clear(data, bytes, StreamId::kCompute); });
}

void GpuDevice::count_non_finite(std::span<const Tensor> tensors, const MutableTensor& counts) {
  const auto list = device_tensors(tensors);
  with_context([&](DeviceContext& context) {
    context.count_non_finite(list, static_cast<std::int64_t*>(counts.address()));
  });
}

void GpuDevice::sums_of_squares(std::span<const Tensor> tensors, const MutableTensor& sums) {
  const auto list = device_tensors(tensors);
  CallWorkspace workspace(device());
  with_context([&](DeviceContext& context) {
    context.sums_of_squares(list, static_cast<double*>(sums.address()), workspace);
  });
}

void GpuDevice::copy_from_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (GraphMemory* const graph = GraphMemory::current(device())) {
    const void* const kept = graph->keep_pinned(from, bytes);
    with_context([&](DeviceContext& context) {
      context.copy_to_device(to, kept, bytes, StreamId::kCompute);
    });
    return;
  }
  MutexLock lock(mutex_);
  begin_work();
  const std::size_t step = staging_->largest_piece();
  for (std::size_t first = 0; first < bytes; first += step) {
    stage(*context_, static_cast<std::byte*>(to) + first,
          static_cast<const std::byte*>(from) + first, std::min(step, bytes - first));
  }
}

void GpuDevice::stage(DeviceContext& context, std::byte* to, const std::byte* from,
                      std::size_t bytes) {
  std::byte* const place = staging_->place(bytes);
  if (place) std::memcpy(place, from, bytes);
  context.copy_to_device(to, place ? place : from, bytes, StreamId::kCompute);
  if (place) staging_->set_copied(context.record(StreamId::kCompute));
}

BufferRef GpuDevice::upload(const void* from, std::size_t bytes) {
  if (bytes < Uploads::kLeastBytes || GraphMemory::current(device())) {
    BufferRef buffer = BufferRef::allocate(bytes, device());
    copy_from_host(buffer->data(), from, bytes);
    return buffer;
  }
  BufferRef buffer = uploads_->allocator().allocate(bytes);
  with_context([&](DeviceContext& context) {
    uploads_->fill(context, buffer->data(), static_cast<const std::byte*>(from), bytes);
  });
  return buffer;
}

void GpuDevice::copy_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  refuse_in_capture(device(), "a value is read on the host");
  void* const block = downloads_->take();
  // Without pinned memory, a copy blocks the context, so this function waits for the preceding work
  // first.
  if (!block) wait_for([](DeviceContext&) {});
  const std::size_t step = block ? Downloads::kBlockBytes : bytes;
  for (std::size_t first = 0; first < bytes; first += step) {
    const std::size_t count = std::min(step, bytes - first);
    std::byte* const target = static_cast<std::byte*>(to) + first;
    wait_for([&](DeviceContext& context) {
      context.copy_to_host(block ? block : target, static_cast<const std::byte*>(from) + first,
                           count, StreamId::kCompute);
    });
    if (block) std::memcpy(target, block, count);
  }
  downloads_->recycle(block);
}

/// Calls put(context) and waits for the work that it queues; other threads may use the device
/// meanwhile.
template <class Put>
void GpuDevice::wait_for(const Put& put) {
  const std::shared_ptr<DeviceEvent> done = with_context([&](DeviceContext& context) {
    put(context);
    return context.record(StreamId::kCompute);
  });
  peers_.wait(*done);
}

bool GpuDevice::reaches(const GpuDevice& other) const {
  const int own = description_.ordinal, theirs = other.description_.ordinal;
  return own == theirs || backend_.can_access_peer(own, theirs);
}

void GpuDevice::copy_from_peer(void* to, Device of, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  GpuDevice& from = GpuDevice::of(of);
  const int ordinal = from.description_.ordinal;
  if (&from == this) {
    with_context([&](DeviceContext& context) {
      context.copy_from_peer(to, data, ordinal, bytes, StreamId::kCompute);
    });
    return;
  }
  if (!reaches(from)) {
    const BufferRef copy = BufferRef::allocate(bytes);
    from.copy_to_host(copy->data(), data, bytes);
    copy_from_host(to, copy->data(), bytes);
    return;
  }
  const auto record = [](DeviceContext& context) { return context.record(StreamId::kCompute); };
  const std::shared_ptr<DeviceEvent> written = from.with_context(record);
  const std::shared_ptr<DeviceEvent> copied = with_context([&](DeviceContext& context) {
    context.wait(StreamId::kCompute, *written);
    context.copy_from_peer(to, data, ordinal, bytes, StreamId::kCompute);
    return context.record(StreamId::kCompute);
  });
  from.with_context([&](DeviceContext& context) { context.wait(StreamId::kCompute, *copied); });
}

void GpuDevice::synchronize() {
  refuse_in_capture(device(), "the host waits");
  constexpr std::array kStreams = {StreamId::kCompute, StreamId::kCopy, StreamId::kCommunication};
  std::vector<std::shared_ptr<DeviceEvent>> events;
  with_context([&](DeviceContext& context) {
    for (const StreamId stream : kStreams) events.push_back(context.record(stream));
  });
  for (const auto& event : events) peers_.wait(*event);
}

void GpuDevice::watch(const std::shared_ptr<PeerWork>& work) {
  // Allocates a block now, before the peer work starts, because CUDA may wait for the device when
  // it allocates pinned memory.
  downloads_->recycle(downloads_->take());
  peers_.add(work);
}

void GpuDevice::update_later(DType dtype, const DeviceRule& rule, const DeviceUpdateItem& item,
                             std::vector<BufferRef> buffers, const double* step_values) {
  MutexLock lock(mutex_);
  const PendingUpdates::Launch launch{dtype, rule, step_values};
  if (!pending_->fits(launch, item)) flush_updates();
  pending_->add(launch, item, std::move(buffers));
  has_pending_ = true;
}

void GpuDevice::trim_uploads() { uploads_->allocator().trim(); }

void GpuDevice::trim() {
  trim_uploads();  // first, because it returns memory to allocator_
  allocator_->trim();
}

void GpuDevice::begin_work() {
  flush_updates();
  // Other streams cannot wait for events recorded during a capture.
  if (uploads_->any_freed() && !GraphMemory::current(device())) uploads_->settle(*context_);
}

void GpuDevice::flush_updates() {
  if (pending_->empty()) return;
  const PendingUpdates updates = std::exchange(*pending_, {});
  has_pending_ = false;
  updates.run(*context_);
}

int GpuDevice::count() { return static_cast<int>(logical_gpus().size()); }
const std::string& GpuDevice::why_none() { return gpu_unavailable_reason(); }

// Waiting for events that may never complete.

namespace {

constexpr auto kPause = std::chrono::microseconds(50);
constexpr int kPollsBeforePause = 500;  // these polls take a few hundred microseconds
constexpr int kPollsOfCheck = 25;       // number of polls per check, until polling starts to pause

void check_all(const PeerWatch::List& works) {
  for (const auto& work : works) work->check();
}

}  // namespace

void PeerWatch::add(const std::shared_ptr<PeerWork>& work) {
  MutexLock lock(mutex_);
  works_.push_back(work);
}

PeerWatch::List PeerWatch::list() const {
  List alive;
  MutexLock lock(mutex_);
  std::erase_if(works_, [&](const std::weak_ptr<PeerWork>& each) {
    std::shared_ptr<PeerWork> work = each.lock();
    if (!work) return true;
    alive.push_back(std::move(work));
    return false;
  });
  return alive;
}

void PeerWatch::wait(const DeviceEvent& event) const {
  const List works = list();
  if (std::ranges::none_of(works, [](const auto& work) { return work->is_pending(); })) {
    return event.synchronize();
  }
  wait_until(event, TimePoint::max());
}

bool PeerWatch::wait_until(const DeviceEvent& event, TimePoint deadline) const {
  const List works = list();
  for (int polls = 1;; ++polls) {
    if (event.is_done()) break;
    if (polls <= kPollsBeforePause && polls % kPollsOfCheck != 0) continue;
    check_all(works);
    if (Clock::system().now() >= deadline) return false;
    if (polls > kPollsBeforePause) Clock::system().sleep_for(kPause);
  }
  check_all(works);  // events complete even if their work was abandoned
  return true;
}

}  // namespace tutti

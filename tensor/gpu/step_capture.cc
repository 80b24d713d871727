// Capture of a step, and the host's work around each launch.
// SPDX-License-Identifier: Apache-2.0
//
// Step values (rates, keys) are stored in one block of device memory per replica. A copy before
// each launch writes this block, because a copy inside the graph would read host memory that the
// next step may already be changing.
#include "tensor/gpu/step_capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensor/device_backend.h"
#include "tensor/gpu_device.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

thread_local const GraphMemoryScope::Memories* current_memories = nullptr;

}  // namespace

struct GraphMemory::Pinned {
  Pinned(DeviceBackend& owner, std::size_t bytes)
      : backend(owner), data(owner.allocate_pinned(bytes)) {}
  ~Pinned() {
    if (data) backend.release_pinned(data);
  }
  Pinned& operator=(Pinned&&) = delete;

  DeviceBackend& backend;
  void* const data;
};

GraphMemory::GraphMemory(Device device)
    : device_(device),
      pool_(std::make_shared<BufferAllocator>(
          memory_of(GpuDevice::of(device).allocator()),
          BufferAllocatorOptions{.name = concat("captured graph on ", device),
                                 .granularity = GpuDevice::kAlignment})) {}

GraphMemory::~GraphMemory() = default;

GraphMemory* GraphMemory::current(Device device) {
  if (!current_memories) return nullptr;
  for (const auto& memory : *current_memories) {
    if (memory->device() == device) return memory.get();
  }
  return nullptr;
}

void GraphMemory::keep(BufferRef buffer) {
  MutexLock lock(mutex_);
  kept_.push_back(std::move(buffer));
}

const void* GraphMemory::keep_pinned(const void* from, std::size_t bytes) {
  MutexLock lock(mutex_);
  const Pinned& block =
      *pinned_.emplace_back(std::make_unique<Pinned>(GpuDevice::of(device_).backend(), bytes));
  if (!block.data) {
    fail(ErrorCode::kResourceExhausted, "captured graph on ", device_, ": no pinned memory for ",
         bytes, " bytes; create this tensor before the step is captured");
  }
  std::memcpy(block.data, from, bytes);
  return block.data;
}

GraphMemoryScope::GraphMemoryScope(const Memories& memories)
    : previous_(std::exchange(current_memories, &memories)) {}
GraphMemoryScope::~GraphMemoryScope() { current_memories = previous_; }

}  // namespace tutti

namespace tutti::internal {

std::vector<std::shared_ptr<VariableMemory>> UsedVariables::list() const {
  MutexLock lock(mutex_);
  return list_;
}

void UsedVariables::uses(const std::shared_ptr<VariableMemory>& memory) {
  if (memory->device().type != DeviceType::kGpu) return;
  MutexLock lock(mutex_);
  if (std::ranges::find(list_, memory) == list_.end()) list_.push_back(memory);
}

class StepCapture::Recorder final : public StepRecorder {
 public:
  static constexpr std::int64_t kBlockBytes = 64 * 1024;

  Recorder(Device device, std::uint32_t replica,
           const std::vector<std::shared_ptr<VariableMemory>>& variables)
      : device_(device),
        replica_(replica),
        variables_(variables),
        block_(Shape{kBlockBytes}, DType::kUInt8, device) {}

  const void* reserve(Device device, std::size_t bytes, std::function<void(std::byte*)> write,
                      const Identity& identity) override;
  void on_replay(std::function<void()> prepare, std::function<void()> commit) override {
    effects_.push_back({std::move(prepare), std::move(commit)});
  }
  void uses(const std::shared_ptr<VariableMemory>& memory) override;
  void follows_step(const RandomKey& key) override { keys_.push_back(key); }
  bool is_of_step(const RandomKey& key) const override {
    return std::ranges::find(keys_, key) != keys_.end();
  }
  bool draws() const { return !keys_.empty(); }

  void prepare() const {
    for (const Effect& effect : effects_) effect.prepare();
  }
  void commit() const {
    for (const Effect& effect : effects_) effect.commit();
  }
  void write_values(const RandomContext& context);

 private:
  struct Effect {
    std::function<void()> prepare, commit;
  };
  struct Value {
    std::size_t offset = 0;
    std::function<void(std::byte*)> write;
    Identity identity{};
  };

  const Device device_;
  const std::uint32_t replica_;
  const std::vector<std::shared_ptr<VariableMemory>>& variables_;
  MutableTensor block_;
  std::vector<std::byte> host_;
  std::vector<Value> values_;
  std::vector<Effect> effects_;
  std::vector<RandomKey> keys_;
};

const void* StepCapture::Recorder::reserve(Device device, std::size_t bytes,
                                           std::function<void(std::byte*)> write,
                                           const Identity& identity) {
  TUTTI_CHECK(device == device_ && bytes % 8 == 0,
              "captured step: expected a multiple of 8 bytes on the replica's device, got ", bytes,
              " bytes on ", device, " for a replica on ", device_);
  const auto known = std::ranges::find(values_, identity, &Value::identity);
  if (identity != Identity{} && known != values_.end())
    return static_cast<const std::byte*>(block_.address()) + known->offset;
  const std::size_t offset = host_.size();
  if (offset + bytes > static_cast<std::size_t>(kBlockBytes)) {
    fail(ErrorCode::kResourceExhausted, "captured step: expected at most ", kBlockBytes,
         " bytes of values that change from step to step, got more; try several smaller steps");
  }
  host_.resize(offset + bytes);
  values_.push_back({offset, std::move(write), identity});
  return static_cast<const std::byte*>(block_.address()) + offset;
}

void StepCapture::Recorder::uses(const std::shared_ptr<VariableMemory>& memory) {
  if (std::ranges::find(variables_, memory) != variables_.end()) return;
  if (memory->device().type != DeviceType::kGpu) {
    fail(ErrorCode::kFailedPrecondition, "captured step: expected variables on GPUs, because a ",
         "replay repeats only GPU work, got one on ", memory->device(),
         "; create it in the strategy's scope, or read it outside the step");
  }
  fail(ErrorCode::kFailedPrecondition, "captured step: a variable of ", memory->dtype(), " ",
       memory->shape(), " on ", memory->device(),
       " is used for the first time during the capture; expected the same variables as in the "
       "previous call; try a larger num_warm_up_calls");
}

void StepCapture::Recorder::write_values(const RandomContext& context) {
  if (values_.empty()) return;
  const RandomContextScope scope({context.seed, context.step, replica_});
  for (const Value& value : values_) value.write(host_.data() + value.offset);
  GpuDevice::of(device_).copy_from_host(block_.address(), host_.data(), host_.size());
}

/// The devices of a capture, their memory, and the resulting graph.
struct StepCapture::Graph {
  explicit Graph(std::span<const Device> of_replicas);
  ~Graph();
  Graph& operator=(Graph&&) = delete;

  void begin();
  void end();
  void launch();
  /// Makes later work on the origin device wait for the work on the other devices.
  void wait_for_others();
  /// Makes later work on the other devices wait for the origin device's work.
  void order_other_devices();
  /// Returns the peer work of all devices.
  PeerWatch::List peer_work() const;

  std::vector<std::unique_ptr<GraphMemory>> memory;  // one per device, the origin's first
  bool capturing = false;
  std::function<void()> launch_captured;
};

namespace {

GpuDevice& gpu_of(const std::unique_ptr<GraphMemory>& memory) {
  return GpuDevice::of(memory->device());
}

void wait_for(GpuDevice& waiting, GpuDevice& other) {
  const std::shared_ptr<DeviceEvent> event =
      other.with_context([](DeviceContext& context) { return context.record(StreamId::kCompute); });
  waiting.with_context([&](DeviceContext& context) { context.wait(StreamId::kCompute, *event); });
}

}  // namespace

StepCapture::Graph::Graph(std::span<const Device> of_replicas) {
  for (const Device& device : of_replicas) {
    if (device.type != DeviceType::kGpu) {
      fail(ErrorCode::kUnimplemented, "captured step: expected replicas on GPUs, got one on ",
           device, "; run the step function directly");
    }
    const bool is_known =
        std::ranges::any_of(memory, [&](const auto& each) { return each->device() == device; });
    if (!is_known) memory.push_back(std::make_unique<GraphMemory>(device));
  }
}

StepCapture::Graph::~Graph() {
  if (!capturing) return;
  try {
    end();                  // the streams must stop capturing
  } catch (const Error&) {  // an invalid capture is discarded
  }
}

void StepCapture::Graph::wait_for_others() {
  for (std::size_t i = 1; i < memory.size(); ++i) wait_for(gpu_of(memory[0]), gpu_of(memory[i]));
}

void StepCapture::Graph::order_other_devices() {
  for (std::size_t i = 1; i < memory.size(); ++i) wait_for(gpu_of(memory[i]), gpu_of(memory[0]));
}

void StepCapture::Graph::begin() {
  const GraphMemoryScope capturing_memory(memory);
  wait_for_others();
  gpu_of(memory[0]).with_context([](DeviceContext& context) { context.begin_capture(); });
  capturing = true;
  order_other_devices();
}

void StepCapture::Graph::end() {
  const GraphMemoryScope capturing_memory(memory);
  capturing = false;
  wait_for_others();
  launch_captured =
      gpu_of(memory[0]).with_context([](DeviceContext& context) { return context.end_capture(); });
}

void StepCapture::Graph::launch() {
  wait_for_others();
  const PeerWatch::List works = peer_work();
  for (const auto& work : works) work->check_graph();
  std::shared_ptr<DeviceEvent> began, ended;
  gpu_of(memory[0]).with_context([&](DeviceContext& context) {
    if (!works.empty()) began = context.record(StreamId::kCompute);
    launch_captured();
    if (!works.empty()) ended = context.record(StreamId::kCompute);
  });
  for (const auto& work : works) work->note_graph(began, ended);
  order_other_devices();
}

PeerWatch::List StepCapture::Graph::peer_work() const {
  PeerWatch::List all;
  for (const auto& each : memory) {
    for (auto& work : gpu_of(each).peers().list()) {
      if (std::ranges::find(all, work) == all.end()) all.push_back(std::move(work));
    }
  }
  return all;
}

StepCapture::StepCapture(std::span<const Device> devices,
                         std::vector<std::shared_ptr<VariableMemory>> variables)
    : variables_(std::move(variables)), graph_(std::make_unique<Graph>(devices)) {
  for (std::size_t r = 0; r < devices.size(); ++r) {
    recorders_.push_back(
        std::make_unique<Recorder>(devices[r], static_cast<std::uint32_t>(r), variables_));
  }
  for (const auto& variable : variables_) variable->pin();
  graph_->begin();
}

StepCapture::~StepCapture() {
  graph_.reset();  // released first, because it uses the variables
  for (const auto& variable : variables_) variable->unpin();
}

StepCapture::ReplicaScope::ReplicaScope(StepCapture& capture, int replica)
    : recording_(*capture.recorders_[static_cast<std::size_t>(replica)]),
      memory_(capture.graph_->memory) {}

void StepCapture::end() {
  {
    const GraphMemoryScope memory(graph_->memory);
    for (const auto& variable : variables_) variable->settle();
  }
  graph_->end();
}

void StepCapture::prepare() {
  for (const auto& variable : variables_) variable->settle();
  for (const auto& recorder : recorders_) recorder->prepare();
}

bool StepCapture::draws() const {
  return std::ranges::any_of(recorders_, [](const auto& recorder) { return recorder->draws(); });
}

void StepCapture::launch(const RandomContext& context) {
  for (const auto& recorder : recorders_) recorder->write_values(context);
  graph_->launch();
}

void StepCapture::commit() { recorders_.front()->commit(); }

}  // namespace tutti::internal

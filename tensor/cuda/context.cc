// Calls of the CUDA runtime for one logical device.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/context.h"

#include <atomic>

#include "tensor/cuda/math_libraries.h"

namespace tutti::cuda {
namespace {

/// Captures under way in this process: other contexts' streams may take part in each.
std::atomic<int> num_captures{0};

/// Captured work, made ready to be launched many times.
class Graph final : public DeviceGraph {
 public:
  /// Takes `captured`. Launches go to `stream`, which outlives this. The GPU must be selected.
  Graph(const Gpu& gpu, cudaGraph_t captured, cudaStream_t stream);
  /// What was launched still runs to its end.
  ~Graph() override;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() override;

 private:
  const Gpu gpu_;
  const cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

Graph::Graph(const Gpu& gpu, cudaGraph_t captured, cudaStream_t stream)
    : gpu_(gpu), stream_(stream) {
  const cudaError_t status = cudaGraphInstantiate(&executable_, captured, 0);
  (void)cudaGraphDestroy(captured);
  check(status, "cudaGraphInstantiate");
  // Now, and not as part of the first launch.
  check(cudaGraphUpload(executable_, stream_), "cudaGraphUpload");
}

Graph::~Graph() {
  gpu_.use_quietly([this] { (void)cudaGraphExecDestroy(executable_); });
}

void Graph::launch() {
  gpu_.use([this] { check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); });
}

}  // namespace

Streams::Streams(const Gpu& gpu) : gpu_(gpu) {
  gpu_.use([this] {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    for (cudaStream_t& stream : streams_) {
      // Others wait for what is communicated: it goes first where both could run.
      const bool communication = &stream == &streams_.back();
      check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                         communication ? greatest : least),
            "cudaStreamCreate");
    }
  });
}

Streams::~Streams() {
  gpu_.use_quietly([this] {
    for (const cudaStream_t stream : streams_) {
      (void)cudaStreamSynchronize(stream);
      (void)cudaStreamDestroy(stream);
    }
  });
}

Context::Context(int ordinal)
    : gpu_(ordinal),
      streams_(gpu_),
      events_(std::make_shared<EventPool>(gpu_)),
      math_(gpu_, streams_) {
  reach_peers();
}

Context::~Context() = default;

/// Lets kernels of this GPU read the memory of those that it can reach.
void Context::reach_peers() {
  gpu_.use([this] {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    for (int peer = 0; peer < count; ++peer) {
      int reachable = 0;
      if (peer == gpu_.ordinal()) continue;
      check(cudaDeviceCanAccessPeer(&reachable, gpu_.ordinal(), peer), "cudaDeviceCanAccessPeer");
      if (reachable == 0) continue;
      const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {  // by another context on this GPU
        (void)cudaGetLastError();
      } else {
        check(status, "cudaDeviceEnablePeerAccess");
      }
    }
  });
}

void* Context::allocate(std::size_t bytes) {
  return gpu_.use([bytes]() -> void* {
    const NotCaptured not_captured;
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check(status, "cudaMalloc");
    return data;
  });
}

void Context::release(void* data) noexcept {
  gpu_.use_quietly([data] {
    const NotCaptured not_captured;
    (void)cudaFree(data);
  });
}

void Context::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                   StreamId stream) {
  if (bytes == 0) return;
  gpu_.use(
      [&] { check(cudaMemcpyAsync(to, from, bytes, kind, streams_[stream]), "cudaMemcpyAsync"); });
}

// The kind is left to CUDA, which knows every address: both calls also copy within the device.
void Context::copy_to_device(void* to, const void* from, std::size_t bytes, StreamId stream) {
  copy(to, from, bytes, cudaMemcpyDefault, stream);
}

void Context::copy_to_host(void* to, const void* from, std::size_t bytes, StreamId stream) {
  copy(to, from, bytes, cudaMemcpyDefault, stream);
}

void Context::copy_from_peer(void* to, const void* from, int from_ordinal, std::size_t bytes,
                             StreamId stream) {
  if (from_ordinal == gpu_.ordinal()) {
    copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    return;
  }
  if (bytes == 0) return;
  gpu_.use([&] {
    check(cudaMemcpyPeerAsync(to, gpu_.ordinal(), from, from_ordinal, bytes, streams_[stream]),
          "cudaMemcpyPeerAsync");
  });
}

void Context::clear(void* data, std::size_t bytes, StreamId stream) {
  if (bytes == 0) return;
  gpu_.use([&] { check(cudaMemsetAsync(data, 0, bytes, streams_[stream]), "cudaMemsetAsync"); });
}

std::shared_ptr<DeviceEvent> Context::record(cudaStream_t stream, bool timed) {
  return gpu_.use([&]() -> std::shared_ptr<DeviceEvent> {
    auto event = std::make_shared<Event>(events_, timed);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (num_captures.load() > 0) {
      check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
    }
    event->record(stream, status != cudaStreamCaptureStatusNone);
    return event;
  });
}

std::shared_ptr<DeviceEvent> Context::record(StreamId stream) {
  return record(streams_[stream], false);
}
std::shared_ptr<DeviceEvent> Context::record_timed(StreamId stream) {
  return record(streams_[stream], true);
}

std::shared_ptr<DeviceEvent> Context::record_foreign(void* stream) {
  gpu_.use([stream] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status),
          "cudaStreamIsCapturing");
    if (status == cudaStreamCaptureStatusNone) return;
    fail(ErrorCode::kFailedPrecondition,
         "the stream is captured, and a replay would not meet the others; expected a stream whose "
         "work runs; try the call outside the capture");
  });
  return record(static_cast<cudaStream_t>(stream), false);
}

void Context::wait(cudaStream_t stream, const DeviceEvent& event) {
  gpu_.use([&] {
    check(cudaStreamWaitEvent(stream, static_cast<const Event&>(event).get(), 0),
          "cudaStreamWaitEvent");
  });
}

void Context::wait(StreamId stream, const DeviceEvent& event) { wait(streams_[stream], event); }
void Context::wait_foreign(void* stream, const DeviceEvent& event) {
  wait(static_cast<cudaStream_t>(stream), event);
}

void Context::synchronize(StreamId stream) {
  gpu_.use([&] { check(cudaStreamSynchronize(streams_[stream]), "cudaStreamSynchronize"); });
}

// Relaxed: several threads put work into the streams that take part, memory may be allocated
// meanwhile (cudaMalloc is put into no stream), and any thread may end it.
void Context::begin_capture() {
  gpu_.use([this] {
    check(cudaStreamBeginCapture(streams_[StreamId::kCompute], cudaStreamCaptureModeRelaxed),
          "begin_capture");
    ++num_captures;
  });
}

std::unique_ptr<DeviceGraph> Context::end_capture() {
  --num_captures;
  return gpu_.use([this]() -> std::unique_ptr<DeviceGraph> {
    const cudaStream_t stream = streams_[StreamId::kCompute];
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(stream, &captured), "end_capture");
    return std::make_unique<Graph>(gpu_, captured, stream);
  });
}

// What kernels do: looked up and called.

namespace {

const KernelTable& table() {
  static const KernelTable table = [] {
    KernelTable filled;
    register_kernels(filled);
    return filled;
  }();
  return table;
}

/// The dtype that kernels are looked up by.
DType dtype_of(const DeviceCall& call) {
  return call.inputs.empty() ? call.outputs[0].dtype : call.inputs[0].dtype;
}

}  // namespace

void register_kernels(KernelTable& table) {
  register_elementwise_kernels(table);
  register_reduction_kernels(table);
  register_shape_kernels(table);
  register_indexing_kernels(table);
  register_scanning_kernels(table);
  register_loss_kernels(table);
  register_group_normalization_kernels(table);
  register_local_response_kernels(table);
  register_resizing_kernels(table);
  register_dropout_kernels(table);
  register_attention_kernels(table);
  register_matmul_kernels(table);
  register_convolution_kernels(table);
  register_pooling_kernels(table);
  register_batch_normalization_kernels(table);
  register_softmax_kernels(table);
}

Math::Math(const Gpu& gpu, const Streams& streams)
    : gpu_(gpu), streams_(streams), libraries_(std::make_unique<MathLibraries>()) {}

Math::~Math() {
  // The libraries give back memory of the GPU that is selected.
  gpu_.use_quietly([] {});
}

bool Math::supports(OpId op, DType dtype) const { return table().find(op, dtype) != nullptr; }

void Math::run(const DeviceCall& call, Workspace& workspace) {
  gpu_.use([&] {
    const DType dtype = dtype_of(call);
    const Kernel kernel = table().find(call.op, dtype);
    if (kernel == nullptr) {
      fail(ErrorCode::kUnimplemented, to_string(call.op), ": no kernel for ", dtype,
           " on GPUs; cast to float32, or run it on cpu:0");
    }
    kernel({call.inputs, call.outputs, call.attributes, call.step_values,
            streams_[StreamId::kCompute], *libraries_, workspace});
  });
}

void Math::fill(const DeviceTensor& tensor, double value) {
  gpu_.use([&] { cuda::fill(tensor, value, streams_[StreamId::kCompute]); });
}

void Math::update(const DeviceUpdate& update) {
  gpu_.use([&] { cuda::update(update, streams_[StreamId::kCompute]); });
}

void Math::combine(const DeviceCombine& combine, StreamId stream) {
  gpu_.use([&] { cuda::combine(combine, streams_[stream]); });
}

void Math::copy_many(std::span<const DeviceCopy> copies, StreamId stream) {
  gpu_.use([&] { cuda::copy_many(copies, streams_[stream]); });
}

void Math::scatter(const DeviceScatter& scatter) {
  gpu_.use([&] { cuda::scatter(scatter, streams_[StreamId::kCompute]); });
}

void Math::count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts) {
  gpu_.use([&] { cuda::count_non_finite(tensors, counts, streams_[StreamId::kCompute]); });
}

void Math::sums_of_squares(std::span<const DeviceTensor> tensors, double* sums,
                           Workspace& workspace) {
  gpu_.use([&] { cuda::sums_of_squares(tensors, sums, workspace, streams_[StreamId::kCompute]); });
}

}  // namespace tutti::cuda

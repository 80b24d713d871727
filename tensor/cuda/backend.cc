// GPUs of the CUDA runtime, and their logical devices: streams, events, memory, captures.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/backend.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/math_libraries.h"
#include "tutti/core/sync.h"

namespace tutti::cuda {
namespace {

// Logical devices.

/// Number of captures in progress in this process; each may include streams of several contexts.
std::atomic<int> num_captures{0};

/// Pool of unused events of one GPU, because creating an event takes longer than recording one.
/// Thread-safe.
class EventPool {
 public:
  explicit EventPool(const Gpu& gpu) : gpu_(gpu) {}
  ~EventPool() {
    gpu_.use_quietly([this]() TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis) {
      for (const auto& events : idle_) {
        for (const cudaEvent_t event : events) (void)cudaEventDestroy(event);
      }
    });
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  const Gpu& gpu() const { return gpu_; }
  /// Returns an event. Timed events are slower to record and to wait for. Requires: the GPU is
  /// selected.
  cudaEvent_t take(bool timed);
  void give_back(cudaEvent_t event, bool timed) noexcept;

 private:
  const Gpu gpu_;
  Mutex mutex_;
  std::array<std::vector<cudaEvent_t>, 2> idle_ TUTTI_GUARDED_BY(mutex_);  // untimed, timed
};

cudaEvent_t EventPool::take(bool timed) {
  {
    MutexLock lock(mutex_);
    std::vector<cudaEvent_t>& idle = idle_[timed ? 1 : 0];
    if (!idle.empty()) {
      const cudaEvent_t event = idle.back();
      idle.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
  return event;
}

void EventPool::give_back(cudaEvent_t event, bool timed) noexcept {
  try {
    MutexLock lock(mutex_);
    idle_[timed ? 1 : 0].push_back(event);
  } catch (const std::exception&) {  // not enough memory for the list
    gpu_.use_quietly([event] { (void)cudaEventDestroy(event); });
  }
}

/// Event that returns its CUDA event to the pool on destruction.
class Event final : public DeviceEvent {
 public:
  Event(std::shared_ptr<EventPool> pool, bool timed)
      : pool_(std::move(pool)), timed_(timed), event_(pool_->take(timed)) {}
  ~Event() override { pool_->give_back(event_, timed_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  /// `captured` is true if the stream is being captured. Requires: the GPU is selected.
  void record(cudaStream_t stream, bool captured) {
    captured_ = captured;
    check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }

  bool is_done() const override {
    if (captured_) return false;  // launching a graph does not record its events
    return pool_->gpu().use([this] {
      const UncapturedScope not_captured;
      const cudaError_t status = cudaEventQuery(event_);
      if (status != cudaErrorNotReady) check(status, "cudaEventQuery");
      if (status == cudaErrorNotReady) (void)cudaGetLastError();  // clears CUDA's last error
      return status == cudaSuccess;
    });
  }

  void synchronize() const override {
    pool_->gpu().use([this] {
      if (captured_) {
        fail(ErrorCode::kFailedPrecondition,
             "synchronize: the host cannot wait for an event of a captured step; wait after the "
             "launch");
      }
      check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    });
  }

  double milliseconds_since(const DeviceEvent& earlier) const override {
    return pool_->gpu().use([&] {
      const auto& first = static_cast<const Event&>(earlier);
      if (!timed_ || !first.timed_) {
        fail(ErrorCode::kInvalidArgument,
             "milliseconds_since: expected two events from record_timed(), got one without a time");
      }
      float milliseconds = 0.0F;
      check(cudaEventElapsedTime(&milliseconds, first.event_, event_), "cudaEventElapsedTime");
      return double{milliseconds};
    });
  }

 private:
  const std::shared_ptr<EventPool> pool_;
  const bool timed_;
  bool captured_ = false;
  cudaEvent_t event_ = nullptr;
};

/// Captured work that can be launched repeatedly.
class Graph {
 public:
  /// Takes ownership of `captured`. `stream` must outlive this object. Requires: the GPU is
  /// selected.
  Graph(const Gpu& gpu, cudaGraph_t captured, cudaStream_t stream) : gpu_(gpu), stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, captured, 0);
    (void)cudaGraphDestroy(captured);
    check(status, "cudaGraphInstantiate");
    // Uploads the graph now, so that the first launch does not have to.
    check(cudaGraphUpload(executable_, stream_), "cudaGraphUpload");
  }
  /// Does not stop launches in progress.
  ~Graph() {
    gpu_.use_quietly([this] { (void)cudaGraphExecDestroy(executable_); });
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() const {
    gpu_.use([this] { check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); });
  }

 private:
  const Gpu gpu_;
  const cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

/// Streams of one context, in StreamId order. They do not wait for the default stream.
class Streams {
 public:
  explicit Streams(const Gpu& gpu) : gpu_(gpu) {
    gpu_.use([this] {
      int least = 0, greatest = 0;
      check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
            "cudaDeviceGetStreamPriorityRange");
      for (cudaStream_t& stream : streams_) {
        // Communication has priority over computation, because other GPUs wait for it.
        const bool communication = &stream == &streams_.back();
        check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                           communication ? greatest : least),
              "cudaStreamCreate");
      }
    });
  }
  ~Streams() {
    gpu_.use_quietly([this] {
      for (const cudaStream_t stream : streams_) {
        (void)cudaStreamSynchronize(stream);
        (void)cudaStreamDestroy(stream);
      }
    });
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  cudaStream_t operator[](StreamId stream) const {
    return streams_[static_cast<std::size_t>(stream)];
  }

 private:
  const Gpu gpu_;
  std::array<cudaStream_t, 3> streams_{};
};

const KernelTable& kernel_table() {
  static const KernelTable table = [] {
    KernelTable filled;
    register_kernels(filled);
    return filled;
  }();
  return table;
}

class Context final : public DeviceContext {
 public:
  explicit Context(int ordinal)
      : gpu_(ordinal), streams_(gpu_), events_(std::make_shared<EventPool>(gpu_)) {
    reach_peers();
  }
  /// Waits for the work in its streams.
  ~Context() override {
    // Selects this GPU, because the libraries free memory on the selected GPU.
    gpu_.use_quietly([] {});
  }

  bool supports(OpId op, DType dtype) const override {
    return kernel_table().find(op, dtype) != nullptr;
  }
  void run(const DeviceCall& call, Workspace& workspace) override;
  void fill(const DeviceTensor& tensor, double value) override {
    gpu_.use([&] { cuda::fill(tensor, value, compute_stream()); });
  }
  void update(const DeviceUpdate& update) override {
    gpu_.use([&] { cuda::update(update, compute_stream()); });
  }
  void combine(const DeviceCombine& combine, StreamId stream) override {
    gpu_.use([&] { cuda::combine(combine, streams_[stream]); });
  }
  void copy_many(std::span<const DeviceCopy> copies, StreamId stream) override {
    gpu_.use([&] { cuda::copy_many(copies, streams_[stream]); });
  }
  void scatter(const DeviceScatter& scatter) override {
    gpu_.use([&] { cuda::scatter(scatter, compute_stream()); });
  }
  void count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts) override {
    gpu_.use([&] { cuda::count_non_finite(tensors, counts, compute_stream()); });
  }
  void sums_of_squares(std::span<const DeviceTensor> tensors, double* sums,
                       Workspace& workspace) override {
    gpu_.use([&] { cuda::sums_of_squares(tensors, sums, workspace, compute_stream()); });
  }

  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override {
    gpu_.use_quietly([data] {
      const UncapturedScope not_captured;
      (void)cudaFree(data);
    });
  }
  // CUDA derives the direction from the addresses, so both calls also copy within the device.
  void copy_to_device(void* to, const void* from, std::size_t bytes, StreamId stream) override {
    copy(to, from, bytes, cudaMemcpyDefault, stream);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, StreamId stream) override {
    copy(to, from, bytes, cudaMemcpyDefault, stream);
  }
  void copy_from_peer(void* to, const void* from, int from_ordinal, std::size_t bytes,
                      StreamId stream) override;
  void clear(void* data, std::size_t bytes, StreamId stream) override {
    if (bytes == 0) return;
    gpu_.use([&] { check(cudaMemsetAsync(data, 0, bytes, streams_[stream]), "cudaMemsetAsync"); });
  }

  std::shared_ptr<DeviceEvent> record(StreamId stream) override {
    return record(streams_[stream], false);
  }
  std::shared_ptr<DeviceEvent> record_timed(StreamId stream) override {
    return record(streams_[stream], true);
  }
  void wait(StreamId stream, const DeviceEvent& event) override { wait(streams_[stream], event); }
  void synchronize(StreamId stream) override {
    gpu_.use([&] { check(cudaStreamSynchronize(streams_[stream]), "cudaStreamSynchronize"); });
  }
  void* native_stream(StreamId stream) override { return streams_[stream]; }
  std::shared_ptr<DeviceEvent> record_foreign(void* stream) override;
  void wait_foreign(void* stream, const DeviceEvent& event) override {
    wait(static_cast<cudaStream_t>(stream), event);
  }

  // Relaxed mode: several threads put work into the participating streams, memory may be allocated
  // meanwhile (cudaMalloc is not a stream operation), and any thread may end the capture.
  void begin_capture() override {
    gpu_.use([this] {
      check(cudaStreamBeginCapture(compute_stream(), cudaStreamCaptureModeRelaxed),
            "begin_capture");
      ++num_captures;
    });
  }
  std::function<void()> end_capture() override {
    --num_captures;
    return gpu_.use([this]() -> std::function<void()> {
      cudaGraph_t captured = nullptr;
      check(cudaStreamEndCapture(compute_stream(), &captured), "end_capture");
      const auto graph = std::make_shared<const Graph>(gpu_, captured, compute_stream());
      return [graph] { graph->launch(); };
    });
  }

 private:
  cudaStream_t compute_stream() const { return streams_[StreamId::kCompute]; }
  std::shared_ptr<DeviceEvent> record(cudaStream_t stream, bool timed);
  void wait(cudaStream_t stream, const DeviceEvent& event) {
    gpu_.use([&] {
      check(cudaStreamWaitEvent(stream, static_cast<const Event&>(event).get(), 0),
            "cudaStreamWaitEvent");
    });
  }
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, StreamId stream) {
    if (bytes == 0) return;
    gpu_.use([&] {
      check(cudaMemcpyAsync(to, from, bytes, kind, streams_[stream]), "cudaMemcpyAsync");
    });
  }
  void reach_peers();

  const Gpu gpu_;
  const Streams streams_;
  const std::shared_ptr<EventPool> events_;
  MathLibraries libraries_;
};

/// Enables peer access to the memory of all GPUs that this GPU can reach.
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
      if (status == cudaErrorPeerAccessAlreadyEnabled) {  // another context on this GPU enabled it
        (void)cudaGetLastError();
      } else {
        check(status, "cudaDeviceEnablePeerAccess");
      }
    }
  });
}

void Context::run(const DeviceCall& call, Workspace& workspace) {
  gpu_.use([&] {
    const DType dtype = call.inputs.empty() ? call.outputs[0].dtype : call.inputs[0].dtype;
    const Kernel kernel = kernel_table().find(call.op, dtype);
    if (kernel == nullptr) {
      fail(ErrorCode::kUnimplemented, to_string(call.op), ": no kernel for ", dtype,
           " on GPUs; cast to float32, or run it on cpu:0");
    }
    kernel({call.inputs, call.outputs, call.attributes, call.step_values, compute_stream(),
            libraries_, workspace});
  });
}

void* Context::allocate(std::size_t bytes) {
  return gpu_.use([bytes]() -> void* {
    const UncapturedScope not_captured;
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

std::shared_ptr<DeviceEvent> Context::record_foreign(void* stream) {
  gpu_.use([stream] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status),
          "cudaStreamIsCapturing");
    if (status == cudaStreamCaptureStatusNone) return;
    fail(ErrorCode::kFailedPrecondition,
         "the stream is being captured, and a replay would not synchronise with the other ranks; "
         "expected a stream that is not being captured; make the call outside the capture");
  });
  return record(static_cast<cudaStream_t>(stream), false);
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

// The GPUs.

namespace {

std::string version_text(int version) {  // 13000: 13.0
  return concat(version / 1000, ".", version % 1000 / 10);
}

/// Scope that restores the calling thread's selected GPU when it ends.
class SelectionScope {
 public:
  SelectionScope() { (void)cudaGetDevice(&ordinal_); }
  ~SelectionScope() { (void)cudaSetDevice(ordinal_); }
  SelectionScope(const SelectionScope&) = delete;
  SelectionScope& operator=(const SelectionScope&) = delete;

 private:
  int ordinal_ = 0;
};

/// Returns the clock rate of the memory in GHz; 0 if the driver does not report it.
double memory_clock_ghz(int ordinal) {
  int kilohertz = 0;
  if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, ordinal) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0.0;
  }
  return kilohertz / 1e6;
}

}  // namespace

std::string Backend::description() const {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return concat("CUDA ", version_text(runtime), ", driver ", version_text(driver), ", ",
                math_libraries_description());
}

PhysicalDevice Backend::inspect(int ordinal) const {
  const SelectionScope selection;
  const Gpu gpu(ordinal);
  return gpu.use([&] {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    PhysicalDevice device;
    device.name = properties.name;
    device.major = properties.major;
    device.minor = properties.minor;
    device.num_multiprocessors = properties.multiProcessorCount;
    device.memory_clock_ghz = memory_clock_ghz(ordinal);
    std::array<char, 32> bus_id{};
    check(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), ordinal),
          "cudaDeviceGetPCIBusId");
    device.pci_bus_id = bus_id.data();
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    device.free_bytes = static_cast<std::int64_t>(free);
    device.total_bytes = static_cast<std::int64_t>(total);
    return device;
  });
}

bool Backend::can_access_peer(int from, int to) const {
  if (from == to) return true;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer");
  return can != 0;
}

int Backend::gpu_of(const void* data) const {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  const bool is_device =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  return is_device ? attributes.device : -1;
}

std::unique_ptr<DeviceContext> Backend::open(int ordinal) {
  return std::make_unique<Context>(ordinal);
}

std::shared_ptr<void> Backend::keep_selection() const { return std::make_shared<SelectionScope>(); }

void* Backend::allocate_pinned(std::size_t bytes) {
  const UncapturedScope not_captured;
  void* data = nullptr;
  check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "allocate_pinned");
  return data;
}

void Backend::release_pinned(void* data) noexcept {
  const UncapturedScope not_captured;
  (void)cudaFreeHost(data);
  (void)cudaGetLastError();
}

// The only function that the module exports: returns the backend, or the reason for its absence.

namespace {

/// Returns the reason why the CUDA runtime reports no GPU.
std::string reason_without_gpu(cudaError_t status) {
  const char* const mask = std::getenv("CUDA_VISIBLE_DEVICES");
  if (status == cudaErrorNoDevice && mask != nullptr) {
    return concat("CUDA_VISIBLE_DEVICES='", mask, "' shows no GPU; unset it");
  }
  if (status == cudaErrorNoDevice) return "CUDA finds no GPU in this machine; see nvidia-smi";
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    return concat("the NVIDIA driver is too old: it supports CUDA ", driver / 1000, ".",
                  driver % 1000 / 10, ", expected ", CUDART_VERSION / 1000, ".",
                  CUDART_VERSION % 1000 / 10, " or later; install a newer driver");
  }
  return concat("CUDA cannot start: ", cudaGetErrorName(status), ": ", cudaGetErrorString(status),
                "; see nvidia-smi");
}

/// Returns a backend that lives as long as the process. Throws if there is no GPU.
DeviceBackend* open_backend(const char* build_id) {
  if (std::string_view(build_id) != backend_build_id()) {
    fail(ErrorCode::kFailedPrecondition,
         "the CUDA module and tutti's library are from different builds: expected ", build_id,
         ", got ", backend_build_id(), "; build and install both together");
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    fail(ErrorCode::kUnavailable,
         reason_without_gpu(count == 0 && status == cudaSuccess ? cudaErrorNoDevice : status));
  }
  static Backend& backend = *std::make_unique<Backend>(count).release();
  return &backend;
}

}  // namespace
}  // namespace tutti::cuda

extern "C" __attribute__((visibility("default"))) tutti::DeviceBackend* tutti_open_backend(
    const char* build_id, char* reason, std::size_t size) {
  try {
    return tutti::cuda::open_backend(build_id);
  } catch (const std::exception& error) {
    std::snprintf(reason, size, "%s", error.what());
  } catch (...) {
    std::snprintf(reason, size, "the CUDA module failed for an unknown reason");
  }
  return nullptr;
}

// Fake GPUs whose memory the host cannot access, for tests of code that calls a backend.
// SPDX-License-Identifier: Apache-2.0
//
// The memory of a fake GPU is host memory that only the backend makes accessible, while it works,
// so any other host access ends the test program. The kernels are those of the CPU.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensor/gpu/inventory.h"
#include "tensor/gpu_device.h"
#include "tensor/kernel_table.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::testing {

/// Memory of all fake devices, protected from host access, and the recorded requests.
struct FakeGpuState {
  static constexpr std::size_t kArena = std::size_t{4} << 30;  // unused pages take no memory
  static constexpr std::size_t kPage = 4096;

  FakeGpuState()
      : arena(static_cast<std::byte*>(::mmap(
            nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ~FakeGpuState() { ::munmap(arena, kArena); }
  FakeGpuState(const FakeGpuState&) = delete;
  FakeGpuState& operator=(const FakeGpuState&) = delete;

  void note(std::string what) {
    MutexLock lock(mutex);
    notes.push_back(std::move(what));
  }

  std::byte* const arena;
  Mutex mutex;
  int num_open = 0;
  std::size_t used = 0;
  std::map<std::size_t, std::vector<void*>> freed;  // freed blocks by size
  std::map<void*, std::size_t> sizes;
  std::vector<std::string> notes;
  std::size_t memory_left = kArena;  // bytes that can still be allocated
  int num_pinned = 0;
};

/// Scope in which the host can access the arena.
class FakeGpuAccess {
 public:
  explicit FakeGpuAccess(FakeGpuState& state) : state_(state) { change(+1); }
  ~FakeGpuAccess() { change(-1); }
  FakeGpuAccess(const FakeGpuAccess&) = delete;
  FakeGpuAccess& operator=(const FakeGpuAccess&) = delete;

 private:
  void change(int by) {
    MutexLock lock(state_.mutex);
    const bool was_open = state_.num_open > 0;
    state_.num_open += by;
    const bool is_open = state_.num_open > 0;
    if (was_open == is_open || state_.used == 0) return;
    ::mprotect(state_.arena, state_.used, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  FakeGpuState& state_;
};

class FakeGpuEvent final : public DeviceEvent {
 public:
  bool is_done() const override { return true; }
  void synchronize() const override {}
  double milliseconds_since(const DeviceEvent&) const override { return 0.0; }
};

class FakeGpuContext final : public DeviceContext {
 public:
  FakeGpuContext(FakeGpuState& state, int ordinal) : state_(state), name_(concat("gpu", ordinal)) {}

  bool supports(OpId op, DType dtype) const override {
    return cpu_kernels().find(op, dtype) != nullptr;
  }
  void run(const DeviceCall& call, Workspace& workspace) override {
    state_.note(concat(name_, " run ", to_string(call.op)));
    if (call.op == OpId::kErf) {
      fail(ErrorCode::kUnimplemented, "no kernel for ", call.inputs[0].dtype);
    }
    if (call.op == OpId::kFloor) (void)workspace.allocate(1000);
    const FakeGpuAccess access(state_);
    OpCall on_host;
    on_host.op = call.op;
    on_host.attributes = call.attributes;
    for (const DeviceTensor& x : call.inputs) on_host.inputs.push_back(host_copy(x));
    for (const DeviceTensor& y : call.outputs) on_host.outputs.push_back({y.shape, y.dtype});
    const std::vector<Tensor> results = run_kernel(cpu_kernels(), on_host);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto bytes = results[i].bytes();
      if (!bytes.empty()) std::memcpy(call.outputs[i].data, bytes.data(), bytes.size());
    }
  }
  void fill(const DeviceTensor& tensor, double value) override {
    state_.note(concat(name_, " fill"));
    const Tensor filled = Tensor::full(tensor.shape, value, tensor.dtype, Device{});
    const FakeGpuAccess access(state_);
    std::memcpy(tensor.data, filled.bytes().data(), filled.num_bytes());
  }
  /// Applies w -= constants[0] * g to float32 elements, whatever the rule is.
  void update(const DeviceUpdate& update) override {
    state_.note(
        concat(name_, " update ", static_cast<int>(update.rule.id), " x", update.items.size()));
    const FakeGpuAccess access(state_);
    for (const DeviceUpdateItem& item : update.items) {
      for (std::size_t i = 0; i < item.count; ++i) {
        static_cast<float*>(item.weights)[i] -= static_cast<float>(update.rule.constants[0]) *
                                                static_cast<const float*>(item.gradient)[i];
      }
    }
  }
  /// Sums float32 inputs in order.
  void combine(const DeviceCombine& combine, StreamId) override {
    if (combine.op != ReduceOp::kSum || combine.dtype != DType::kFloat32) {
      fail(ErrorCode::kUnimplemented, "fake GPU: combine supports only SUM of float32");
    }
    state_.note(concat(name_, " combine ", combine.count * sizeof(float)));
    const FakeGpuAccess access(state_);
    for (std::size_t i = 0; i < combine.count; ++i) {
      float sum = 0.0f;
      for (const void* const input : combine.inputs) sum += static_cast<const float*>(input)[i];
      static_cast<float*>(combine.output)[i] = sum;
    }
  }
  void copy_many(std::span<const DeviceCopy> copies, StreamId) override {
    const FakeGpuAccess access(state_);
    for (const DeviceCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  void scatter(const DeviceScatter&) override {
    fail(ErrorCode::kUnimplemented, "fake GPU: scatter is not implemented");
  }
  void count_non_finite(std::span<const DeviceTensor>, std::int64_t*) override {
    fail(ErrorCode::kUnimplemented, "fake GPU: count_non_finite is not implemented");
  }
  /// Supports only float32.
  void sums_of_squares(std::span<const DeviceTensor> tensors, double* sums, Workspace&) override {
    const FakeGpuAccess access(state_);
    for (const DeviceTensor& tensor : tensors) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < tensor.shape.num_elements(); ++i) {
        const double value = static_cast<const float*>(tensor.data)[i];
        sum += value * value;
      }
      *sums++ = sum;
    }
  }
  void* allocate(std::size_t bytes) override {
    constexpr std::size_t kPage = FakeGpuState::kPage;
    const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
    MutexLock lock(state_.mutex);
    state_.notes.push_back(concat(name_, " allocate ", bytes));
    if (size > state_.memory_left) return nullptr;
    state_.memory_left -= size;
    void* data = nullptr;
    if (auto& list = state_.freed[size]; !list.empty()) {
      data = list.back();
      list.pop_back();
    } else {
      data = state_.arena + state_.used;
      if (state_.num_open > 0) ::mprotect(data, size, PROT_READ | PROT_WRITE);
      state_.used += size;
    }
    state_.sizes[data] = size;
    return data;
  }
  void release(void* data) noexcept override {
    MutexLock lock(state_.mutex);
    state_.notes.push_back(concat(name_, " release"));
    state_.memory_left += state_.sizes[data];
    state_.freed[state_.sizes[data]].push_back(data);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes, StreamId stream) override {
    copy("copy_to_device ", to, from, bytes, stream);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, StreamId stream) override {
    copy("copy_to_host ", to, from, bytes, stream);
  }
  void copy_from_peer(void* to, const void* from, int ordinal, std::size_t bytes,
                      StreamId stream) override {
    copy(concat("copy_from_gpu", ordinal, " ").c_str(), to, from, bytes, stream);
  }
  void clear(void* data, std::size_t bytes, StreamId) override {
    state_.note(concat(name_, " clear ", bytes));
    const FakeGpuAccess access(state_);
    std::memset(data, 0, bytes);
  }
  std::shared_ptr<DeviceEvent> record(StreamId stream) override {
    state_.note(concat(name_, " record", stream == StreamId::kCopy ? " copy stream" : ""));
    return std::make_shared<FakeGpuEvent>();
  }
  std::shared_ptr<DeviceEvent> record_timed(StreamId stream) override { return record(stream); }
  void wait(StreamId stream, const DeviceEvent&) override {
    state_.note(concat(name_, " wait", stream == StreamId::kCopy ? " copy stream" : ""));
  }
  void synchronize(StreamId) override { state_.note(concat(name_, " synchronize")); }
  void* native_stream(StreamId) override { return nullptr; }
  std::shared_ptr<DeviceEvent> record_foreign(void*) override {
    return std::make_shared<FakeGpuEvent>();
  }
  void wait_foreign(void*, const DeviceEvent&) override {}
  void begin_capture() override {
    fail(ErrorCode::kUnimplemented, "fake GPU: capture is not implemented");
  }
  std::function<void()> end_capture() override {
    fail(ErrorCode::kUnimplemented, "fake GPU: capture is not implemented");
  }

 private:
  static Tensor host_copy(const DeviceTensor& x) {
    MutableTensor copy(x.shape, x.dtype, Device{});
    if (copy.num_bytes() > 0) std::memcpy(copy.data(), x.data, copy.num_bytes());
    return copy.freeze();
  }
  void copy(const char* what, void* to, const void* from, std::size_t bytes, StreamId stream) {
    state_.note(concat(name_, " ", what, bytes, stream == StreamId::kCopy ? " copy stream" : ""));
    const FakeGpuAccess access(state_);
    std::memcpy(to, from, bytes);
  }

  FakeGpuState& state_;
  const std::string name_;
};

class FakeGpuBackend final : public DeviceBackend {
 public:
  explicit FakeGpuBackend(int num_gpus) : num_gpus_(num_gpus) {}

  std::string description() const override { return "fake GPUs"; }
  int num_devices() const override { return num_gpus_; }
  PhysicalDevice inspect(int) const override { return {}; }
  bool can_access_peer(int, int) const override { return peers; }
  int gpu_of(const void*) const override { return -1; }
  std::shared_ptr<void> keep_selection() const override { return nullptr; }
  std::unique_ptr<DeviceContext> open(int ordinal) override {
    return std::make_unique<FakeGpuContext>(state, ordinal);
  }
  void* allocate_pinned(std::size_t bytes) override {
    ++state.num_pinned;
    return bytes <= pinned_limit ? ::operator new(bytes, std::nothrow) : nullptr;
  }
  void release_pinned(void* data) noexcept override {
    --state.num_pinned;
    ::operator delete(data);
  }

  FakeGpuState state;
  bool peers = true;
  std::size_t pinned_limit = std::size_t{1} << 30;

 private:
  const int num_gpus_;
};

/// Provides fake devices gpu:0, gpu:1, ... for its lifetime. Requires: no tensor on them outlives
/// this object.
class FakeGpus {
 public:
  explicit FakeGpus(int num_gpus = 2, std::int64_t memory_limit = 0) : backend(num_gpus) {
    for (int i = 0; i < num_gpus; ++i) {
      LogicalGpu gpu;
      gpu.index = gpu.ordinal = i;
      gpu.memory_limit = memory_limit;
      gpus_.gpus.push_back(gpu);
    }
    gpus_.backend = &backend;
    internal::close_gpus_for_test();
    internal::set_gpus_for_test(&gpus_);
  }
  ~FakeGpus() {
    internal::close_gpus_for_test();
    internal::set_gpus_for_test(nullptr);
  }
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;

  /// Returns and removes the recorded notes, which describe requests to the devices.
  std::vector<std::string> take_notes() {
    MutexLock lock(backend.state.mutex);
    return std::exchange(backend.state.notes, {});
  }

  FakeGpuBackend backend;

 private:
  internal::GpusForTest gpus_;
};

}  // namespace tutti::testing

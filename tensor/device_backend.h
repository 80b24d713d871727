// What a kind of device beyond the CPU provides: memory, streams, copies, kernels, captured graphs.
// SPDX-License-Identifier: Apache-2.0
//
// Implemented by a module that is opened at run time (tensor/cuda/), called through
// tensor/gpu_device.h. Both are built together (backend_build_id()), so C++ types and tutti::Error
// cross this border. The classes are abstract because the host program cannot link the module, and
// because tests replace them: devices by fake ones, events by late ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/tensor/device.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/scatter_op.h"

namespace tutti {

/// Where work of a logical device queues: each stream runs in order, streams run side by side.
enum class StreamId { kCompute, kCopy, kCommunication };

/// Dense, row-major elements in the memory of a device. Does not own it.
struct DeviceTensor {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// Memory that a kernel needs besides its outputs; free for others once the kernel has run.
class Workspace {
 public:
  virtual ~Workspace() = default;
  /// Aligned to 256 bytes. Throws kResourceExhausted naming the device.
  virtual void* allocate(std::size_t bytes) = 0;
};

/// One operation. `step_values`: where a captured call finds the values that change from step to
/// step, in the device's memory (DropoutAttributes: the RandomKey); nullptr: those of `attributes`.
struct DeviceCall {
  OpId op = OpId::kCount;
  std::span<const DeviceTensor> inputs, outputs;
  const Attributes& attributes;
  const void* step_values = nullptr;
};

/// The elementwise part of an optimizer, as kernels know it.
enum class DeviceRuleId {
  kSgd,
  kAdam,
  kAdaMax,
  kAdagrad,
  kAdadelta,
  kRmsprop,
  kFtrl,
  kLion,
  kNadam,
  kLamb,
  kLars,
  kMovingAverage,
  kWeightDecay
};
/// A rule and the numbers that it uses in this step, in the order that update_rules.h states.
struct DeviceRule {
  static constexpr std::size_t kNumConstants = 12;
  static constexpr std::size_t kWeightDecay = 2;  // which constant decays weights before the rule
  DeviceRuleId id = DeviceRuleId::kSgd;
  std::array<double, kNumConstants> constants{};
};
/// Elements of one variable. Rules that use norms (kLamb, kLars) take a whole variable, and their
/// last slot is memory of num_sums(count) doubles that nobody else uses meanwhile.
struct DeviceUpdateItem {
  static constexpr std::size_t kMaxSlots = 4;
  static constexpr std::size_t kElementsPerSum = 2048;
  static constexpr std::size_t num_sums(std::size_t count) {
    return 2 * ((count + kElementsPerSum - 1) / kElementsPerSum);
  }
  void* weights = nullptr;
  const void* gradient = nullptr;
  std::array<void*, kMaxSlots> slots{};
  std::size_t count = 0;
};
/// Updates of many variables at once. `step_values`: kNumConstants doubles in the device's memory
/// that stand for rule.constants, or nullptr.
struct DeviceUpdate {
  DType dtype = DType::kFloat32;
  DeviceRule rule;
  std::span<const DeviceUpdateItem> items;
  const double* step_values = nullptr;
};

/// output[i] = the inputs' element i combined along the canonical tree (docs/determinism.md);
/// SUM, MIN, MAX or PRODUCT. All pointers can be reached from the device; output may be an input.
struct DeviceCombine {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  std::span<const void* const> inputs;
  void* output = nullptr;
  std::size_t count = 0;
};
/// One of many small copies within the device.
struct DeviceCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

/// values[i] put into rows[indices[i]], in the order of i; indices out of range are left out.
struct DeviceScatter {
  ScatterOp op = ScatterOp::kUpdate;
  DeviceTensor rows;     // [number of rows, ...]: changed
  DeviceTensor indices;  // [n] int32 or int64
  DeviceTensor values;   // [n, ...]
};

/// A point in a stream.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual bool is_done() const = 0;
  /// Returns when everything before it is done. Throws kInternal naming the device for a failure of
  /// that work.
  virtual void synchronize() const = 0;
  /// Between two events of record_timed() of one device, both done.
  virtual double milliseconds_since(const DeviceEvent& earlier) const = 0;
};

/// A logical device: a part of a GPU's memory, streams, and kernels. Calls are made by one thread
/// at a time, except for allocate() and release(), which any thread may call at any time, also
/// during a capture. Calls put work into a stream, kCompute unless they name one, and wait for
/// nothing.
class DeviceContext {
 public:
  virtual ~DeviceContext() = default;

  // Kernels.

  virtual bool supports(OpId op, DType dtype) const = 0;
  /// Throws kUnimplemented naming operation and dtype.
  virtual void run(const DeviceCall& call, Workspace& workspace) = 0;
  virtual void fill(const DeviceTensor& tensor, double value) = 0;
  virtual void update(const DeviceUpdate& update) = 0;
  virtual void combine(const DeviceCombine& combine, StreamId stream) = 0;
  virtual void copy_many(std::span<const DeviceCopy> copies, StreamId stream) = 0;
  virtual void scatter(const DeviceScatter& scatter) = 0;
  /// counts[i], in the device's memory: how many elements of tensor i are NaN or infinite.
  virtual void count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts) = 0;
  /// sums[i], in the device's memory: the sum of squares of the (floating) elements of tensor i, in
  /// double, along an order that depends on their number alone (another one than the CPU's).
  virtual void sums_of_squares(std::span<const DeviceTensor> tensors, double* sums,
                               Workspace& workspace) = 0;

  // Memory and copies.

  /// nullptr when the GPU has none left. Aligned to 256 bytes. Waits for nothing.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;

  /// Between host and device, or within the device. Pinned host memory must stay as it is until the
  /// copy is done; other host memory may change once the call has returned.
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes, StreamId stream) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, StreamId stream) = 0;
  /// From the memory of GPU `from_ordinal`, which may be this one.
  virtual void copy_from_peer(void* to, const void* from, int from_ordinal, std::size_t bytes,
                              StreamId stream) = 0;
  virtual void clear(void* data, std::size_t bytes, StreamId stream) = 0;

  // Streams.

  virtual std::shared_ptr<DeviceEvent> record(StreamId stream) = 0;
  /// An event that knows when it happened; slower than record().
  virtual std::shared_ptr<DeviceEvent> record_timed(StreamId stream) = 0;
  virtual void wait(StreamId stream, const DeviceEvent& event) = 0;
  /// Waits for what is in the stream.
  virtual void synchronize(StreamId stream) = 0;
  /// cudaStream_t, for libraries such as NCCL.
  virtual void* native_stream(StreamId stream) = 0;
  /// The same as record() and wait() for a stream of another library: a cudaStream_t of this GPU,
  /// nullptr for CUDA's default stream. record_foreign() throws kFailedPrecondition while the
  /// stream is captured.
  virtual std::shared_ptr<DeviceEvent> record_foreign(void* stream) = 0;
  virtual void wait_foreign(void* stream, const DeviceEvent& event) = 0;

  /// Until end_capture() what is put into the streams is noted instead of run; other streams take
  /// part by waiting for an event of kCompute, and kCompute must wait for them before the end.
  virtual void begin_capture() = 0;
  /// Returns what launches the captured work on the compute stream, again and again. Throws
  /// kFailedPrecondition when the work cannot be captured (a synchronisation, say).
  virtual std::function<void()> end_capture() = 0;
};

/// The GPUs that this process may use (CUDA_VISIBLE_DEVICES), numbered 0 .. num_devices() - 1.
/// Any thread.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  /// "CUDA 13.0, driver 13.0, cuBLAS 13.0.2, cuDNN 9.13.0".
  virtual std::string description() const = 0;
  virtual int num_devices() const = 0;
  virtual PhysicalDevice inspect(int ordinal) const = 0;
  virtual bool can_access_peer(int from, int to) const = 0;
  /// The GPU whose memory this address is; -1 for host memory, pinned or not.
  virtual int gpu_of(const void* data) const = 0;
  /// When the result goes, the calling thread gets the GPU back that it has selected now
  /// (cudaSetDevice): contexts select their own. By the same thread.
  virtual std::shared_ptr<void> keep_selection() const = 0;
  virtual std::unique_ptr<DeviceContext> open(int ordinal) = 0;
  /// Host memory that copies need not stage. Throws kInternal or kResourceExhausted.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(void* data) noexcept = 0;
};

/// Compared by host and module: a module of another build is refused.
const char* backend_build_id();

/// What the module exports as "tutti_open_backend": the backend, which lives as long as the
/// process, or nullptr with the reason in `reason` (one line, `size` bytes).
using OpenBackend = DeviceBackend* (*)(const char* build_id, char* reason, std::size_t size);

}  // namespace tutti

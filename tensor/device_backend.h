// Interface for devices other than the CPU: memory, streams, copies, kernels, captured graphs.
// SPDX-License-Identifier: Apache-2.0
//
// Implemented by a module that is opened at run time (tensor/cuda/) and called through
// tensor/gpu_device.h. The module and the host program are built together (backend_build_id()), so
// they exchange C++ types and tutti::Error. The classes are abstract because the host program
// cannot link the module, and because tests substitute fake devices and delayed events.
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

/// Streams of a logical device: each runs its work in order, concurrently with the others.
enum class StreamId { kCompute, kCopy, kCommunication };

/// Dense, row-major elements in device memory. Does not own them.
struct DeviceTensor {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// Memory that a kernel needs besides its outputs; reused after the kernel has run.
class Workspace {
 public:
  virtual ~Workspace() = default;
  /// Returns memory aligned to 256 bytes. Throws kResourceExhausted naming the device.
  virtual void* allocate(std::size_t bytes) = 0;
};

/// One call of an operation. `step_values`: device memory from which a captured call reads the
/// values that change from step to step (DropoutAttributes: the RandomKey). If it is nullptr, the
/// call uses `attributes`.
struct DeviceCall {
  OpId op = OpId::kCount;
  std::span<const DeviceTensor> inputs, outputs;
  const Attributes& attributes;
  const void* step_values = nullptr;
};

/// Elementwise update rule of an optimizer.
enum class DeviceRuleId {
  kSgd,
  kAdam,
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
/// An update rule and its constants for this step, in the order that update_rules.h specifies.
struct DeviceRule {
  static constexpr std::size_t kNumConstants = 12;
  static constexpr std::size_t kWeightDecay = 2;  // index of the decay applied before the rule
  DeviceRuleId id = DeviceRuleId::kSgd;
  std::array<double, kNumConstants> constants{};
};
/// Elements of one variable. Rules that use norms (kLamb, kLars) need a whole variable; their last
/// slot is scratch memory of num_sums(count) doubles.
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
/// Updates of many variables at once. `step_values`: kNumConstants doubles in device memory that
/// replace rule.constants, or nullptr.
struct DeviceUpdate {
  DType dtype = DType::kFloat32;
  DeviceRule rule;
  std::span<const DeviceUpdateItem> items;
  const double* step_values = nullptr;
};

/// Combines element i of all inputs into output[i] along the canonical tree (docs/determinism.md):
/// SUM, MIN, MAX or PRODUCT. The device can access all pointers; output may be an input.
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

/// Combines values[i] with rows[indices[i]], in ascending order of i; ignores out-of-range indices.
struct DeviceScatter {
  ScatterOp op = ScatterOp::kUpdate;
  DeviceTensor rows;     // [number of rows, ...], modified in place
  DeviceTensor indices;  // [n] int32 or int64
  DeviceTensor values;   // [n, ...]
};

/// A point in a stream.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual bool is_done() const = 0;
  /// Waits for all work that was queued before the event was recorded. Throws kInternal, naming the
  /// device, if that work failed.
  virtual void synchronize() const = 0;
  /// Returns the time since `earlier`. Requires: both events are done and were returned by
  /// record_timed() on the same device.
  virtual double milliseconds_since(const DeviceEvent& earlier) const = 0;
};

/// A logical device: its share of a GPU's memory, its streams and its kernels. Used by one thread
/// at a time, except for allocate() and release(), which are thread-safe and may be called during a
/// capture. Calls queue work in a stream (kCompute unless they name one) and do not wait.
class DeviceContext {
 public:
  virtual ~DeviceContext() = default;

  // Kernels.

  virtual bool supports(OpId op, DType dtype) const = 0;
  /// Runs the kernel of `call`. Throws kUnimplemented, naming the operation and the dtype, if there
  /// is no such kernel.
  virtual void run(const DeviceCall& call, Workspace& workspace) = 0;
  virtual void fill(const DeviceTensor& tensor, double value) = 0;
  virtual void update(const DeviceUpdate& update) = 0;
  virtual void combine(const DeviceCombine& combine, StreamId stream) = 0;
  virtual void copy_many(std::span<const DeviceCopy> copies, StreamId stream) = 0;
  virtual void scatter(const DeviceScatter& scatter) = 0;
  /// Writes the number of NaN or infinite elements in tensor i to counts[i], in device memory.
  virtual void count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts) = 0;
  /// Writes the sum of squares of floating-point tensor i to sums[i], in device memory. The sum is
  /// computed in double, in an order that depends only on the number of elements and differs from
  /// the CPU's.
  virtual void sums_of_squares(std::span<const DeviceTensor> tensors, double* sums,
                               Workspace& workspace) = 0;

  // Memory and copies.

  /// Returns memory aligned to 256 bytes; nullptr if the GPU has none left. Does not block.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;

  /// copy_to_device() and copy_to_host() copy between host and device, or within the device. Pinned
  /// host memory must not change until the copy is done; other host memory may change after the
  /// call returns.
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes, StreamId stream) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, StreamId stream) = 0;
  /// Copies from the memory of GPU `from_ordinal`, which may be this one.
  virtual void copy_from_peer(void* to, const void* from, int from_ordinal, std::size_t bytes,
                              StreamId stream) = 0;
  virtual void clear(void* data, std::size_t bytes, StreamId stream) = 0;

  // Streams.

  virtual std::shared_ptr<DeviceEvent> record(StreamId stream) = 0;
  /// Records an event with its time; slower than record().
  virtual std::shared_ptr<DeviceEvent> record_timed(StreamId stream) = 0;
  virtual void wait(StreamId stream, const DeviceEvent& event) = 0;
  /// Blocks until the work in the stream is done.
  virtual void synchronize(StreamId stream) = 0;
  /// Returns the cudaStream_t, for libraries such as NCCL.
  virtual void* native_stream(StreamId stream) = 0;
  /// Same as record() and wait(), but for a stream of another library: a cudaStream_t of this GPU,
  /// or nullptr for CUDA's default stream. record_foreign() throws kFailedPrecondition while the
  /// stream is being captured.
  virtual std::shared_ptr<DeviceEvent> record_foreign(void* stream) = 0;
  virtual void wait_foreign(void* stream, const DeviceEvent& event) = 0;

  /// Until end_capture(), captures the work enqueued in kCompute instead of running it. Other
  /// streams join by waiting for an event of kCompute; before end_capture(), kCompute must wait for
  /// these streams.
  virtual void begin_capture() = 0;
  /// Returns a function that launches the captured work on the compute stream, any number of times.
  /// Throws kFailedPrecondition if the work cannot be captured (for example, a synchronisation).
  virtual std::function<void()> end_capture() = 0;
};

/// The GPUs that this process may use (CUDA_VISIBLE_DEVICES), numbered from 0. Thread-safe.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  /// Returns "CUDA 13.0, driver 13.0, cuBLAS 13.0.2, cuDNN 9.13.0".
  virtual std::string description() const = 0;
  virtual int num_devices() const = 0;
  virtual PhysicalDevice inspect(int ordinal) const = 0;
  virtual bool can_access_peer(int from, int to) const = 0;
  /// Returns the GPU whose memory contains this address; -1 for host memory, pinned or not.
  virtual int gpu_of(const void* data) const = 0;
  /// Returns a guard that restores the calling thread's selected GPU (cudaSetDevice), because
  /// contexts select their own. Must be destroyed by the same thread.
  virtual std::shared_ptr<void> keep_selection() const = 0;
  virtual std::unique_ptr<DeviceContext> open(int ordinal) = 0;
  /// Allocates pinned host memory, so that copies need no staging. Throws kInternal or
  /// kResourceExhausted.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(void* data) noexcept = 0;
};

/// Identifier of the build. The host rejects a module from another build.
const char* backend_build_id();

/// Type of "tutti_open_backend", which the module exports. Returns the backend, which lives as long
/// as the process, or writes a one-line reason to `reason` (`size` bytes) and returns nullptr.
using OpenBackend = DeviceBackend* (*)(const char* build_id, char* reason, std::size_t size);

}  // namespace tutti

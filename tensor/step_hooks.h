// Hooks for steps that are recorded or traced, and lazy values.
// SPDX-License-Identifier: Apache-2.0
//
// These hooks belong to the thread that runs the step, and are null elsewhere.
// * A step is *recorded* (StepRecorder) while its kernels are captured: in replays, the devices
//   repeat the work, and the host repeats only the recorded effects.
// * A step is *traced* (StepTracer) instead of computed. Its operations return *lazy* tensors
//   (LazyValue), whose elements are materialized when the host first reads them.
// * Operations that belong to other tasks are recorded (RemoteRecorder) and run in those tasks; all
//   other operations of the step are computed as usual.
// * Operations on tensors that are sharded over a mesh run on the shards (OpPartitioner).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/core/random.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

class VariableMemory;
struct DeviceRule;

/// Recorder of everything that a captured step needs besides the devices' work. Host code must
/// record each result that changes from step to step.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  /// Returns the recorder of this thread; nullptr if no step is captured.
  static StepRecorder* current();

  /// Returns device memory of `bytes` bytes (a multiple of 8). Before each launch of the step,
  /// `write` computes the content of the memory, in the random context of that step and the
  /// replica. Calls with the same identity share the memory, except calls with the default
  /// identity.
  using Identity = std::array<std::uint64_t, 4>;
  virtual const void* reserve(Device device, std::size_t bytes,
                              std::function<void(std::byte*)> write,
                              const Identity& identity = {}) = 0;
  /// Records functions that the host calls in each replay: `prepare` of every replica before any
  /// `write`, and `commit` of replica 0 after the work is queued. `commit` updates counters as the
  /// step function would have.
  virtual void on_replay(std::function<void()> prepare, std::function<void()> commit) = 0;
  /// Records that a variable is read or written, so its elements must be in the same memory in each
  /// replay.
  virtual void uses(const std::shared_ptr<VariableMemory>& memory) = 0;
  /// Records that `key` comes from the random context, so that every step computes it again.
  virtual void follows_step(const RandomKey& key) = 0;
  virtual bool is_of_step(const RandomKey& key) const = 0;

 private:
  template <class Hook>
  friend class StepHookScope;
  static StepRecorder* exchange_current(StepRecorder* recorder);
};

/// Tracer of a step, for devices (of this process or another one) that run whole steps.
///
/// compute() (kernel_table.h), which dispatch() calls for every operation except views, passes the
/// call to the tracer of its thread instead of to a kernel. Views (reshapes, slices of whole rows)
/// bypass the tracer, which finds the lazy value of a view's buffer and the view's offset in it
/// (internal::lazy_value(), internal::offset_in_buffer()). Besides dispatch(), variables call the
/// tracer for reads and updates, and strategies call it for reductions over replicas. All calls
/// throw kUnimplemented, naming the operation and the line, if they cannot be part of the step.
class StepTracer {
 public:
  virtual ~StepTracer() = default;
  /// Returns the tracer of this thread; nullptr if operations run immediately.
  static StepTracer* current();

  /// Returns the outputs of an operation.
  virtual std::vector<Tensor> run(const OpCall& call) = 0;
  /// Returns `values` (the weights, then the rule's slots) after the update. The gradient is dense
  /// and not yet scaled: its scale is one of the rule's constants.
  virtual std::vector<Tensor> update(const DeviceRule& rule, std::span<const Tensor> values,
                                     const Tensor& gradient) = 0;
  /// Combines values over all replicas of the step, in replica order, by SUM, MEAN, MIN, MAX or
  /// PRODUCT.
  virtual std::vector<Tensor> all_reduce(ReduceOp op, std::span<const Tensor> values,
                                         const SourceLocation& where) = 0;
  /// Concatenates all replicas' values, which have equal shapes, along `axis`.
  virtual Tensor all_gather(const Tensor& value, int axis, const SourceLocation& where) = 0;
  /// Records that a variable is read. The whole variable becomes an argument of the traced program,
  /// even if operations use only views of its elements.
  virtual void note_variable(const Tensor& whole) = 0;
  /// Returns true if operations on the value are traced, because this step computed the value or
  /// the value is on the step's device.
  virtual bool holds(const Tensor& value) const = 0;
  /// Returns the tensor that the step uses instead of a new tensor that the host would fill, or
  /// instead of a copy of `value`. If the result is nullopt (the default), the caller allocates a
  /// tensor.
  virtual std::optional<Tensor> create(const TensorSpec&, Device, const Tensor* /*value*/) {
    return std::nullopt;
  }

 private:
  template <class Hook>
  friend class StepHookScope;
  static StepTracer* exchange_current(StepTracer* tracer);
};

/// Recorder for operations that belong to other tasks: operations in another task's DeviceScope,
/// and operations on another task's values. compute() calls it before looking for a kernel.
/// Recorded operations return lazy tensors on Device{}; their views bypass the recorder, as with a
/// StepTracer.
class RemoteRecorder {
 public:
  virtual ~RemoteRecorder() = default;
  /// Returns the recorder of this thread; nullptr if there is none.
  static RemoteRecorder* current();

  /// Returns the outputs of an operation that another task computes; nullopt if this process
  /// computes it.
  virtual std::optional<std::vector<Tensor>> run(const OpCall& call) = 0;
  /// Returns the device of a value that another task stores or will compute; nullptr for a value of
  /// the current process.
  virtual std::shared_ptr<const DeviceSpec> device_of(const Tensor& value) const = 0;

 private:
  template <class Hook>
  friend class StepHookScope;
  static RemoteRecorder* exchange_current(RemoteRecorder* recorder);
};

/// Partitioner for operations on tensors that are sharded over a mesh. A sharded tensor is lazy and
/// has the global shape; each position of the mesh has one shard of the elements. dispatch() and
/// compute() call the partitioner before anything else, so inputs may be on any device.
class OpPartitioner {
 public:
  virtual ~OpPartitioner() = default;
  /// Returns the partitioner of this thread; nullptr if there is none.
  static OpPartitioner* current();

  /// Returns the outputs of an operation with a sharded input; nullopt if no input is sharded.
  virtual std::optional<std::vector<Tensor>> run(const OpCall& call) = 0;

 private:
  template <class Hook>
  friend class StepHookScope;
  static OpPartitioner* exchange_current(OpPartitioner* partitioner);
};

/// Scope in which `hook` is current on this thread. If `hook` is nullptr, the thread has no hook of
/// this type.
template <class Hook>
class StepHookScope {
 public:
  explicit StepHookScope(Hook* hook) : previous_(Hook::exchange_current(hook)) {}
  explicit StepHookScope(Hook& hook) : StepHookScope(&hook) {}
  ~StepHookScope() { Hook::exchange_current(previous_); }
  StepHookScope& operator=(StepHookScope&&) = delete;

 private:
  Hook* previous_;
};
using StepRecorderScope = StepHookScope<StepRecorder>;
using StepTracerScope = StepHookScope<StepTracer>;
using RemoteRecorderScope = StepHookScope<RemoteRecorder>;
using OpPartitionerScope = StepHookScope<OpPartitioner>;

/// Returns the device of a value that another task stores or will compute; nullptr for a value of
/// this process.
std::shared_ptr<const DeviceSpec> remote_device_of(const Tensor& value);

/// Returns true if the host may read the elements without waiting. Returns false for elements on a
/// GPU or in another task, and within a traced step, which computes nothing before it ends.
bool host_reads_at_once(const Tensor& value);

/// Elements of a lazy tensor: not computed yet, or on a device for which this process has no
/// kernels. Thread-safe.
class LazyValue {
 public:
  virtual ~LazyValue() = default;
  /// Writes the elements to host memory on the first call; later calls do nothing. Throws
  /// kFailedPrecondition if the elements are not available.
  virtual void materialize(std::byte* to) = 0;
};

namespace internal {

/// Creates a tensor on the CPU device `device` with its own memory, which is filled when the host
/// first reads it.
Tensor lazy_tensor(const TensorSpec& spec, Device device, std::shared_ptr<LazyValue> value);
/// Same as lazy_tensor(), but on any device and without memory: `value` has no elements, and
/// materialize() throws.
Tensor placeholder(const TensorSpec& spec, Device device, std::shared_ptr<LazyValue> value);
/// Returns the result of StepTracer::create() on this thread's tracer; nullopt if the thread has
/// none.
std::optional<Tensor> traced_tensor(const TensorSpec& spec, Device device,
                                    const Tensor* value = nullptr);
/// Returns the lazy value of the tensor's buffer; nullptr if the buffer has none.
std::shared_ptr<LazyValue> lazy_value(const Tensor& tensor);
/// Returns the offset of the tensor in its buffer, in bytes.
std::size_t offset_in_buffer(const Tensor& tensor);

/// Fills a lazy buffer before the host reads it. Costs one load if there are no lazy tensors.
void materialize(const BufferRef& buffer);
/// Detaches the buffer from its lazy value, either before the host overwrites the entire buffer or
/// after the value was materialized.
void forget_lazy_value(const BufferRef& buffer);

}  // namespace internal
}  // namespace tutti

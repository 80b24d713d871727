// Traces steps while their functions run, compiles each trace once, and runs it on all devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/device_backend.h"
#include "tensor/step_hooks.h"
#include "tensor/xla/hlo.h"
#include "tensor/xla/pjrt_client.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// A value of a traced step. materialize() is thread-safe; all other functions must be called on
/// the thread that runs the step.
class StepValue final : public LazyValue {
 public:
  /// `trace` is the number of the trace that created the value, and `index` is the value's index in
  /// that trace. `what` (a literal) is the operation that created it, at line `where`. The value
  /// belongs to device `device`.
  StepValue(std::uint64_t trace, std::size_t index, int device, const TensorSpec& spec,
            std::string_view what, const SourceLocation& where)
      : trace_(trace), index_(index), device_(device), spec_(spec), what_(what), where_(where) {}

  std::uint64_t trace() const { return trace_; }
  std::size_t index() const { return index_; }
  int device() const { return device_; }
  const TensorSpec& spec() const { return spec_; }
  /// Returns text such as "matmul at train.cc:41".
  std::string maker() const;

  /// Returns the buffer of the computed value; nullptr if the value has not been computed.
  std::shared_ptr<PjrtBuffer> buffer() const;
  void set_buffer(std::shared_ptr<PjrtBuffer> buffer);
  /// Marks the value as lost unless it has been computed.
  void give_up();

  void materialize(std::byte* to) override;

 private:
  const std::uint64_t trace_;
  const std::size_t index_;
  const int device_;
  const TensorSpec spec_;
  const std::string_view what_;
  const SourceLocation where_;
  mutable Mutex mutex_;
  std::shared_ptr<PjrtBuffer> buffer_ TUTTI_GUARDED_BY(mutex_);
  bool is_materialized_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_lost_ TUTTI_GUARDED_BY(mutex_) = false;
};

/// Tracer for the step function of replica `replica`. Every tensor that the trace did not create is
/// an argument of the program, whatever its values, so that steps that differ only in numbers share
/// one program. Used by the replica's thread, and later by the thread that runs the step.
class Trace final : public StepTracer {
 public:
  /// The replica computes on XLA device `xla_device`. Kernels of this process see the replica's
  /// tensors on the CPU device with the same number.
  Trace(int replica, int num_replicas, int xla_device);
  /// Marks as lost the values that were not computed.
  ~Trace() override;
  Trace& operator=(Trace&&) = delete;

  std::vector<Tensor> run(const OpCall& call) override;
  std::vector<Tensor> update(const DeviceRule& rule, std::span<const Tensor> values,
                             const Tensor& gradient) override;
  std::vector<Tensor> all_reduce(ReduceOp op, std::span<const Tensor> values,
                                 const SourceLocation& where) override;
  Tensor all_gather(const Tensor& value, int axis, const SourceLocation& where) override;
  void note_variable(const Tensor& whole) override;
  bool holds(const Tensor& value) const override;

  /// An argument: elements in host memory, or a value from an earlier step on the replica's device.
  struct Argument {
    BufferRef buffer;                  // keeps the elements alive
    const std::byte* data = nullptr;   // elements in host memory
    std::shared_ptr<StepValue> value;  // value of an earlier step
    TensorSpec spec;
  };
  /// A value that an operation returned to the step function, which may since have dropped it.
  struct Made {
    Hlo hlo;
    std::weak_ptr<StepValue> value;
  };
  /// An operation, and the offset of its text.
  struct Operation {
    std::string_view what;
    SourceLocation where;
    std::size_t begin = 0;
    std::string maker() const;
  };

  int replica() const { return replica_; }
  int xla_device() const { return xla_device_; }
  const std::string& text() const { return text_.text(); }
  const std::vector<Argument>& arguments() const { return arguments_; }
  const std::vector<Made>& made() const { return made_; }
  const std::vector<Operation>& operations() const { return operations_; }

 private:
  void begin(std::string_view what, const SourceLocation& where);
  Hlo value_of(const Tensor& tensor);
  Hlo host_argument(const Tensor& tensor);
  Hlo host_argument(const BufferRef& buffer, const std::byte* data, const TensorSpec& spec);
  Hlo device_argument(const Tensor& tensor, const std::shared_ptr<StepValue>& value);
  Hlo argument(Argument argument);
  Hlo view(const Hlo& whole, const Tensor& tensor);
  Hlo constants_of(const DeviceRule& rule, DType dtype);
  /// Same as value_of(), but converts 16-bit types to float32, in which arithmetic is done.
  Hlo widened_value(const Tensor& tensor);
  Tensor result(Hlo value, const TensorSpec& spec);
  Tensor sum_of_one(ReduceOp op, const Tensor& value);
  std::vector<Tensor> sums_of_many(ReduceOp op, std::span<const Tensor> values);
  Hlo combined(ReduceOp op, const Hlo& value);

  const std::uint64_t number_;
  const int replica_, num_replicas_, xla_device_;
  const Device device_;
  HloText text_;
  std::vector<Argument> arguments_;
  /// Host arguments, keyed by address, shape and type.
  std::map<std::tuple<const std::byte*, std::string, DType>, Hlo> host_arguments_;
  std::map<const StepValue*, Hlo> device_arguments_;
  std::map<const Buffer*, TensorSpec> variables_;  // variables on the host, with their full shapes
  std::vector<Made> made_;
  std::vector<Operation> operations_;
  std::vector<std::tuple<std::array<double, DeviceRule::kNumConstants>, DType, Hlo>> constants_;
};

// Compiled programs of traced steps: each distinct program is compiled once and runs on all
// devices.

/// Cache of compiled programs, keyed by their text. Not thread-safe.
class StepPrograms {
 public:
  /// Replica r runs on XLA device devices[r].
  explicit StepPrograms(std::vector<int> devices) : devices_(std::move(devices)) {}

  /// Computes the values in `traces` (in replica order) that tensors still refer to, and waits for
  /// them. The results reuse the memory of values that no tensor holds any more. Throws
  /// kInvalidArgument, naming the operation and the line, if the replicas' operations differ; also
  /// throws the errors of the compiler and the devices.
  void run(std::span<const std::unique_ptr<Trace>> traces);

  /// Returns the number of programs compiled here; those from files (ProgramFiles) do not count.
  int num_compiled() const { return num_compiled_; }
  /// Returns the text of the program that ran last; empty if none has run.
  const std::string& last_text() const { return last_text_; }

 private:
  /// Device copy of a host value, kept from one step to the next.
  struct Upload {
    BufferRef buffer;  // held, so that its elements do not change
    TensorSpec spec;
    std::shared_ptr<PjrtBuffer> copy;
  };
  using Uploads = std::map<std::pair<const std::byte*, int>, Upload>;

  std::vector<bool> find_donated(std::span<const std::unique_ptr<Trace>> traces) const;
  const PjrtExecutable& find_or_compile(std::string text);
  std::vector<PjrtExecutable::Buffers> put_arguments(std::span<const std::unique_ptr<Trace>> traces,
                                                     const std::vector<bool>& donated);

  const std::vector<int> devices_;
  std::map<std::string, std::unique_ptr<PjrtExecutable>> programs_;
  int num_compiled_ = 0;
  std::string last_text_;
  Uploads uploads_;
};

}  // namespace tutti::internal

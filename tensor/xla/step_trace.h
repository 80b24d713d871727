// A replica's part of a step, noted as StableHLO while its function runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/device_backend.h"
#include "tensor/step_tracer.h"
#include "tensor/xla/hlo.h"
#include "tensor/xla/step_value.h"

namespace tutti::internal {

/// What the function of replica `replica` does to tensors. Every tensor that the trace did not make
/// is an argument of the program, whatever it holds: so steps that differ in numbers alone are one
/// program. Used by the replica's thread, later by the one that runs the step.
class Trace final : public StepTracer {
 public:
  /// The replica computes on XLA's device `xla_device`; for this process's kernels its tensors are
  /// on the CPU device of that number.
  Trace(int replica, int num_replicas, int xla_device);
  /// What it made and nobody computed can never be read.
  ~Trace() override;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  std::vector<Tensor> run(const OpCall& call) override;
  std::vector<Tensor> update(const DeviceRule& rule, std::span<const Tensor> values,
                             const Tensor& gradient) override;
  std::vector<Tensor> all_reduce(ReduceOp op, std::span<const Tensor> values,
                                 const SourceLocation& where) override;
  Tensor all_gather(const Tensor& value, int axis, const SourceLocation& where) override;
  void reads(const Tensor& whole) override;
  bool holds(const Tensor& value) const override;

  /// An argument: elements in host memory, or a value of a step before on the replica's device.
  struct Argument {
    BufferRef buffer;                  // keeps the elements
    const std::byte* data = nullptr;   // in host memory
    std::shared_ptr<StepValue> value;  // on the device
    TensorSpec spec;
  };
  /// A value that an operation gave to the function, which may have dropped it since.
  struct Made {
    Hlo hlo;
    std::weak_ptr<StepValue> value;
  };
  /// Where in the text an operation begins.
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
  /// The same in float32 where it is of 16 bits: arithmetic is done there.
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
  /// By first byte, shape and type of what the host has.
  std::map<std::tuple<const std::byte*, std::string, DType>, Hlo> host_arguments_;
  std::map<const StepValue*, Hlo> device_arguments_;
  std::map<const Buffer*, TensorSpec> variables_;  // on the host, whole
  std::vector<Made> made_;
  std::vector<Operation> operations_;
  std::vector<std::tuple<std::array<double, DeviceRule::kNumConstants>, DType, Hlo>> constants_;
};

}  // namespace tutti::internal

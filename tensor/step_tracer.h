// What stands in for the kernels while a step is noted instead of computed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/tensor/op.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

struct DeviceRule;

/// Notes a step. While a StepTracerScope lives, compute() asks the tracer of its thread instead of
/// a kernel; what it gives back are distant values (distant_values.h) without elements as yet. Used
/// by the one thread whose replica is being traced. All calls throw kUnimplemented naming operation
/// and line for what cannot be a part of the step.
class StepTracer {
 public:
  virtual ~StepTracer() = default;
  /// The tracer of this thread; nullptr: operations are computed.
  static StepTracer* current();

  /// The outputs of an operation.
  virtual std::vector<Tensor> run(const OpCall& call) = 0;
  /// `values` (the weights, then the rule's slots) as they are after the update; the gradient is
  /// dense. `gradient_scale` and the like are among the rule's constants.
  virtual std::vector<Tensor> update(const DeviceRule& rule, std::span<const Tensor> values,
                                     const Tensor& gradient) = 0;
  /// Combined over all replicas of the step, in replica order. SUM, MEAN, MIN, MAX or PRODUCT.
  virtual std::vector<Tensor> all_reduce(ReduceOp op, std::span<const Tensor> values,
                                         const SourceLocation& where) = 0;
  /// The values of all replicas, which have equal shapes, one after the other along `axis`.
  virtual Tensor all_gather(const Tensor& value, int axis, const SourceLocation& where) = 0;
  /// A variable is read: these are all its elements, whatever shape or rows of them operations
  /// take.
  virtual void reads(const Tensor& whole) = 0;
  /// Whether the value was made by this step, or is on its device: then work on it belongs to the
  /// step.
  virtual bool holds(const Tensor& value) const = 0;
};

/// Makes `tracer` current on this thread until destroyed.
class StepTracerScope {
 public:
  explicit StepTracerScope(StepTracer& tracer);
  ~StepTracerScope();
  StepTracerScope(const StepTracerScope&) = delete;
  StepTracerScope& operator=(const StepTracerScope&) = delete;

 private:
  StepTracer* previous_;
};

/// Whether the host may ask for the elements in passing: not for a GPU's, which it would wait for,
/// and for none within a traced step, which computes nothing before it has ended.
bool host_reads_at_once(const Tensor& value);

}  // namespace tutti

// Gradients of several steps, kept until their sum is applied.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/gradient_accumulator.h"

#include <algorithm>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/error.h"
#include "tutti/optimizer/state_variable.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti::internal {
namespace {

bool is_zero(const Tensor& held) {
  const Tensor values = held.to(Device{});
  return visit_floating(values.dtype(), "gradient accumulation", [&]<class T>() {
    return std::ranges::all_of(values.host_span<T>(), [](T value) { return value == T(0); });
  });
}

}  // namespace

GradientAccumulator::GradientAccumulator(const std::string& optimizer,
                                         std::span<const Variable> variables, std::int64_t steps)
    : steps_(steps) {
  if (steps < 1) {
    fail(ErrorCode::kInvalidArgument, optimizer,
         ": expected gradient_accumulation_steps of 1 or more, got ", steps);
  }
  num_held_ = state_variable(Tensor::scalar(0, DType::kInt64), optimizer + "/accumulated_steps");
  for (const Variable& variable : variables) {
    VariableOptions options;
    options.name = concat(optimizer, "/", variable.name(), "/gradient_accumulator");
    options.trainable = false;
    options.synchronization = VariableSynchronization::kOnRead;
    options.aggregation = VariableAggregation::kSum;
    sums_.emplace_back(Tensor::zeros(variable.shape(), variable.dtype()), std::move(options));
  }
}

void GradientAccumulator::hold(std::span<const Gradient> gradients, std::int64_t num_held) {
  const GradientTape::StopRecording stop;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    Variable& sum = sums_[i];
    if (!gradients[i].is_none()) {
      const Tensor dense = gradients[i].to_dense();
      num_held == 0 ? sum.assign(dense) : sum.assign_add(dense);
    } else if (num_held == 0) {
      sum.assign(Tensor::zeros(sum.shape(), sum.dtype(), sum.value().device()));
    }
  }
  num_held_.storage().assign_replicated(AssignOp::kAdd, Tensor::scalar(1, DType::kInt64));
}

Gradient GradientAccumulator::total(std::size_t index, const Gradient& gradient) const {
  const GradientTape::StopRecording stop;
  const Tensor held = sums_[index].value();
  if (!gradient.is_none()) return add(gradient.to_dense(), held);
  // Which steps had a gradient is not kept: one that was always zero changes nothing either.
  return is_zero(held) ? Gradient() : Gradient(held);
}

void GradientAccumulator::clear() {
  num_held_.storage().assign_replicated(AssignOp::kAssign, Tensor::scalar(0, DType::kInt64));
}

}  // namespace tutti::internal

// Implements collectives inside a replica, with their gradients.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/replica_context.h"

#include "strategy/replicas/strategy_mode.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

void require_differentiable(ReduceOp op, SourceLocation where) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  fail(
      ErrorCode::kUnimplemented, "all_reduce(", op, ") at ", to_string(where),
      ": this reduction has no gradient; expected SUM or MEAN; call stop_gradient() on its result");
}

bool has_gradient(const Gradient& value) {
  return value.is_dense() && is_floating(value.dense().dtype());
}

/// Implements the backward pass of all_reduce: reduces the gradients of the dense floating-point
/// values.
std::vector<Gradient> all_reduced(ReduceOp op, std::span<const Tensor> output_gradients,
                                  const std::vector<Tensor>& outputs, SourceLocation where) {
  require_differentiable(op, where);
  std::vector<Gradient> gradients;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& gradient = output_gradients[i];
    gradients.push_back(gradient.defined() ? gradient
                                           : Tensor::zeros(outputs[i].shape(), outputs[i].dtype(),
                                                           outputs[i].device()));
  }
  return ReplicaContext::current().all_reduce(op, gradients, where);
}

Tensor own_part(const Tensor& gradient, int axis, std::int64_t first, std::int64_t length) {
  std::vector<std::int64_t> begin(static_cast<std::size_t>(gradient.rank()), 0);
  std::vector<std::int64_t> size(gradient.shape().begin(), gradient.shape().end());
  begin[static_cast<std::size_t>(axis)] = first;
  size[static_cast<std::size_t>(axis)] = length;
  return slice(gradient, begin, size);
}

}  // namespace

ReplicaContext* get_replica_context() {
  const internal::StrategyMode* mode = internal::current_mode();
  return mode ? mode->replica : &internal::default_replica_context();
}

ReplicaContext& ReplicaContext::current() {
  ReplicaContext* context = get_replica_context();
  if (!context) {
    fail(ErrorCode::kFailedPrecondition,
         "ReplicaContext::current: this thread is in the cross-replica context (inside scope(), "
         "outside run); expected a call inside strategy.run(); move it into the step "
         "function");
  }
  return *context;
}

std::vector<Gradient> ReplicaContext::all_reduce(ReduceOp op, std::span<const Gradient> values,
                                                 SourceLocation where) {
  std::vector<Gradient> results;
  std::vector<Tensor> inputs, outputs;
  {
    const GradientTape::StopRecording stop;
    results = all_reduce_values(op, values, where);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!has_gradient(values[i])) continue;
    results[i] = results[i].dense().alias();  // with one replica, the result may be the input
    inputs.push_back(values[i].dense());
    outputs.push_back(results[i].dense());
  }
  if (inputs.empty()) return results;
  const std::vector<Tensor> like = outputs;
  record_custom_gradient(inputs, outputs,
                         [op, like, where](std::span<const Tensor> output_gradients) {
                           return all_reduced(op, output_gradients, like, where);
                         });
  return results;
}

Tensor ReplicaContext::all_reduce(ReduceOp op, const Tensor& value, SourceLocation where) {
  const Gradient input(value);
  return all_reduce(op, std::span<const Gradient>(&input, 1), where).front().dense();
}

Tensor ReplicaContext::all_gather(const Tensor& value, int axis, SourceLocation where) {
  if (value.rank() == 0) {
    fail(ErrorCode::kInvalidArgument, "all_gather at ", to_string(where),
         ": a scalar has no axis; expected rank >= 1, got rank 0; call reshape(x, {1})");
  }
  axis = value.shape().normalized_axis(axis, "all_gather");
  Gathered gathered;
  {
    const GradientTape::StopRecording stop;
    gathered = all_gather_value(value, axis, where);
  }
  if (!is_floating(value.dtype())) return gathered.value;
  const Tensor result = gathered.value.alias();
  const std::int64_t first = gathered.first;
  const std::int64_t length = value.shape().dim(axis);
  record_custom_gradient(std::span(&value, 1), std::span(&result, 1),
                         [axis, first, length, where](std::span<const Tensor> output_gradients) {
                           const Tensor sum = ReplicaContext::current().all_reduce(
                               ReduceOp::kSum, output_gradients[0], where);
                           return std::vector<Gradient>{own_part(sum, axis, first, length)};
                         });
  return result;
}

std::vector<Tensor> ReplicaContext::all_gather(std::span<const Tensor> values, int axis,
                                               SourceLocation where) {
  std::vector<Tensor> results;
  results.reserve(values.size());
  for (const Tensor& value : values) results.push_back(all_gather(value, axis, where));
  return results;
}

ReplicaScope::ReplicaScope(Strategy& strategy, ReplicaContext& replica)
    : mode_(std::make_unique<internal::StrategyModeScope>(
          internal::StrategyMode{&strategy, &replica, false})) {}

ReplicaScope::~ReplicaScope() = default;

}  // namespace tutti

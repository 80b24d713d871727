// Gradients of a traced step, summed together when all are there.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/xla/traced_reducer.h"

#include "tutti/autograd/gradient_tape.h"

namespace tutti::internal {

void TracedReducer::begin(std::span<const Variable> variables) {
  gradients_.assign(variables.size(), Gradient());
}

void TracedReducer::ready(std::size_t index, const Gradient& gradient) {
  const GradientTape::StopRecording stop;
  // A sparse gradient becomes dense: its rows differ between replicas, and their number may.
  gradients_.at(index) = gradient.is_none() ? gradient : Gradient(gradient.to_dense());
}

std::vector<Gradient> TracedReducer::finish() {
  const GradientTape::StopRecording stop;
  std::vector<Tensor> values;
  for (const Gradient& gradient : gradients_) {
    if (!gradient.is_none()) values.push_back(gradient.dense());
  }
  if (values.empty()) return std::move(gradients_);
  const std::vector<Tensor> sums = tracer_.all_reduce(ReduceOp::kSum, values, SourceLocation());
  std::size_t next = 0;
  for (Gradient& gradient : gradients_) {
    if (!gradient.is_none()) gradient = sums[next++];
  }
  return std::move(gradients_);
}

}  // namespace tutti::internal

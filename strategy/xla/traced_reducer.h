// Sums of gradients as a part of the step's program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tensor/step_tracer.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::internal {

/// Notes the sums over replicas in the trace of its replica; nothing waits, for nothing runs.
class TracedReducer final : public GradientReducer {
 public:
  explicit TracedReducer(StepTracer& tracer) : tracer_(tracer) {}

  void begin(std::span<const Variable> variables) override;
  void ready(std::size_t index, const Gradient& gradient) override;
  std::vector<Gradient> finish() override;
  void updates_done() override {}

 private:
  StepTracer& tracer_;
  std::vector<Gradient> gradients_;  // dense or none, by variable
};

}  // namespace tutti::internal

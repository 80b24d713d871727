// Values that a tape computes again instead of keeping what they are made from.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/recompute.h"

#include <utility>

#include "autograd/recording.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {
namespace {

bool& repeating() {
  thread_local bool active = false;
  return active;
}

/// Each output a value of its own, also where the function returns an input or a value twice.
std::vector<Tensor> apart(std::vector<Tensor> outputs) {
  for (Tensor& output : outputs) output = output.alias();
  return outputs;
}

}  // namespace

internal::RepeatScope::RepeatScope() : previous_(std::exchange(repeating(), true)) {}
internal::RepeatScope::~RepeatScope() { repeating() = previous_; }
bool internal::RepeatScope::active() { return repeating(); }

std::vector<Tensor> recompute_grad(const RecomputedFunction& function,
                                   std::span<const Tensor> inputs,
                                   std::span<const Variable> variables) {
  if (!internal::any_tape_records()) return function(inputs);
  std::vector<Tensor> outputs;
  {
    const GradientTape::StopRecording stop;
    outputs = apart(function(inputs));
  }
  const auto again = std::make_shared<internal::Recomputation>();
  again->inputs.assign(inputs.begin(), inputs.end());
  again->variables.assign(variables.begin(), variables.end());
  again->function = [function, scope = current_device_scope(),
                     type = AutocastScope::current()](std::span<const Tensor> same) {
    const DeviceScope where_it_was(scope);
    const AutocastScope type_of_then(type);
    const internal::RepeatScope repeats;
    return function(same);
  };
  internal::for_each_recording(
      [&](internal::Recording& recording) { recording.on_recomputed(again, outputs); });
  return outputs;
}

}  // namespace tutti

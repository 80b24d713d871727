// Implements log lines about the placement of operations, in TensorFlow's format.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/placement_log.h"

#include "tutti/core/text.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::examples::cifar10 {

std::vector<std::string> placement_of(std::span<const Variable> variables) {
  std::vector<std::string> lines;
  for (const Variable& variable : variables) {
    for (const Device& device : variable.storage().devices()) {
      lines.push_back(concat(variable.name(), ": (Variable): ", full_device_name(device)));
    }
  }
  return lines;
}

void PlacementLog::on_op(const OpCall& call, std::span<const Tensor> outputs) {
  if (outputs.empty()) return;
  const std::string_view op = tf_op_name(call.op);
  std::string name = is_backward_ ? concat(tower_.name(), "/gradients/", op) : tower_.full_name(op);
  const int earlier = uses_[name]++;
  if (earlier > 0) name += concat("_", earlier);
  lines_.push_back(concat(name, ": (", op, "): ", full_device_name(outputs[0].device())));
}

}  // namespace tutti::examples::cifar10

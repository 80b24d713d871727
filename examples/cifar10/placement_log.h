// Output of --log_device_placement: the devices of variables and operations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "examples/cifar10/tower.h"
#include "tutti/autograd/variable.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::examples::cifar10 {

/// Returns one line per device of each variable: "conv1/weights: (Variable): /job:...".
std::vector<std::string> placement_of(std::span<const Variable> variables);

/// Observer that, during its lifetime, records the operations that this thread runs for `tower`, as
/// lines "tower_0/conv1/Conv2D: (Conv2D): /job:...". A second operation with the same name becomes
/// "Conv2D_1". Operations of the backward pass have the prefix "tower_0/gradients/".
class PlacementLog final : public OpObserver {
 public:
  explicit PlacementLog(const Tower& tower) : tower_(tower), scope_(*this) {}
  void on_op(const OpCall& call, std::span<const Tensor> outputs) override;
  /// Marks the beginning of the backward pass.
  void begin_gradients() { is_backward_ = true; }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  const Tower& tower_;
  bool is_backward_ = false;
  std::map<std::string, int> uses_;
  std::vector<std::string> lines_;
  ObserverScope scope_;
};

}  // namespace tutti::examples::cifar10

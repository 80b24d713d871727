// Sums of gradients over the positions of a mesh.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "strategy/mesh/mesh_position.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::internal {

/// Gives the optimizer gradients in the shardings of their variables. A gradient stays a partial
/// sum until all uses of its variable have been added; all of them are then summed together.
class MeshReducer final : public GradientReducer {
 public:
  explicit MeshReducer(MeshPosition& position) : position_(position) {}

  void begin(std::span<const Variable> variables) override;
  void ready(std::size_t index, const Gradient& gradient) override { gradients_[index] = gradient; }
  std::vector<Gradient> finish() override;
  void updates_done() override { position_.meet(MeetingKind::kUpdatesDone); }

 private:
  MeshPosition& position_;
  std::vector<Variable> variables_;
  std::vector<Gradient> gradients_;
};

}  // namespace tutti::internal

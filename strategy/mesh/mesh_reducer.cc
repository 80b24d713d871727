// Implements the sums of gradients over the positions of a mesh.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/mesh_reducer.h"

#include "strategy/mesh/mesh_variable.h"

namespace tutti::internal {

void MeshReducer::begin(std::span<const Variable> variables) {
  variables_.assign(variables.begin(), variables.end());
  gradients_.assign(variables.size(), Gradient());
}

std::vector<Gradient> MeshReducer::finish() {
  struct Pending {
    std::size_t index;
    ShardedTensor value;
    Sharding wanted;
  };
  std::vector<Pending> pending;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    if (gradient.is_none()) continue;
    const auto* const storage = dynamic_cast<const MeshStorage*>(&variables_[i].storage());
    const Sharding wanted = storage ? storage->sharding() : Sharding();
    if (gradient.is_slices() && wanted.is_whole()) {
      const IndexedSlices& slices = gradient.slices();
      gradient = IndexedSlices{position_.whole(slices.values), position_.whole(slices.indices),
                               slices.dense_shape};
      continue;
    }
    pending.push_back({i, position_.part_of(gradient.to_dense()), wanted});
  }
  // First each position's part in the wanted sharding, still a partial sum; then one sum of all.
  std::vector<Tensor> partials;
  std::vector<AxisSet> axes;
  for (Pending& each : pending) {
    Sharding partial = each.wanted;
    partial.partial = each.value.sharding.partial & static_cast<AxisSet>(~each.wanted.cut());
    Tensor local = position_.local_as(each.value, partial);
    each.value = {partial, local, each.value.spec};
    if (partial.partial == 0) continue;
    partials.push_back(local);
    axes.push_back(partial.partial);
  }
  const std::vector<Tensor> sums = position_.reduced_each(ReduceOp::kSum, partials, axes);
  std::size_t next = 0;
  for (Pending& each : pending) {
    if (each.value.sharding.partial != 0) each.value.local = sums[next++];
    each.value.sharding = each.wanted;
    gradients_[each.index] = position_.tensor_of(each.value);
  }
  position_.meet(MeetingKind::kFinishGradients);
  return std::move(gradients_);
}

}  // namespace tutti::internal

// Packs many small tensors into a few flat buffers, and unpacks them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Assignment of tensors to packs. Tensors of one dtype are packed in reverse order (the last
/// gradients are ready first), and a pack is closed once it holds bytes_per_pack or more. A tiny
/// limit gives one tensor per pack. The plan depends only on shapes and dtypes, so all replicas
/// make the same plan.
struct PackPlan {
  struct Pack {
    DType dtype = DType::kFloat32;
    std::vector<std::size_t> tensors;  // indices in the list given to plan_packs()
    std::size_t count = 0;             // elements
  };
  std::vector<Pack> packs;
};

inline constexpr std::int64_t kDefaultBytesPerPack = 4 << 20;

/// Assigns tensors to packs. A bytes_per_pack of 0 means kDefaultBytesPerPack.
PackPlan plan_packs(std::span<const Tensor> tensors, std::int64_t bytes_per_pack);

/// Returns the pack's tensors concatenated on `device`.
MutableTensor pack(const PackPlan::Pack& pack, std::span<const Tensor> tensors, Device device);
/// Splits the buffer into tensors with the shapes of `like`, and writes tensor i of the list given
/// to plan_packs() to results[i].
void unpack(const PackPlan::Pack& pack, const MutableTensor& buffer, std::span<const Tensor> like,
            std::span<Tensor> results);

}  // namespace tutti

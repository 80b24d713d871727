// Packing of many small tensors into a few flat buffers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Assignment of tensors to packs. Tensors of one dtype are packed in reverse order (the last
/// gradients are ready first), and a pack is closed once it holds bytes_per_pack or more. A tiny
/// limit gives one tensor per pack. All replicas make the same plan from the shapes alone.
struct PackPlan {
  struct Pack {
    DType dtype = DType::kFloat32;
    std::vector<std::size_t> tensors;  // indices into the planned list
    std::size_t count = 0;             // elements
  };
  std::vector<Pack> packs;
};

inline constexpr std::int64_t kDefaultBytesPerPack = 4 << 20;

/// Plans packs. bytes_per_pack 0: kDefaultBytesPerPack.
PackPlan plan_packs(std::span<const Tensor> tensors, std::int64_t bytes_per_pack);

/// Concatenates the pack's tensors on `device`.
MutableTensor pack(const PackPlan::Pack& pack, std::span<const Tensor> tensors, Device device);
/// Splits the buffer into tensors of the shapes of `like`, written to results[index].
void unpack(const PackPlan::Pack& pack, const MutableTensor& buffer, std::span<const Tensor> like,
            std::span<Tensor> results);

}  // namespace tutti

// Adding replicas' gradients along the canonical tree.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/gradient_reduction/tree_adder.h"

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/tensor/half_conversion.h"

namespace tutti::internal {

TreeAdder::TreeAdder(GivenGradients& given, std::size_t bucket,
                     std::span<const CanonicalNode> nodes, std::span<const Elements> sums)
    : given_(given),
      nodes_(nodes),
      sums_(sums),
      dtype_(given.bucket(bucket).dtype),
      sum_dtype_(sums.front().dtype),
      wide_bytes_(sum_dtype_ == dtype_ ? 0 : kBlockBytes / size_of(dtype_) * size_of(sum_dtype_)),
      inputs_(given.num_replicas) {}

void TreeAdder::add(const Piece& piece, bool clean) {
  if (!clean && !given_.compresses(piece.bucket) && wide_bytes_ == 0) {
    return add_inputs(piece, false);
  }
  if (!prepared_) {
    prepared_ =
        std::make_unique_for_overwrite<std::byte[]>((kBlockBytes + wide_bytes_) * inputs_.size());
  }
  for_blocks(piece, dtype_, [&](const Piece& block) { add_inputs(block, clean); });
}

void TreeAdder::add_inputs(const Piece& piece, bool clean) {
  std::byte* place = prepared_.get();
  for (std::size_t r = 0; r < inputs_.size(); ++r) {
    inputs_[r] = given_.prepared(r, piece, clean, place);
    if (!prepared_) continue;
    std::byte* const wide = place + kBlockBytes;
    place = wide + wide_bytes_;
    if (wide_bytes_ == 0) continue;
    widen(dtype_, inputs_[r], reinterpret_cast<float*>(wide), piece.count());
    inputs_[r] = wide;
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto members = std::span<const std::byte* const>(inputs_).subspan(
        static_cast<std::size_t>(nodes_[i].first), static_cast<std::size_t>(nodes_[i].count));
    reduce_along_tree(ReduceOp::kSum, sum_dtype_, members,
                      sums_[i].data + piece.begin * size_of(sum_dtype_), piece.count());
  }
}

}  // namespace tutti::internal

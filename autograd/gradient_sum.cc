// The sum of the gradients that reach one value.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradient_sum.h"

#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {

void GradientSum::add(const Gradient& gradient) {
  if (gradient.is_slices()) {
    slices_.push_back(gradient.slices());
  } else if (gradient.is_dense()) {
    dense_ = dense_.defined() ? tutti::add(dense_, gradient.dense()) : gradient.dense();
  }
}

IndexedSlices GradientSum::joined_slices() const {
  if (slices_.size() == 1) return slices_.front();
  std::vector<Tensor> values, indices;
  for (const IndexedSlices& slices : slices_) {
    values.push_back(slices.values);
    indices.push_back(slices.indices);
  }
  return {concat(values, 0), concat(indices, 0), slices_.front().dense_shape};
}

Tensor GradientSum::dense_part() const {
  if (blocks_.empty()) return dense_;
  const Tensor joined_blocks = joined(blocks_);
  return dense_.defined() ? tutti::add(dense_, joined_blocks) : joined_blocks;
}

Gradient GradientSum::total() const {
  if (!dense_.defined() && blocks_.empty())
    return slices_.empty() ? Gradient() : Gradient(joined_slices());
  return Gradient(dense_total());
}

Tensor GradientSum::dense_total() const {
  const Tensor dense = dense_part();
  if (slices_.empty()) return dense;
  const IndexedSlices slices = joined_slices();
  const Tensor scattered = scatter_rows(slices.values, slices.indices, slices.dense_shape);
  return dense.defined() ? tutti::add(dense, scattered) : scattered;
}

void GradientSum::clear() {
  dense_ = Tensor();
  slices_.clear();
  blocks_.clear();
}

}  // namespace tutti::internal

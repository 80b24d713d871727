// Gradients: access by kind, and rows made dense.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gradient.h"

#include "tensor/kernel_table.h"

namespace tutti {

Gradient::Gradient(Tensor dense) {
  if (dense.defined()) value_ = std::move(dense);
}

Gradient::Gradient(IndexedSlices slices) : value_(std::move(slices)) {}

const Tensor& Gradient::dense() const {
  if (const Tensor* dense = std::get_if<Tensor>(&value_)) return *dense;
  fail(ErrorCode::kFailedPrecondition, "Gradient::dense: expected a dense gradient, got ",
       is_none() ? "none: no path leads from the target to this source"
                 : "IndexedSlices; try to_dense()");
}

const IndexedSlices& Gradient::slices() const {
  if (const IndexedSlices* slices = std::get_if<IndexedSlices>(&value_)) return *slices;
  fail(ErrorCode::kFailedPrecondition, "Gradient::slices: expected IndexedSlices, got ",
       is_none() ? "none: no path leads from the target to this source"
                 : "a dense gradient; try dense()");
}

Tensor Gradient::to_dense() const { return is_slices() ? slices().to_dense() : dense(); }

Tensor IndexedSlices::to_dense() const {
  OpCall call;
  call.op = OpId::kScatterRows;
  call.inputs = {values, indices};
  call.outputs = {{dense_shape, values.dtype()}};
  return compute(call)[0];
}

}  // namespace tutti

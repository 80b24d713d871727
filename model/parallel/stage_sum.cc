// Adding gradients of micro-batches.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/stage_sum.h"

namespace tutti::internal {

void StageSum::add(const Gradient& gradient) {
  if (!gradient.is_dense()) {
    sparse_.add(gradient);
  } else if (dense_) {
    dense_->assign(AssignOp::kAdd, gradient.dense());
  } else {
    dense_.emplace(gradient.dense(), gradient.dense().device());
  }
}

Gradient StageSum::total() const {
  if (!dense_) return sparse_.total();
  const Gradient sparse = sparse_.total();
  if (sparse.is_none()) return dense_->read();
  GradientSum both;
  both.add(dense_->read());
  both.add(sparse);
  return both.total();
}

}  // namespace tutti::internal

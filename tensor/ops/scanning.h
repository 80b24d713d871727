// Operations along one axis whose result at an element depends on its neighbours: running sums and
// the largest elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/operand.h"

namespace tutti {

struct CumulativeSumOptions {
  int axis = 0;
  /// Leave the element itself out.
  bool exclusive = false;
  /// From the end.
  bool reverse = false;
};
/// The sum of all elements up to here along an axis, numbers only; floats are added in double.
/// tf.cumsum.
Tensor cumulative_sum(const Operand& x, CumulativeSumOptions options = {});

struct TopKResult {
  Tensor values;
  Tensor indices;  // int64
};
/// The k largest elements along the last axis, largest first, and where they stand: [..., n] ->
/// [..., k]. Of equal ones the first comes first; NaN counts as the largest. tf.math.top_k.
TopKResult top_k(const Operand& x, std::int64_t k);

}  // namespace tutti

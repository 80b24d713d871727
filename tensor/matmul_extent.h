// Sizes of a kMatMul call, shared by the kernels of all backends.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/tensor/op.h"

namespace tutti::internal {

/// Sizes of `batch` products c [m, n] = a [m, k] b [k, n]. Leading dimensions are part of m or k
/// where one large product replaces many small ones.
struct MatMulExtent {
  MatMulExtent(const MatMulAttributes& attributes, const Shape& a, const Shape& b, const Shape& c)
      : m(c.dim(-2)), n(c.dim(-1)), k(a.dim(attributes.transpose_a ? -2 : -1)) {
    a_is_shared = a.rank() == 2;
    b_is_shared = b.rank() == 2;
    if (attributes.sum_over_batch) {
      k = m == 0 ? 0 : a.num_elements() / m;
    } else {
      batch = m * n == 0 ? 0 : c.num_elements() / (m * n);
      if (b_is_shared && !a_is_shared && !attributes.transpose_a) {
        m *= batch;
        batch = 1;
      }
    }
  }

  /// Returns the offset, in a or b, of matrix `index` of the batch.
  std::int64_t offset_in_a(std::int64_t index) const { return a_is_shared ? 0 : index * m * k; }
  std::int64_t offset_in_b(std::int64_t index) const { return b_is_shared ? 0 : index * k * n; }

  std::int64_t m, n, k, batch = 1;
  bool a_is_shared, b_is_shared;  // one matrix for the whole batch
};

}  // namespace tutti::internal

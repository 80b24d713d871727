// Updates of a shard: its part of a gradient, and rules that need norms of the whole variable.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/shard_update.h"

#include <algorithm>
#include <cmath>

#include "tensor/op_checks.h"
#include "tensor/sum_of_squares.h"
#include "tutti/autograd/variable_storage.h"

namespace tutti::internal {
namespace {

/// Rows that occur several times are added in their order.
Tensor dense_of_shard(const IndexedSlices& slices, const Shard& shard) {
  const Tensor values = slices.values.to(Device{});
  const auto rows = checked_rows(slices.indices.to(Device{}), slices.dense_shape.dim(0),
                                 "FullyShardedStorage::update");
  MutableTensor dense({shard.count}, values.dtype(), Device{});
  visit_floating(values.dtype(), "FullyShardedStorage::update", [&]<class T>() {
    const auto out = dense.span<T>();
    std::ranges::fill(out, T(0));
    if (rows.empty()) return;
    const auto in = values.host_span<T>();
    const std::int64_t width = std::ssize(in) / std::ssize(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t row = rows[i] * width;
      const std::int64_t begin = std::max(row, shard.first);
      const std::int64_t end = std::min(row + width, shard.first + shard.count);
      for (std::int64_t k = begin; k < end; ++k) {
        out[static_cast<std::size_t>(k - shard.first)] +=
            in[i * static_cast<std::size_t>(width) + static_cast<std::size_t>(k - row)];
      }
    }
  });
  return dense.freeze();
}

double norm_of(const Tensor& values) {
  const Tensor on_host = values.to(Device{});
  return std::sqrt(sum_of_squares(on_host.dtype(), on_host.bytes().data(),
                                  static_cast<std::size_t>(on_host.num_elements())));
}

}  // namespace

Gradient gradient_of_shard(const Gradient& gradient, const Shape& whole, const Shard& shard) {
  if (gradient.is_none()) return gradient;
  if (gradient.is_slices()) return dense_of_shard(gradient.slices(), shard);
  const Tensor& dense = gradient.dense();
  if (dense.shape() != whole) return gradient;
  return dense.detached_reshape({dense.num_elements()}).detached_rows(shard.first, shard.count);
}

UpdateScalars scalars_with_norms(const UpdateScalars& scalars, const Tensor& weights,
                                 const Tensor& directions) {
  UpdateScalars with_norms = scalars;
  with_norms.weight_norm = norm_of(weights);
  with_norms.direction_norm = norm_of(directions);
  with_norms.gradient_scale = 1.0;
  return with_norms;
}

}  // namespace tutti::internal

// Arithmetic on gradients, dense or sparse.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/gradient_ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/names.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

using internal::require;

void check(std::span<const IndexedSlices> per_replica) {
  require(!per_replica.empty(),
          "reduce: expected IndexedSlices from at least one replica, got none");
  const IndexedSlices& first = per_replica.front();
  require(first.dense_shape.rank() > 0,
          "reduce: expected IndexedSlices with a dense shape of rank >= 1, got []");
  for (std::size_t r = 0; r < per_replica.size(); ++r) {
    const IndexedSlices& slices = per_replica[r];
    require(
        slices.dense_shape == first.dense_shape && slices.values.dtype() == first.values.dtype(),
        "reduce: IndexedSlices differ between replicas; expected the same as on replica 0, ",
        first.values.dtype(), " of dense shape ", first.dense_shape, ", got ",
        slices.values.dtype(), " of dense shape ", slices.dense_shape, " from replica ", r);
    const Shape expected = first.dense_shape.with_dim(0, slices.indices.num_elements());
    require(slices.indices.rank() == 1 && slices.values.shape() == expected,
            "reduce: IndexedSlices do not match their dense shape ", first.dense_shape,
            "; expected indices [n] and values of shape ", expected, ", got indices ",
            slices.indices.shape(), " and values ", slices.values.shape(), " from replica ", r);
  }
}

std::size_t bytes_per_row(const IndexedSlices& slices) {
  return static_cast<std::size_t>(slices.dense_shape.without_axis(0).num_elements()) *
         size_of(slices.values.dtype());
}

std::vector<std::int64_t> indices_of(const IndexedSlices& slices) {
  std::vector<std::int64_t> indices;
  visit_dtype(slices.indices.dtype(), [&]<class T>() {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      for (T index : slices.indices.host_span<T>())
        indices.push_back(static_cast<std::int64_t>(index));
    } else {
      fail(ErrorCode::kInvalidArgument, "IndexedSlices: expected integer indices, got ",
           slices.indices.dtype());
    }
  });
  for (std::int64_t index : indices) {
    require(index >= 0 && index < slices.dense_shape.dim(0),
            "IndexedSlices: expected indices within rows 0 .. ", slices.dense_shape.dim(0) - 1,
            ", got ", index);
  }
  return indices;
}

IndexedSlices copy_slices(const IndexedSlices& slices, Device device) {
  return {slices.values.to(device), slices.indices.to(device), slices.dense_shape};
}

/// Returns true if a GPU is involved. In that case, the host sorts rows and waits for GPUs.
bool any_is_on_gpu(std::span<const IndexedSlices> per_replica, Device destination) {
  return destination.type == DeviceType::kGpu ||
         std::ranges::any_of(per_replica, [](const IndexedSlices& slices) {
           return slices.values.device().type == DeviceType::kGpu ||
                  slices.indices.device().type == DeviceType::kGpu;
         });
}

std::vector<IndexedSlices> host_copies(std::span<const IndexedSlices> per_replica) {
  std::vector<IndexedSlices> copies;
  for (const IndexedSlices& slices : per_replica) copies.push_back(copy_slices(slices, Device{}));
  return copies;
}

// Adds one replica's rows at their positions in the sorted union of all rows; missing rows are
// zero.
template <class T>
MutableTensor spread(const IndexedSlices& slices, const std::vector<std::int64_t>& rows) {
  const auto width = static_cast<std::size_t>(slices.dense_shape.without_axis(0).num_elements());
  MutableTensor spread_rows(slices.dense_shape.with_dim(0, static_cast<std::int64_t>(rows.size())),
                            slices.values.dtype(), slices.values.device());
  const auto out = spread_rows.span<T>();
  std::ranges::fill(out, T{});
  const auto in = slices.values.host_span<T>();
  const auto indices = indices_of(slices);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto place =
        static_cast<std::size_t>(std::ranges::lower_bound(rows, indices[i]) - rows.begin());
    for (std::size_t j = 0; j < width; ++j) out[place * width + j] += in[i * width + j];
  }
  return spread_rows;
}

Tensor divided(const Tensor& values, double divisor) {
  require(is_floating(values.dtype()), "divide_by: expected a floating-point type, got ",
          values.dtype());
  const SeparateObservers unseen;
  const NoDeviceScope where_it_is;
  return divide(values, divisor);
}

}  // namespace

IndexedSlices concatenate_slices(ReduceOp op, std::span<const IndexedSlices> per_replica,
                                 Device destination) {
  check(per_replica);
  if (any_is_on_gpu(per_replica, destination)) {
    const std::vector<IndexedSlices> on_host = host_copies(per_replica);
    return copy_slices(concatenate_slices(op, on_host, Device{}), destination);
  }
  const DType dtype = per_replica[0].values.dtype();
  require(op == ReduceOp::kSum || op == ReduceOp::kMean,
          "reduce: IndexedSlices support only SUM and MEAN, got ", op);
  require(op == ReduceOp::kSum || is_floating(dtype),
          "reduce: MEAN of IndexedSlices needs a floating-point type, got ", dtype,
          "; call cast() first");
  std::vector<std::int64_t> indices;
  for (const IndexedSlices& slices : per_replica) {
    const auto own = indices_of(slices);
    indices.insert(indices.end(), own.begin(), own.end());
  }
  const auto n = static_cast<std::int64_t>(indices.size());
  MutableTensor values(per_replica[0].dense_shape.with_dim(0, n), dtype, destination);
  std::byte* place = values.data();
  for (const IndexedSlices& slices : per_replica) {
    const std::size_t bytes =
        static_cast<std::size_t>(slices.indices.num_elements()) * bytes_per_row(slices);
    if (bytes > 0) std::memcpy(place, slices.values.bytes().data(), bytes);
    place += bytes;
  }
  const Tensor rows = values.freeze();
  return {op == ReduceOp::kSum ? rows : divided(rows, static_cast<double>(per_replica.size())),
          Tensor::from({n}, indices, destination), per_replica[0].dense_shape};
}

IndexedSlices sum_slices_canonically(std::span<const IndexedSlices> per_replica,
                                     Device destination) {
  check(per_replica);
  if (any_is_on_gpu(per_replica, destination)) {
    const std::vector<IndexedSlices> on_host = host_copies(per_replica);
    return copy_slices(sum_slices_canonically(on_host, Device{}), destination);
  }
  std::vector<std::int64_t> rows;
  for (const IndexedSlices& slices : per_replica) {
    const auto own = indices_of(slices);
    rows.insert(rows.end(), own.begin(), own.end());
  }
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  const IndexedSlices& first = per_replica.front();
  return visit_floating(first.values.dtype(), "sum of IndexedSlices", [&]<class T>() {
    std::vector<Tensor> spread_rows;
    for (const IndexedSlices& slices : per_replica) {
      spread_rows.push_back(spread<T>(slices, rows).freeze());
    }
    return IndexedSlices{reduce_tensors_along_tree(ReduceOp::kSum, spread_rows, destination),
                         Tensor::from({static_cast<std::int64_t>(rows.size())}, rows, destination),
                         first.dense_shape};
  });
}

Gradient aggregate(std::span<const Gradient> gradients) {
  std::vector<Tensor> dense;
  std::vector<IndexedSlices> sparse;
  for (const Gradient& gradient : gradients) {
    if (gradient.is_dense()) dense.push_back(gradient.dense());
    if (gradient.is_slices()) sparse.push_back(gradient.slices());
  }
  require(
      !gradients.empty() && (dense.size() == gradients.size() || sparse.size() == gradients.size()),
      "aggregate: expected at least one gradient, all dense or all IndexedSlices, got ",
      dense.size(), " dense, ", sparse.size(), " sparse and ",
      gradients.size() - dense.size() - sparse.size(), " missing");
  const Device device = device_of(gradients.front());
  if (!sparse.empty()) return concatenate_slices(ReduceOp::kSum, sparse, device);
  return reduce_tensors_along_tree(ReduceOp::kSum, dense, device);
}

Gradient divide_by(const Gradient& gradient, double divisor) {
  if (gradient.is_none()) return gradient;
  if (gradient.is_dense()) return divided(gradient.dense(), divisor);
  IndexedSlices slices = gradient.slices();
  slices.values = divided(slices.values, divisor);
  return slices;
}

Gradient copy_to(const Gradient& gradient, Device device) {
  if (gradient.is_none()) return gradient;
  if (gradient.is_dense()) return gradient.dense().to(device);
  return copy_slices(gradient.slices(), device);
}

Device device_of(const Gradient& gradient) {
  return gradient.is_slices() ? gradient.slices().values.device() : gradient.dense().device();
}

}  // namespace tutti

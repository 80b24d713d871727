// Arithmetic on gradients, dense or sparse.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/gradient_ops.h"

#include <vector>

#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/sparse.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

Tensor divided(const Tensor& values, double divisor) {
  if (values.device().type == DeviceType::kGpu) {
    const SeparateObservers unseen;
    return divide(values, divisor);
  }
  MutableTensor result(values.shape(), values.dtype(), values.device());
  visit_floating(values.dtype(), "divide_by", [&]<class T>() {
    const auto in = values.host_span<T>();
    const auto out = result.span<T>();
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] / static_cast<T>(divisor);
  });
  return result.freeze();
}

}  // namespace

Gradient aggregate(std::span<const Gradient> gradients) {
  std::vector<Tensor> dense;
  std::vector<IndexedSlices> sparse;
  for (const Gradient& gradient : gradients) {
    if (gradient.is_dense()) dense.push_back(gradient.dense());
    if (gradient.is_slices()) sparse.push_back(gradient.slices());
  }
  if (gradients.empty() ||
      (dense.size() != gradients.size() && sparse.size() != gradients.size())) {
    fail(ErrorCode::kInvalidArgument,
         "aggregate: expected one gradient or more, all dense or all IndexedSlices, got ",
         dense.size(), " dense, ", sparse.size(), " sparse and ",
         gradients.size() - dense.size() - sparse.size(), " missing");
  }
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
  const IndexedSlices& slices = gradient.slices();
  return IndexedSlices{slices.values.to(device), slices.indices.to(device), slices.dense_shape};
}

Device device_of(const Gradient& gradient) {
  return gradient.is_slices() ? gradient.slices().values.device() : gradient.dense().device();
}

}  // namespace tutti

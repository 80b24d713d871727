// Pictures as training wants them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/readers.h"

namespace tutti {
namespace {

Tensor scaled_to_one(const Tensor& images) {
  MutableTensor scaled(images.shape(), DType::kFloat32, images.device());
  const auto from = images.host_span<std::uint8_t>();
  const auto to = scaled.span<float>();
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<float>(from[i]) / 255.0f;
  return scaled.freeze();
}

Tensor as_int64(const Tensor& labels) {
  MutableTensor wide(labels.shape(), DType::kInt64, labels.device());
  const auto from = labels.host_span<std::uint8_t>();
  const auto to = wide.span<std::int64_t>();
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = from[i];
  return wide.freeze();
}

}  // namespace

Dataset image_dataset(const ImageData& data) {
  return Dataset::from_tensor_slices({scaled_to_one(data.images), as_int64(data.labels)});
}

}  // namespace tutti

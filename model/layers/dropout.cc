// Dropout and noise.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/dropout.h"

#include <cmath>

#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {

double checked_stddev(double stddev) {
  if (stddev >= 0.0) return stddev;
  fail(ErrorCode::kInvalidArgument, "GaussianNoise: expected a stddev >= 0, got ", stddev);
}

}  // namespace

Tensor internal::drop_channels(const Tensor& x, double rate, const RandomKey& key) {
  Shape mask = x.shape();
  for (int axis = 1; axis + 1 < mask.rank(); ++axis) mask = mask.with_dim(axis, 1);
  return x * dropout(Tensor::ones(mask, x.dtype(), x.device()), rate, key);
}

Tensor Disturbing::call(const Tensor& input, CallContext context) const {
  if (!context.training || strength_ == 0.0) return input;
  return disturbed(input, next_random_key());
}

Dropout::Dropout(double rate, LayerOptions options)
    : LayerOf(internal::require_rate(rate, "Dropout"), std::move(options)) {
  made_with(rate);
}

Tensor Dropout::disturbed(const Tensor& x, const RandomKey& key) const {
  return dropout(x, strength_, key);
}

GaussianNoise::GaussianNoise(double stddev, LayerOptions options)
    : LayerOf(checked_stddev(stddev), std::move(options)) {
  made_with(stddev);
}

Tensor GaussianNoise::disturbed(const Tensor& x, const RandomKey& key) const {
  return x + random_normal(x.shape(), key, 0.0, strength_, x.dtype(), x.device());
}

GaussianDropout::GaussianDropout(double rate, LayerOptions options)
    : LayerOf(internal::require_rate(rate, "GaussianDropout"), std::move(options)) {
  made_with(rate);
}

Tensor GaussianDropout::disturbed(const Tensor& x, const RandomKey& key) const {
  const double stddev = std::sqrt(strength_ / (1.0 - strength_));
  return x * random_normal(x.shape(), key, 1.0, stddev, x.dtype(), x.device());
}

SpatialDropout1D::SpatialDropout1D(double rate, LayerOptions options)
    : LayerOf(internal::require_rate(rate, "SpatialDropout1D"), std::move(options)) {
  made_with(rate);
}

Shape SpatialDropout1D::build(const Shape& input) {
  internal::require_sequence(input, "SpatialDropout1D");
  return input;
}

Tensor SpatialDropout1D::disturbed(const Tensor& x, const RandomKey& key) const {
  return internal::drop_channels(x, strength_, key);
}

SpatialDropout2D::SpatialDropout2D(double rate, LayerOptions options)
    : LayerOf(internal::require_rate(rate, "SpatialDropout2D"), std::move(options)) {
  made_with(rate);
}

Shape SpatialDropout2D::build(const Shape& input) {
  internal::require_image(input, "SpatialDropout2D");
  return input;
}

Tensor SpatialDropout2D::disturbed(const Tensor& x, const RandomKey& key) const {
  return internal::drop_channels(x, strength_, key);
}

}  // namespace tutti

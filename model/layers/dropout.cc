// Dropout and noise.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/dropout.h"

#include <cmath>

#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {

// The dropout layer.

Dropout::Dropout(double rate, DropoutOptions options)
    : LayerOf(options.name, options.input_shape), rate_(rate) {
  if (!(rate >= 0.0 && rate < 1.0))
    fail(ErrorCode::kInvalidArgument, "Dropout: expected a rate in [0, 1), got ", rate);
}

Shape Dropout::build(const Shape& input) { return input; }

Tensor Dropout::call(const Tensor& input, CallContext context) const {
  if (!context.training || rate_ == 0.0) return input;
  return dropout(input, rate_, next_random_key());
}

// Layers that disturb their input in training.

namespace {

double checked_rate(double rate, std::string_view who) {
  if (rate >= 0.0 && rate < 1.0) return rate;
  fail(ErrorCode::kInvalidArgument, who, ": expected a rate in [0, 1), got ", rate);
}

/// One decision per example and channel.
Tensor drop_channels(const Tensor& x, double rate, const RandomKey& key) {
  Shape mask = x.shape();
  for (int axis = 1; axis + 1 < mask.rank(); ++axis) mask = mask.with_dim(axis, 1);
  return x * dropout(Tensor::ones(mask, x.dtype(), x.device()), rate, key);
}

}  // namespace

GaussianNoise::GaussianNoise(double stddev, NoiseOptions options)
    : LayerOf(options.name, options.input_shape), stddev_(stddev) {
  if (!(stddev >= 0.0))
    fail(ErrorCode::kInvalidArgument, "GaussianNoise: expected a stddev of at least 0, got ",
         stddev);
}

Shape GaussianNoise::build(const Shape& input) { return input; }

Tensor GaussianNoise::call(const Tensor& input, CallContext context) const {
  if (!context.training || stddev_ == 0.0) return input;
  return input + random_normal(input.shape(), next_random_key(), 0.0, stddev_, input.dtype(),
                               input.device());
}

GaussianDropout::GaussianDropout(double rate, NoiseOptions options)
    : LayerOf(options.name, options.input_shape), rate_(checked_rate(rate, "GaussianDropout")) {}

Shape GaussianDropout::build(const Shape& input) { return input; }

Tensor GaussianDropout::call(const Tensor& input, CallContext context) const {
  if (!context.training || rate_ == 0.0) return input;
  return input * random_normal(input.shape(), next_random_key(), 1.0,
                               std::sqrt(rate_ / (1.0 - rate_)), input.dtype(), input.device());
}

SpatialDropout1D::SpatialDropout1D(double rate, NoiseOptions options)
    : LayerOf(options.name, options.input_shape), rate_(checked_rate(rate, "SpatialDropout1D")) {}

Shape SpatialDropout1D::build(const Shape& input) {
  internal::require_sequence(input, "SpatialDropout1D");
  return input;
}

Tensor SpatialDropout1D::call(const Tensor& input, CallContext context) const {
  if (!context.training || rate_ == 0.0) return input;
  return drop_channels(input, rate_, next_random_key());
}

SpatialDropout2D::SpatialDropout2D(double rate, NoiseOptions options)
    : LayerOf(options.name, options.input_shape), rate_(checked_rate(rate, "SpatialDropout2D")) {}

Shape SpatialDropout2D::build(const Shape& input) {
  internal::require_image(input, "SpatialDropout2D");
  return input;
}

Tensor SpatialDropout2D::call(const Tensor& input, CallContext context) const {
  if (!context.training || rate_ == 0.0) return input;
  return drop_channels(input, rate_, next_random_key());
}

}  // namespace tutti

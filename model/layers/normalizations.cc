// Normalisations over the batch, over features, and over neighbouring channels.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/normalizations.h"

#include <algorithm>

#include "autograd/recording.h"
#include "core/names.h"
#include "model/layers/in_float32.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/logging.h"
#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/normalization.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Batch normalisation over a replica's part of the batch, or over the global batch.
//
// If synchronised, one all_reduce sums [sum of x, sum of x^2, number of values per channel] over
// the replicas. The mean and the variance, E[x^2] - E[x]^2, are computed from the sums with
// ordinary operations, so that gradients flow through the statistics to every replica.

namespace {

VariableOptions moving_options(const char* name) {
  VariableOptions options;
  options.name = name;
  options.trainable = false;
  options.synchronization = VariableSynchronization::kOnRead;
  options.aggregation = VariableAggregation::kMean;
  return options;
}

void require_epsilon(double epsilon, std::string_view who) {
  if (epsilon > 0.0) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected a positive epsilon, got ", epsilon);
}

}  // namespace

BatchNormalization::BatchNormalization(BatchNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  require_epsilon(options_.epsilon, "BatchNormalization");
  made_with(options_);
}

Shape BatchNormalization::build(const Shape& input) {
  internal::require(input.rank() != 0, "expected examples of shape [..., channels], got scalars");
  const Shape channels{input[-1]};
  if (options_.scale) add_weight("ones", channels, {.name = "gamma"});
  if (options_.center) add_weight("zeros", channels, {.name = "beta"});
  add_weight("zeros", channels, moving_options("moving_mean"));
  add_weight("ones", channels, moving_options("moving_variance"));
  return input;
}

Tensor BatchNormalization::call(const Tensor& input, CallContext context) const {
  if (options_.synchronized) {
    return internal::in_float32(input, [&](const Tensor& x) { return normalized(x, context); });
  }
  // The operation computes in float32 internally, without float32 copies of 16-bit data.
  const AutocastScope weights_as_they_are(std::nullopt);
  return normalized(input, context);
}

Tensor BatchNormalization::normalized(const Tensor& input, CallContext context) const {
  const std::size_t first = first_moving_average();
  const Shape& channels = weight(first).shape();
  const DType type = weight(first).dtype();
  const Tensor gamma =
      options_.scale ? weight(0).value() : Tensor::ones(channels, type, input.device());
  const Tensor beta =
      options_.center ? weight(first - 1).value() : Tensor::zeros(channels, type, input.device());
  if (!context.training || frozen()) {
    if (!frozen()) warn_of_forgotten_training();
    return batch_norm_inference(input, gamma, beta, weight(first), weight(first + 1),
                                options_.epsilon);
  }
  if (MaskScope::mask_of(input).defined()) {
    fail(ErrorCode::kUnimplemented,
         "BatchNormalization: expected no masked steps in training, because they would change the "
         "statistics; use LayerNormalization, or BatchNormalization after the steps are pooled");
  }
  const Statistics statistics = options_.synchronized ? normalize_global_batch(input, gamma, beta)
                                                      : normalize_batch(input, gamma, beta);
  if (statistics.any_rows) update_moving_averages(statistics);
  return statistics.y;
}

BatchNormalization::Statistics BatchNormalization::normalize_batch(const Tensor& x,
                                                                   const Tensor& gamma,
                                                                   const Tensor& beta) const {
  if (x.num_elements() > 0 && x.num_elements() == x.shape()[-1]) {
    log_warning_once(concat(
        "layer '", name(),
        "': expected more than one value per channel on each replica, got shape ", x.shape(),
        "; one value has variance 0, so the output is beta and moving_variance shrinks towards "
        "0; use a larger batch, fewer replicas, or BatchNormalization({.synchronized = true})"));
  }
  const BatchNormResult result = batch_norm_training(x, gamma, beta, options_.epsilon);
  return {result.y, result.mean, result.variance, x.num_elements() > 0};
}

BatchNormalization::Statistics BatchNormalization::normalize_global_batch(
    const Tensor& x, const Tensor& gamma, const Tensor& beta) const {
  const std::int64_t channels = x.shape()[-1];
  std::vector<int> axes;
  for (int axis = 0; axis + 1 < x.rank(); ++axis) axes.push_back(axis);
  const double local_count =
      static_cast<double>(x.num_elements() / std::max<std::int64_t>(1, channels));
  const Tensor local = concat({reduce_sum(x, {.axes = axes}), reduce_sum(square(x), {.axes = axes}),
                               Tensor::full({1}, local_count, x.dtype(), x.device())},
                              0);
  const Tensor total =
      ReplicaGroup::current("BatchNormalization").all_reduce(ReduceOp::kSum, local);
  const Tensor count = slice(total, {2 * channels}, {1});
  const Tensor rows = maximum(count, 1.0);
  const Tensor mean = slice(total, {0}, {channels}) / rows;
  // Rounding could make the variance of equal numbers negative.
  const Tensor variance = maximum(slice(total, {channels}, {channels}) / rows - square(mean), 0.0);
  const Tensor y = (x - mean) * (rsqrt(variance + options_.epsilon) * gamma) + beta;
  if (host_reads_at_once(x)) return {y, mean, variance, count.item() > 0.0f};
  // The host does not wait for the count: where() keeps the averages if there are no rows.
  const GradientTape::StopRecording no_gradient;
  const std::size_t first = first_moving_average();
  const Tensor any = greater(count, 0.0);
  return {y, where(any, mean, weight(first).value()),
          where(any, variance, weight(first + 1).value()), true};
}

void BatchNormalization::warn_of_forgotten_training() const {
  if (!internal::any_tape_records() || is_updated_->load(std::memory_order_relaxed)) return;
  log_warning_once(concat(
      "layer '", name(),
      "' is called with training = false while a tape records, and its moving averages were never "
      "updated: it normalizes with mean 0 and variance 1; expected model(x, {.training = true}) in "
      "a training step; if its averages are set elsewhere, freeze() the layer"));
}

void BatchNormalization::update_moving_averages(const Statistics& statistics) const {
  is_updated_->store(true, std::memory_order_relaxed);
  const GradientTape::StopRecording no_gradient;
  const double share = 1.0 - options_.momentum;
  Variable moving_mean = weight(first_moving_average());
  Variable moving_variance = weight(first_moving_average() + 1);
  moving_mean.assign(moving_mean.value() * options_.momentum + statistics.mean * share);
  moving_variance.assign(moving_variance.value() * options_.momentum + statistics.variance * share);
}

// Normalisations within each example.

namespace {

/// Returns the axes in ascending order, numbered from 1 (axis 0 is the batch). Throws if an axis is
/// out of range or repeated, or if there is none.
std::vector<int> checked_axes(const Shape& example, std::vector<int> axes, std::string_view who) {
  for (int& axis : axes) {
    const int given = axis;
    if (axis < 0) axis += example.rank() + 1;
    internal::require(axis >= 1 && axis <= example.rank(), who, ": expected axes from 1 to ",
                      example.rank(), " (axis 0 is the batch) for examples of shape ", example,
                      ", got ", given);
  }
  std::ranges::sort(axes);
  if (axes.empty() || std::ranges::adjacent_find(axes) != axes.end()) {
    fail(ErrorCode::kInvalidArgument, who, ": expected one or more distinct axes, got [",
         join(axes), "]");
  }
  return axes;
}

/// Returns the lengths of these axes, which form the shape of gamma, beta and scale.
Shape dims_of(const Shape& example, const std::vector<int>& axes, std::string_view who) {
  std::vector<std::int64_t> dims;
  for (const int axis : checked_axes(example, axes, who)) dims.push_back(example[axis - 1]);
  return Shape{std::span<const std::int64_t>(dims)};
}

/// Returns the shape that gamma, beta or scale needs to broadcast to x: 1 for axes that are not
/// normalised.
Shape wide_shape(const Tensor& x, const std::vector<int>& axes) {
  Shape wide = x.shape();
  for (int axis = 0; axis < wide.rank(); ++axis)
    if (std::ranges::find(axes, axis) == axes.end()) wide = wide.with_dim(axis, 1);
  return wide;
}

/// Returns (x - mean) / sqrt(variance + epsilon), with the mean and variance over `axes`.
Tensor standardized(const Tensor& x, const std::vector<int>& axes, double epsilon) {
  const ReduceOptions over{.axes = axes, .keep_dims = true};
  const Tensor centered = x - reduce_mean(x, over);
  return centered * rsqrt(reduce_mean(square(centered), over) + epsilon);
}

}  // namespace

LayerNormalization::LayerNormalization(LayerNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  require_epsilon(options_.epsilon, "LayerNormalization");
  made_with(options_);
}

Shape LayerNormalization::build(const Shape& input) {
  const Shape shape = dims_of(input, options_.axes, "LayerNormalization");
  if (options_.scale)
    add_weight(options_.gamma_initializer, shape, {.name = "gamma"}, options_.gamma_regularizer);
  if (options_.center)
    add_weight(options_.beta_initializer, shape, {.name = "beta"}, options_.beta_regularizer);
  return input;
}

Tensor LayerNormalization::call(const Tensor& given, CallContext) const {
  // Computed here and not in build(), because copies of the layer that were made before build()
  // share its weights, but not its data members.
  const std::vector<int> axes =
      checked_axes(given.shape().without_axis(0), options_.axes, "LayerNormalization");
  const bool trailing = axes.front() == given.rank() - static_cast<int>(axes.size());
  return internal::in_float32(given, [&](const Tensor& input) {
    if (trailing && options_.scale && options_.center) {
      return layer_norm(input, weight(0), weight(1),
                        {static_cast<int>(axes.size()), options_.epsilon});
    }
    const Shape wide = wide_shape(input, axes);
    Tensor y = standardized(input, axes, options_.epsilon);
    if (options_.scale) y = y * reshape(weight(0).value(), wide);
    if (options_.center) y = y + reshape(weight(options_.scale ? 1 : 0).value(), wide);
    return y;
  });
}

GroupNormalization::GroupNormalization(std::int64_t groups, GroupNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), groups_(groups), options_(std::move(options)) {
  if (groups <= 0 && groups != -1)
    fail(ErrorCode::kInvalidArgument,
         "GroupNormalization: expected a positive number of groups, or -1, got ", groups);
  made_with(groups, options_);
}

Shape GroupNormalization::build(const Shape& input) {
  if (input.rank() == 0)
    fail(ErrorCode::kInvalidArgument, "expected examples of shape [..., channels], got scalars");
  const std::int64_t channels = input[-1], groups = groups_of(channels);
  internal::require(channels % groups == 0,
                    "GroupNormalization: expected a number of groups that divides the ", channels,
                    " channels of the input, got ", groups);
  if (options_.scale) {
    add_weight(options_.gamma_initializer, {channels}, {.name = "gamma"},
               options_.gamma_regularizer);
  }
  if (options_.center)
    add_weight(options_.beta_initializer, {channels}, {.name = "beta"}, options_.beta_regularizer);
  return input;
}

std::int64_t GroupNormalization::groups_of(std::int64_t channels) const {
  return groups_ == -1 ? std::max<std::int64_t>(1, channels) : groups_;
}

Tensor GroupNormalization::call(const Tensor& given, CallContext) const {
  const std::int64_t groups = groups_of(given.shape()[-1]);
  return internal::in_float32(given, [&](const Tensor& input) {
    if (options_.scale && options_.center)
      return group_norm(input, weight(0), weight(1), {groups, options_.epsilon});
    const std::int64_t rows = input.shape()[0], channels = input.shape()[-1];
    std::int64_t places = 1;
    for (int axis = 1; axis + 1 < input.rank(); ++axis) places *= input.shape()[axis];
    const Tensor grouped = reshape(input, Shape{rows, places, groups, channels / groups});
    Tensor y = reshape(standardized(grouped, {1, 3}, options_.epsilon), input.shape());
    if (options_.scale) y = y * weight(0).value();
    if (options_.center) y = y + weight(options_.scale ? 1 : 0).value();
    return y;
  });
}

RMSNormalization::RMSNormalization(RMSNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  require_epsilon(options_.epsilon, "RMSNormalization");
  made_with(options_);
}

Shape RMSNormalization::build(const Shape& input) {
  add_weight("ones", dims_of(input, options_.axes, "RMSNormalization"), {.name = "scale"});
  return input;
}

Tensor RMSNormalization::call(const Tensor& given, CallContext) const {
  const std::vector<int> axes =
      checked_axes(given.shape().without_axis(0), options_.axes, "RMSNormalization");
  return internal::in_float32(given, [&](const Tensor& x) {
    const Tensor squares = reduce_mean(square(x), {.axes = axes, .keep_dims = true});
    const Tensor scale = reshape(weight(0).value(), wide_shape(x, axes));
    return x * rsqrt(squares + options_.epsilon) * scale;
  });
}

UnitNormalization::UnitNormalization(UnitNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  made_with(options_);
}

Shape UnitNormalization::build(const Shape& input) {
  (void)checked_axes(input, options_.axes, "UnitNormalization");
  return input;
}

Tensor UnitNormalization::call(const Tensor& input, CallContext) const {
  return internal::in_float32(input, [&](const Tensor& x) {
    const Tensor squares = reduce_sum(square(x), {.axes = options_.axes, .keep_dims = true});
    return x * rsqrt(maximum(squares, 1e-24));  // a length below 1e-12 counts as 1e-12 (Keras)
  });
}

// Local response normalisation as a layer.

LocalResponseNormalization::LocalResponseNormalization(LocalResponseNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  made_with(options_);
}

Shape LocalResponseNormalization::build(const Shape& input) {
  internal::require_image(input, "LocalResponseNormalization");
  return input;
}

Tensor LocalResponseNormalization::call(const Tensor& input, CallContext) const {
  LrnAttributes attributes;
  attributes.depth_radius = options_.depth_radius;
  attributes.bias = options_.bias;
  attributes.alpha = options_.alpha;
  attributes.beta = options_.beta;
  return local_response_normalization(input, attributes);
}

}  // namespace tutti

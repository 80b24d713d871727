// Batch normalisation, of a replica's part of the batch or of the whole.
// SPDX-License-Identifier: Apache-2.0
//
// Synchronised, the replicas sum [sum of x, sum of x^2, number of rows] in one all_reduce; mean and
// variance E[x^2] - E[x]^2 follow from that by ordinary operations, so that gradients flow through
// the statistics to every replica.
#include "tutti/model/layers/batch_normalization.h"

#include <algorithm>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/autograd/tape_stack.h"
#include "tutti/core/logging.h"
#include "tutti/model/layers/in_float32.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/normalization.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

VariableOptions moving_options(const char* name) {
  VariableOptions options;
  options.name = name;
  options.trainable = false;
  options.synchronization = VariableSynchronization::kOnRead;
  options.aggregation = VariableAggregation::kMean;
  return options;
}

}  // namespace

BatchNormalization::BatchNormalization(BatchNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  if (!(options_.epsilon > 0.0)) {
    fail(ErrorCode::kInvalidArgument, "BatchNormalization: expected a positive epsilon, got ",
         options_.epsilon);
  }
}

Shape BatchNormalization::build(const Shape& input) {
  if (input.rank() == 0) {
    fail(ErrorCode::kInvalidArgument, "expected examples of shape [..., channels], got scalars");
  }
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
  // The operation itself computes in float32, without copies of 16-bit data in float32.
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
         "BatchNormalization: steps that do not count would change the statistics of training; try "
         "LayerNormalization, or BatchNormalization after the steps are pooled");
  }
  const Statistics statistics = options_.synchronized ? normalize_global_batch(input, gamma, beta)
                                                      : normalize_batch(input, gamma, beta);
  if (statistics.any_rows) update_moving_averages(statistics);
  return statistics.y;
}

BatchNormalization::Statistics BatchNormalization::normalize_batch(const Tensor& x,
                                                                   const Tensor& gamma,
                                                                   const Tensor& beta) const {
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
  // Rounding can make a difference of equal numbers negative.
  const Tensor variance = maximum(slice(total, {channels}, {channels}) / rows - square(mean), 0.0);
  const Tensor y = (x - mean) * (rsqrt(variance + options_.epsilon) * gamma) + beta;
  if (x.device().type == DeviceType::kCpu) return {y, mean, variance, count.item() > 0.0f};
  // Without waiting for the number: where there are no rows the averages stay.
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
      "a training step; if averages of elsewhere are meant, freeze() the layer"));
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

}  // namespace tutti

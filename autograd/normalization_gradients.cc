// Gradients of normalization, softmax, cross-entropies and attention.
// SPDX-License-Identifier: Apache-2.0
//
// Notation for softmax: a row is a vector along the last axis; s = softmax(logits). In functions
// named xxx_grad_gradient, dy() is the gradient g with respect to the result of xxx_grad.
#include "autograd/gradients.h"
#include "autograd/recording.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

namespace {

/// Returns the contribution of the `mean` and `variance` outputs to the gradient of x.
Tensor statistics_gradient(const GradientContext& c, std::int64_t rows) {
  const Tensor& d_mean = c.output_gradients[1];
  const Tensor& d_variance = c.output_gradients[2];
  const double scale = 1.0 / static_cast<double>(rows);
  Tensor dx;
  if (d_mean.defined()) dx = broadcast_to(d_mean * scale, c.shape(0));
  if (d_variance.defined()) {
    const Tensor x = cast(c.in(0), c.out(1).dtype());
    const Tensor part = (x - c.out(1)) * (d_variance * (2.0 * scale));
    dx = dx.defined() ? dx + part : part;
  }
  return dx;
}

/// Differentiates batch_norm_training(): inputs (x, gamma, beta), outputs (y, mean, variance).
Gradients batch_norm_training_gradient(const GradientContext& c) {
  const double epsilon = c.attributes_as<BatchNormAttributes>().epsilon;
  Gradients result(3);
  Tensor dx;
  if (c.dy().defined()) {
    std::vector<Tensor> gradients =
        batch_norm_grad(c.in(0), c.in(1), c.out(1), c.out(2), c.dy(), epsilon);
    dx = gradients[0];
    result[1] = gradients[1];
    result[2] = gradients[2];
  }
  const std::int64_t channels = c.shape(0).dim(-1);
  const std::int64_t rows = channels == 0 ? 0 : c.shape(0).num_elements() / channels;
  if (c.needs(0) && rows > 0) {
    Tensor from_statistics = statistics_gradient(c, rows);
    if (from_statistics.defined()) {
      from_statistics = cast(from_statistics, c.in(0).dtype());
      dx = dx.defined() ? dx + from_statistics : from_statistics;
    }
  }
  if (c.needs(0) && dx.defined()) result[0] = dx;
  return result;
}

/// Differentiates batch_norm_inference(x, gamma, beta, mean, variance).
Gradients batch_norm_inference_gradient(const GradientContext& c) {
  const Tensor& gamma = c.in(1);
  const Tensor x = cast(c.in(0), gamma.dtype()), dy = cast(c.dy(), gamma.dtype());
  const Tensor inverse = rsqrt(c.in(4) + c.attributes_as<BatchNormAttributes>().epsilon);
  const Tensor scale = gamma * inverse;
  Gradients result(5);
  if (c.needs(0)) result[0] = cast(dy * scale, c.in(0).dtype());
  if (c.needs(2)) result[2] = unbroadcast(c, 2, dy);
  if (c.needs(3)) result[3] = -(unbroadcast(c, 3, dy) * scale);
  if (c.needs(1) || c.needs(4)) {
    const Tensor moment = unbroadcast(c, 1, dy * (x - c.in(3)));
    if (c.needs(1)) result[1] = moment * inverse;
    if (c.needs(4)) result[4] = moment * (scale * square(inverse)) * -0.5;
  }
  return result;
}

/// Differentiates group_norm(): inputs (x, gamma, beta), outputs (y, mean, variance); only y
/// is visible to callers.
Gradients group_norm_gradient(const GradientContext& c) {
  std::vector<Tensor> gradients = group_norm_grad(c.in(0), c.in(1), c.out(1), c.out(2), c.dy(),
                                                  c.attributes_as<GroupNormAttributes>());
  Gradients result(3);
  for (std::size_t i = 0; i < 3; ++i) {
    if (c.needs(i)) result[i] = std::move(gradients[i]);
  }
  return result;
}

/// Returns the sum of each row, as a column.
Tensor row_sum(const Tensor& x) { return reduce_sum(x, {.axes = {-1}, .keep_dims = true}); }

/// Reshapes [batch] to [batch, 1].
Tensor as_column(const Tensor& x) { return expand_dims(x, -1); }

/// Differentiates softmax_grad(y, dy) = (dy - sum(dy y)) y.
Gradients softmax_grad_gradient(const GradientContext& c) {
  const Tensor& y = c.in(0);
  const Tensor& dy = c.in(1);
  const Tensor& g = c.dy();
  Gradients result(2);
  if (c.needs(0)) result[0] = g * (dy - row_sum(dy * y)) - dy * row_sum(g * y);
  if (c.needs(1)) result[1] = softmax_grad(y, g);  // the Jacobian of softmax is symmetric
  return result;
}

/// Differentiates log_softmax_grad(y, dy) = dy - exp(y) sum(dy).
Gradients log_softmax_grad_gradient(const GradientContext& c) {
  const Tensor& g = c.dy();
  const Tensor weighted = g * exp(c.in(0));
  Gradients result(2);
  if (c.needs(0)) result[0] = -(weighted * row_sum(c.in(1)));
  if (c.needs(1)) result[1] = g - row_sum(weighted);
  return result;
}

/// Differentiates softmax_cross_entropy(labels, logits). As in tf, each row of labels is assumed to
/// be a probability distribution.
Gradients softmax_cross_entropy_gradient(const GradientContext& c) {
  const Tensor dy = as_column(c.dy());
  Gradients result(2);
  if (c.needs(0)) result[0] = -(log_softmax(c.in(1)) * dy);
  if (c.needs(1)) result[1] = (softmax(c.in(1)) - c.in(0)) * dy;
  return result;
}

Gradients sparse_softmax_cross_entropy_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(1)) result[1] = sparse_softmax_cross_entropy_grad(c.in(0), c.in(1), c.dy());
  return result;
}

/// Differentiates sparse_softmax_cross_entropy_grad(labels, logits, dy) =
/// (s - one_hot(labels)) dy[row].
Gradients sparse_softmax_cross_entropy_grad_gradient(const GradientContext& c) {
  const Tensor& logits = c.in(1);
  const Tensor& dy = c.in(2);
  const Tensor& g = c.dy();
  Gradients result(3);
  if (c.needs(1)) result[1] = softmax_grad(softmax(logits), g * as_column(dy));
  if (c.needs(2)) {
    const Tensor ones = Tensor::ones(dy.shape(), dy.dtype(), dy.device());
    const Tensor difference = sparse_softmax_cross_entropy_grad(c.in(0), logits, ones);
    result[2] = reduce_sum(g * difference, {.axes = {-1}});
  }
  return result;
}

/// Differentiates sigmoid_cross_entropy(labels, logits).
Gradients sigmoid_cross_entropy_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = -(c.in(1) * c.dy());
  if (c.needs(1)) result[1] = (sigmoid(c.in(1)) - c.in(0)) * c.dy();
  return result;
}

/// Differentiates attention: inputs (query, key, value), outputs (result, sums); only the result is
/// visible to callers. If a tape records this computation, uses only differentiable operations.
Gradients attention_gradient(const GradientContext& c) {
  const auto& a = c.attributes_as<AttentionAttributes>();
  const Tensor &query = c.in(0), &key = c.in(1), &value = c.in(2);
  std::vector<Tensor> gradients;
  if (any_tape_records()) {
    const Tensor seen =
        a.is_causal ? causal_mask(query.shape()[2], key.shape()[2], a.steps_before, query.device())
                    : Tensor();
    const Tensor shares = attention_shares(query, key, a.scale, seen);
    gradients = attention_grad_of_shares(query, key, value, shares, c.dy(), a.scale);
  } else {
    gradients = attention_grad(query, key, value, c.out(0), c.out(1), c.dy(), a);
  }
  Gradients result(3);
  for (std::size_t i = 0; i < 3; ++i) {
    if (c.needs(i)) result[i] = std::move(gradients[i]);
  }
  return result;
}

constexpr std::uint32_t kStatistics = 0b110;  // bits for the outputs mean and variance
using C = const GradientContext&;             // alias for the table below

constexpr OpGradient kNormalizationGradients[] = {
    {OpId::kBatchNormTraining, batch_norm_training_gradient, kFirstTensor | kSecondTensor,
     kStatistics},
    {OpId::kBatchNormInference, batch_norm_inference_gradient, kEveryTensor},
    {OpId::kLrn,
     [](C c) {
       return single(
           local_response_normalization_grad(c.in(0), c.dy(), c.attributes_as<LrnAttributes>()));
     },
     kEveryTensor},
    {OpId::kGroupNorm, group_norm_gradient, kFirstTensor | kSecondTensor, kStatistics},
    {OpId::kSoftmax, [](C c) { return single(softmax_grad(c.out(), c.dy())); }, kNoTensor,
     kFirstTensor},
    {OpId::kLogSoftmax, [](C c) { return single(log_softmax_grad(c.out(), c.dy())); }, kNoTensor,
     kFirstTensor},
    {OpId::kSoftmaxGrad, softmax_grad_gradient, kEveryTensor},
    {OpId::kLogSoftmaxGrad, log_softmax_grad_gradient, kEveryTensor},
    {OpId::kSoftmaxCrossEntropy, softmax_cross_entropy_gradient, kEveryTensor},
    {OpId::kSparseSoftmaxCrossEntropy, sparse_softmax_cross_entropy_gradient, kEveryTensor},
    {OpId::kSparseSoftmaxCrossEntropyGrad, sparse_softmax_cross_entropy_grad_gradient,
     kEveryTensor},
    {OpId::kSigmoidCrossEntropy, sigmoid_cross_entropy_gradient, kEveryTensor},
    {OpId::kAttention, attention_gradient, kEveryTensor, kFirstTensor | kSecondTensor},
};

}  // namespace

std::span<const OpGradient> normalization_gradients() { return kNormalizationGradients; }

}  // namespace tutti::internal

// Gradients of matrix products, convolutions and pooling.
// SPDX-License-Identifier: Apache-2.0
//
// Matrix products: y = activation(A B + bias), where A and B are a and b, possibly transposed. dz
// is the gradient of A B + bias.
#include "autograd/gradients.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

namespace {

/// Returns the products a^T b, summed over the batch: a [..., k, m] and b [..., k, n] -> [m, n].
Tensor product_summed_over_batch(const Tensor& a, const Tensor& b) {
  OpCall call;
  call.op = OpId::kMatMul;
  call.inputs = {a, b};
  call.outputs = {{{a.shape().dim(-1), b.shape().dim(-1)}, a.dtype()}};
  call.attributes = MatMulAttributes{.transpose_a = true, .sum_over_batch = true};
  return dispatch_one(std::move(call));
}

Tensor gradient_of_a(const Tensor& dz, const Tensor& b, const MatMulAttributes& attributes) {
  if (!attributes.transpose_a) {
    return matmul(dz, b, {.transpose_b = !attributes.transpose_b});
  }
  return matmul(b, dz, {.transpose_a = attributes.transpose_b, .transpose_b = true});
}

Tensor gradient_of_b(const Tensor& dz, const Tensor& a, const MatMulAttributes& attributes,
                     int rank_of_b) {
  const bool batch_only_in_a = a.rank() > 2 && rank_of_b == 2;
  // One product that sums over the batch is faster than a sum of one product per batch element.
  if (batch_only_in_a && !attributes.transpose_a) {
    return attributes.transpose_b ? product_summed_over_batch(dz, a)
                                  : product_summed_over_batch(a, dz);
  }
  if (!attributes.transpose_b) return matmul(a, dz, {.transpose_a = !attributes.transpose_a});
  return matmul(dz, a, {.transpose_a = true, .transpose_b = attributes.transpose_a});
}

Gradients matmul_gradient(const GradientContext& c) {
  const auto& attributes = c.attributes_as<MatMulAttributes>();
  const bool fused = attributes.activation != FusedActivation::kNone;
  const Tensor dz = activation_gradient(attributes.activation, c.dy(), fused ? &c.out() : nullptr);
  Gradients result(c.num_inputs());
  if (attributes.sum_over_batch) {
    if (c.needs(0)) result[0] = matmul(c.in(1), dz, {.transpose_b = true});
    if (c.needs(1)) result[1] = matmul(c.in(0), dz);
    return result;
  }
  if (c.needs(0)) result[0] = unbroadcast(c, 0, gradient_of_a(dz, c.in(1), attributes));
  if (c.needs(1)) {
    result[1] = unbroadcast(c, 1, gradient_of_b(dz, c.in(0), attributes, c.shape(1).rank()));
  }
  if (c.num_inputs() > 2 && c.needs(2)) result[2] = bias_grad(dz);
  return result;
}

// Gradients of convolutions.
//
// A convolution is linear in the image and in the filter, so its derivatives of any order consist
// of conv2d(), conv2d_backward_input() and conv2d_backward_filter().

Conv2dAttributes without_activation(Conv2dAttributes attributes) {
  attributes.activation = FusedActivation::kNone;
  return attributes;
}

/// Applies conv2d with `attributes`, but without an activation.
Tensor convolve(const Tensor& x, const Tensor& filter, const Shape& output_shape,
                const Conv2dAttributes& attributes) {
  OpCall call;
  call.op = OpId::kConv2d;
  call.inputs = {x, filter};
  call.outputs = {{output_shape, x.dtype()}};
  call.attributes = without_activation(attributes);
  return dispatch_one(std::move(call));
}

Gradients conv2d_gradient(const GradientContext& c) {
  const auto& recorded = c.attributes_as<Conv2dAttributes>();
  const Conv2dAttributes attributes = without_activation(recorded);
  const bool fused = recorded.activation != FusedActivation::kNone;
  const Tensor dz = activation_gradient(recorded.activation, c.dy(), fused ? &c.out() : nullptr);
  Gradients result(c.num_inputs());
  if (c.needs(0)) result[0] = conv2d_backward_input(dz, c.in(1), c.shape(0), attributes);
  if (c.needs(1)) result[1] = conv2d_backward_filter(c.in(0), dz, c.shape(1), attributes);
  if (c.num_inputs() > 2 && c.needs(2)) result[2] = bias_grad(dz);
  return result;
}

/// Differentiates conv2d_backward_input(dy, filter), whose result has the image's shape.
Gradients conv2d_backward_input_gradient(const GradientContext& c) {
  const auto& attributes = c.attributes_as<Conv2dAttributes>();
  Gradients result(2);
  if (c.needs(0)) result[0] = convolve(c.dy(), c.in(1), c.shape(0), attributes);
  if (c.needs(1)) result[1] = conv2d_backward_filter(c.dy(), c.in(0), c.shape(1), attributes);
  return result;
}

/// Differentiates conv2d_backward_filter(x, dy), whose result has the filter's shape.
Gradients conv2d_backward_filter_gradient(const GradientContext& c) {
  const auto& attributes = c.attributes_as<Conv2dAttributes>();
  Gradients result(2);
  if (c.needs(0)) result[0] = conv2d_backward_input(c.in(1), c.dy(), c.shape(0), attributes);
  if (c.needs(1)) result[1] = convolve(c.in(0), c.dy(), c.shape(1), attributes);
  return result;
}

// Gradients of pooling.

/// Average pooling is linear, so the gradient of its gradient is average pooling.
Gradients average_pool_grad_gradient(const GradientContext& c) {
  OpCall call;
  call.op = OpId::kAveragePool;
  call.inputs = {c.dy()};
  call.outputs = {{c.shape(0), c.dtype(0)}};
  call.attributes = c.attributes_as<Pool2dAttributes>();
  return single(dispatch_one(std::move(call)));
}

using C = const GradientContext&;  // alias for the table below

constexpr OpGradient kLinearGradients[] = {
    {OpId::kMatMul, matmul_gradient, kFirstTensor | kSecondTensor, kFirstTensor},
    {OpId::kConv2d, conv2d_gradient, kFirstTensor | kSecondTensor, kFirstTensor},
    {OpId::kConv2dBackwardInput, conv2d_backward_input_gradient, kEveryTensor},
    {OpId::kConv2dBackwardFilter, conv2d_backward_filter_gradient, kEveryTensor},
    {OpId::kBiasGrad, [](C c) { return single(broadcast_to(c.dy(), c.shape(0))); }, kNoTensor},
    {OpId::kMaxPool,
     [](C c) {
       return single(max_pool2d_grad(c.in(0), c.dy(), c.attributes_as<Pool2dAttributes>()));
     },
     kEveryTensor},
    {OpId::kAveragePool,
     [](C c) {
       return single(average_pool2d_grad(c.dy(), c.shape(0), c.attributes_as<Pool2dAttributes>()));
     },
     kNoTensor},
    {OpId::kAveragePoolGrad, average_pool_grad_gradient, kNoTensor},
};

}  // namespace

std::span<const OpGradient> linear_gradients() { return kLinearGradients; }

}  // namespace tutti::internal

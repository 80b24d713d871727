// All gradient functions, by topic: see gradient_functions.cc for the table.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/autograd/gradient_functions.h"
#include "tutti/autograd/gradient_sum.h"

namespace tutti::internal {

using Gradients = std::vector<Gradient>;

/// `gradient` of a value that was broadcast, summed to the shape of input i.
Tensor unbroadcast(const GradientContext& context, std::size_t i, const Tensor& gradient);
/// dy of the value before `activation`, whose result is `y` (unused for kNone).
Tensor activation_gradient(FusedActivation activation, const Tensor& dy, const Tensor* y);
/// The one gradient of an operation with one input.
inline Gradients single(Tensor gradient) { return Gradients{Gradient(std::move(gradient))}; }

// elementwise_gradients.cc
Gradients negate_gradient(const GradientContext& context);
Gradients exp_gradient(const GradientContext& context);
Gradients log_gradient(const GradientContext& context);
Gradients sqrt_gradient(const GradientContext& context);
Gradients rsqrt_gradient(const GradientContext& context);
Gradients square_gradient(const GradientContext& context);
Gradients abs_gradient(const GradientContext& context);
Gradients reciprocal_gradient(const GradientContext& context);
Gradients cast_gradient(const GradientContext& context);
Gradients erf_gradient(const GradientContext& context);
Gradients log1p_gradient(const GradientContext& context);
Gradients expm1_gradient(const GradientContext& context);
Gradients sin_gradient(const GradientContext& context);
Gradients cos_gradient(const GradientContext& context);
Gradients clip_gradient(const GradientContext& context);
Gradients add_gradient(const GradientContext& context);
Gradients subtract_gradient(const GradientContext& context);
Gradients multiply_gradient(const GradientContext& context);
Gradients divide_gradient(const GradientContext& context);
Gradients maximum_gradient(const GradientContext& context);
Gradients minimum_gradient(const GradientContext& context);
Gradients power_gradient(const GradientContext& context);
Gradients where_gradient(const GradientContext& context);
Gradients dropout_gradient(const GradientContext& context);

// activation_gradients.cc
Gradients relu_gradient(const GradientContext& context);
Gradients add_relu_gradient(const GradientContext& context);
Gradients sigmoid_gradient(const GradientContext& context);
Gradients tanh_gradient(const GradientContext& context);
Gradients softplus_gradient(const GradientContext& context);
Gradients elu_gradient(const GradientContext& context);
Gradients gelu_gradient(const GradientContext& context);
Gradients relu_grad_gradient(const GradientContext& context);
Gradients sigmoid_grad_gradient(const GradientContext& context);
Gradients tanh_grad_gradient(const GradientContext& context);
Gradients elu_grad_gradient(const GradientContext& context);
Gradients gelu_grad_gradient(const GradientContext& context);

// reduction_gradients.cc
Gradients reduce_sum_gradient(const GradientContext& context);
Gradients reduce_mean_gradient(const GradientContext& context);
Gradients reduce_extreme_gradient(const GradientContext& context);
Gradients reduce_product_gradient(const GradientContext& context);

// matmul_gradients.cc
Gradients matmul_gradient(const GradientContext& context);

// convolution_gradients.cc
Gradients conv2d_gradient(const GradientContext& context);
Gradients conv2d_backward_input_gradient(const GradientContext& context);
Gradients conv2d_backward_filter_gradient(const GradientContext& context);
Gradients bias_grad_gradient(const GradientContext& context);
Gradients max_pool_gradient(const GradientContext& context);
Gradients average_pool_gradient(const GradientContext& context);
Gradients average_pool_grad_gradient(const GradientContext& context);

// normalization_gradients.cc
Gradients batch_norm_training_gradient(const GradientContext& context);
Gradients batch_norm_inference_gradient(const GradientContext& context);
Gradients lrn_gradient(const GradientContext& context);
Gradients group_norm_gradient(const GradientContext& context);

// softmax_gradients.cc
Gradients softmax_gradient(const GradientContext& context);
Gradients log_softmax_gradient(const GradientContext& context);
Gradients softmax_grad_gradient(const GradientContext& context);
Gradients log_softmax_grad_gradient(const GradientContext& context);
Gradients softmax_cross_entropy_gradient(const GradientContext& context);
Gradients sparse_softmax_cross_entropy_gradient(const GradientContext& context);
Gradients sparse_softmax_cross_entropy_grad_gradient(const GradientContext& context);
Gradients sigmoid_cross_entropy_gradient(const GradientContext& context);

// shape_gradients.cc
Gradients reshape_gradient(const GradientContext& context);
Gradients transpose_gradient(const GradientContext& context);
Gradients slice_gradient(const GradientContext& context);
/// The same, not yet padded: many slices of one value are put together at once.
GradientBlock slice_block(const GradientContext& context);
Gradients pad_gradient(const GradientContext& context);
Gradients concat_gradient(const GradientContext& context);
Gradients broadcast_to_gradient(const GradientContext& context);
Gradients gather_gradient(const GradientContext& context);
Gradients scatter_rows_gradient(const GradientContext& context);
Gradients reverse_gradient(const GradientContext& context);
Gradients cumulative_sum_gradient(const GradientContext& context);
Gradients top_k_gradient(const GradientContext& context);
Gradients upsample_gradient(const GradientContext& context);
Gradients upsample_grad_gradient(const GradientContext& context);

}  // namespace tutti::internal

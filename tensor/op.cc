// Names of operations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/op.h"

#include <iterator>

namespace tutti {
namespace {

// In the order of OpId.
// clang-format off
constexpr std::string_view kOpNames[] = {
    "negate", "exp", "log", "sqrt", "rsqrt", "square", "abs", "sign", "reciprocal", "floor",
    "ceil", "round", "erf", "log1p", "expm1", "sin", "cos",
    "relu", "sigmoid", "tanh", "softplus", "elu", "gelu", "logical_not", "cast", "clip",
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "add_relu",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or",
    "relu_grad", "sigmoid_grad", "tanh_grad", "elu_grad", "gelu_grad",
    "where",
    "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_product", "reduce_any",
    "reduce_all", "argmax", "argmin",
    "matmul",
    "conv2d", "conv2d_backward_input", "conv2d_backward_filter", "bias_grad",
    "max_pool2d", "max_pool2d_grad", "average_pool2d", "average_pool2d_grad",
    "batch_norm_training", "batch_norm_grad", "batch_norm_inference",
    "local_response_normalization", "local_response_normalization_grad",
    "group_norm", "group_norm_grad",
    "softmax", "log_softmax", "softmax_grad", "log_softmax_grad",
    "softmax_cross_entropy", "sparse_softmax_cross_entropy", "sparse_softmax_cross_entropy_grad",
    "sigmoid_cross_entropy",
    "reshape", "transpose", "slice", "pad", "concat", "broadcast_to", "one_hot", "gather",
    "stop_gradient", "scatter_rows", "reverse", "cumulative_sum", "top_k",
    "upsample2d", "upsample2d_grad",
    "dropout"};
// clang-format on
static_assert(std::size(kOpNames) == static_cast<std::size_t>(OpId::kCount));

}  // namespace

std::string_view to_string(OpId op) {
  TUTTI_CHECK(op < OpId::kCount, "OpId: no such value: ", static_cast<int>(op));
  return kOpNames[static_cast<std::size_t>(op)];
}

}  // namespace tutti

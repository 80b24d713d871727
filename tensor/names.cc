// Names of element types, reductions and operations.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>

#include "core/names.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {
namespace {

// Names in DType order.
constexpr std::string_view kDTypeNames[] = {"float32", "float64", "int32",    "int64",
                                            "uint8",   "bool",    "bfloat16", "float16"};
static_assert(std::size(kDTypeNames) == std::size(kAllDTypes));

// Names in ReduceOp order.
constexpr std::string_view kReduceOpNames[] = {"SUM", "MEAN", "MIN", "MAX", "PRODUCT"};

// Names in OpId order.
// clang-format off
constexpr std::string_view kOpNames[] = {
    "negate", "exp", "log", "sqrt", "rsqrt", "square", "abs", "sign", "reciprocal", "floor",
    "ceil", "round", "erf", "log1p", "expm1", "sin", "cos",
    "relu", "sigmoid", "tanh", "softplus", "elu", "gelu", "gelu_tanh",
    "logical_not", "cast", "clip",
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "add_relu",
    "floor_divide", "floor_mod",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or",
    "relu_grad", "sigmoid_grad", "tanh_grad", "elu_grad", "gelu_grad", "gelu_tanh_grad",
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
    "attention", "attention_grad",
    "reshape", "transpose", "slice", "pad", "concat", "broadcast_to", "one_hot", "gather",
    "stop_gradient", "scatter_rows", "reverse", "cumulative_sum", "top_k",
    "upsample2d", "upsample2d_grad",
    "dropout"};
// clang-format on
static_assert(std::size(kOpNames) == static_cast<std::size_t>(OpId::kCount));

}  // namespace

std::string_view to_string(DType dtype) { return internal::name_in(kDTypeNames, dtype, "DType"); }

DType parse_dtype(std::string_view name) {
  for (DType dtype : kAllDTypes) {
    if (name == to_string(dtype)) return dtype;
  }
  fail(ErrorCode::kInvalidArgument, "parse_dtype: unknown element type; expected one of ",
       join(kAllDTypes), ", got '", name, "'");
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << to_string(dtype); }

std::size_t size_of(DType dtype) {
  return visit_dtype(dtype, []<class T>() { return sizeof(T); });
}

bool is_half(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || is_half(dtype);
}

std::string_view to_string(ReduceOp op) {
  return internal::name_in(kReduceOpNames, op, "ReduceOp");
}

ReduceOp parse_reduce_op(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const auto found = std::ranges::find(kReduceOpNames, upper);
  if (found != std::end(kReduceOpNames)) return ReduceOp(found - std::begin(kReduceOpNames));
  fail(ErrorCode::kInvalidArgument, "parse_reduce_op: unknown reduction; expected one of ",
       join(kReduceOpNames), ", got '", text, "'");
}

std::ostream& operator<<(std::ostream& out, ReduceOp op) { return out << to_string(op); }

std::string_view to_string(OpId op) {
  TUTTI_CHECK(op < OpId::kCount, "to_string: expected an OpId, got ", static_cast<int>(op));
  return kOpNames[static_cast<std::size_t>(op)];
}

}  // namespace tutti

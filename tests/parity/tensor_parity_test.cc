// Compares composite operations, activations, regularizers and constraints with TensorFlow's.
// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/merging.h"
#include "tutti/model/layers/normalizations.h"
#include "tutti/model/layers/regularization.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::parity {
namespace {

using FunctionOfOne = std::function<Tensor(const Tensor&)>;

Tensor in_float64(const Tensor& x) { return cast(x, DType::kFloat64); }

/// Returns a constant factor of tensor_cases.py.
const Tensor& constant(const char* name) { return record_of("tensors").at(name); }

/// The functions of tensor_cases.py.
const std::map<std::string, FunctionOfOne>& tensor_function_table() {
  static const std::map<std::string, FunctionOfOne> table = {
      {"sort", [](const Tensor& x) { return sort(x, {.axis = 1}); }},
      {"sort_descending", [](const Tensor& x) { return sort(x, {.descending = true}); }},
      {"argsort_of_ties", [](const Tensor& x) { return in_float64(argsort(x)); }},
      {"argsort_of_ties_descending",
       [](const Tensor& x) { return in_float64(argsort(x, {.descending = true})); }},
      {"argsort_axis_0", [](const Tensor& x) { return in_float64(argsort(x, {.axis = 0})); }},
      {"variance", [](const Tensor& x) { return reduce_variance(x); }},
      {"variance_axis", [](const Tensor& x) { return reduce_variance(x, {.axes = {1}}); }},
      {"std",
       [](const Tensor& x) {
         return reduce_std(x, {.axes = {0, 2}, .keep_dims = true});
       }},
      {"logsumexp", [](const Tensor& x) { return reduce_logsumexp(x, {.axes = {2}}); }},
      {"logsumexp_all", [](const Tensor& x) { return reduce_logsumexp(x); }},
      {"logsumexp_keep",
       [](const Tensor& x) { return reduce_logsumexp(x, {.axes = {1}, .keep_dims = true}); }},
      {"cumprod", [](const Tensor& x) { return cumulative_product(x, {.axis = 2}); }},
      {"cumprod_exclusive",
       [](const Tensor& x) { return cumulative_product(x, {.axis = 1, .exclusive = true}); }},
      {"cumprod_reverse",
       [](const Tensor& x) {
         return cumulative_product(x, {.axis = -1, .exclusive = true, .reverse = true});
       }},
      {"roll", [](const Tensor& x) { return roll(x, 7, 2); }},
      {"roll_back", [](const Tensor& x) { return roll(x, -1, 0); }},
      {"tril", [](const Tensor& x) { return tril(x); }},
      {"triu", [](const Tensor& x) { return triu(x); }},
      {"scatter",
       [](const Tensor& x) {
         return scatter(Tensor::from<std::int64_t>({3, 1}, {1, 0, 1}), x, {4, 5});
       }},
      {"scatter_elements",
       [](const Tensor& x) {
         return scatter(Tensor::from<std::int32_t>({4, 2}, {0, 4, 2, 0, 2, 1, 0, 4}), x, {3, 5});
       }},
      {"boolean_mask",
       [](const Tensor& x) {
         return boolean_mask(x, Tensor::from<bool>({3}, {true, false, true}));
       }},
      {"boolean_mask_of_elements",
       [](const Tensor& x) {
         return boolean_mask(x, Tensor::from<bool>({3, 5}, {true, false, true, true, false,   //
                                                            false, false, false, true, true,  //
                                                            true, true, true, true, true}));
       }},
      {"isnan", [](const Tensor& x) { return in_float64(isnan(x)); }},
      {"isinf", [](const Tensor& x) { return in_float64(isinf(x)); }},
      {"isfinite", [](const Tensor& x) { return in_float64(isfinite(x)); }},
      {"floor_mod", [](const Tensor& x) { return x % 2.0; }},
      {"floor_mod_by_negative", [](const Tensor& x) { return x % -2.0; }},
      {"floor_divide", [](const Tensor& x) { return floor_divide(x, 2.0); }},
      {"einsum_product",
       [](const Tensor& x) {
         return einsum("ij,jk->ik", {x, constant("matrix")});
       }},
      {"einsum_batch",
       [](const Tensor& x) {
         return einsum("bij,bjk->bik", {x, constant("stack")});
       }},
      {"einsum_trace", [](const Tensor& x) { return einsum("ii->", {x}); }},
      {"einsum_diagonal", [](const Tensor& x) { return einsum("...ii->...i", {x}); }},
      {"einsum_transpose", [](const Tensor& x) { return einsum("...ij->...ji", {x}); }},
      {"einsum_ellipsis",
       [](const Tensor& x) {
         return einsum("...ij, jk -> ...ik", {x, constant("matrix")});
       }},
      {"einsum_implied", [](const Tensor& x) { return einsum("ba", {x}); }},
      {"einsum_outer",
       [](const Tensor& x) {
         return einsum("i,j->ji", {x, constant("vector")});
       }},
      {"einsum_three",
       [](const Tensor& x) {
         return einsum("bij,jk,i->bk", {x, constant("matrix"), constant("vector")});
       }},
      {"einsum_summed_alone",
       [](const Tensor& x) {
         return einsum("bij,kl->b", {x, constant("matrix")});
       }},
      {"index", [](const Tensor& x) { return x[1]; }},
      {"index_from_end",
       [](const Tensor& x) {
         return x[{Range{}, -1, Range{1, 4}}];
       }},
      {"index_ranges",
       [](const Tensor& x) {
         return x[{Range{0, 1}, Range{1}, Range{-9, -1}}];
       }},
  };
  return table;
}

class TensorParity : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorParity, IsTensorFlowForwardAndBackward) {
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("tensors");
  const Variable x(record.at(prefix + "x"), {.name = "x"});
  GradientTape tape;
  const Tensor y = tensor_function_table().at(GetParam())(x.value());
  const Tensor target = reduce_sum(y * record.at(prefix + "factors"));
  expect_close(y, record.at(prefix + "y"), 1e-12, "y");
  const Tensor expected = record.at(prefix + "gradient");
  if (const Gradient gradient = tape.gradient(target, std::vector<Variable>{x})[0];
      !gradient.is_none()) {
    expect_close(gradient.to_dense(), expected, 1e-10, "gradient");
  } else {
    expect_close(Tensor::zeros(expected.shape(), DType::kFloat64), expected, 0.0, "no gradient");
  }
}

TUTTI_PARITY_CASES(TensorParity, tensor_function_table(), "tensors");

constexpr const char* kActivations[] = {
    "linear",    "relu",     "sigmoid", "tanh",       "softmax",     "log_softmax",
    "softplus",  "softsign", "elu",     "selu",       "gelu",        "silu",
    "hard_silu", "mish",     "relu6",   "leaky_relu", "exponential", "hard_sigmoid"};

/// Wraps a layer on [batch, ...].
template <class Make>
FunctionOfOne layer_made_by(Make make) {
  return [=](const Tensor& x) {
    auto layer = make();
    layer.build_for(x.shape().without_axis(0));
    return layer(x);
  };
}

FunctionOfOne relu_layer(ReluOptions options) {
  return layer_made_by([=] { return Relu(options); });
}

/// Returns functions that have a corner, under their names without "_at_corners".
std::map<std::string, FunctionOfOne> functions_with_corners() {
  std::map<std::string, FunctionOfOne> all = {
      {"relu_slope", relu_layer({.negative_slope = 0.25})},
      {"relu_max_6", relu_layer({.max_value = 6.0})},
      {"relu_max_5", relu_layer({.max_value = 5.0})},
      {"relu_slope_max_6", relu_layer({.max_value = 6.0, .negative_slope = 0.25})},
      {"relu_slope_max_5", relu_layer({.max_value = 5.0, .negative_slope = 0.25})},
      {"relu_threshold", relu_layer({.threshold = 1.0})},
      {"relu_threshold_max_6", relu_layer({.max_value = 6.0, .threshold = 1.0})},
      {"relu_threshold_slope_max_5",
       relu_layer({.max_value = 5.0, .negative_slope = 0.25, .threshold = 1.0})},
      {"leaky_relu_layer", layer_made_by([] { return LeakyRelu(0.25); })},
      {"elu_alpha", layer_made_by([] { return Elu({.alpha = 0.5}); })},
      {"prelu",
       layer_made_by([] { return PReLU({.alpha_initializer = initializers::constant(0.25)}); })},
  };
  for (const char* name : kActivations) all[name] = find_activation(name);
  return all;
}

std::map<std::string, FunctionOfOne> functions_of_short_vectors() {
  const std::map<std::string, FunctionOfOne> functions = {
      {"unit_normalization", layer_made_by([] { return UnitNormalization(); })},
      {"cosine_similarity",
       [](const Tensor& x) {
         return losses::cosine_similarity(x, Tensor::ones(x.shape(), x.dtype()));
       }},
      {"dot_normalized",
       [](const Tensor& x) {
         Dot dot({.axes = {1, 1}, .normalize = true});
         dot.build_for(std::vector<Shape>(2, x.shape().without_axis(0)));
         return dot(std::vector<Tensor>{x, Tensor::ones(x.shape(), x.dtype())});
       }},
  };
  std::map<std::string, FunctionOfOne> all;
  for (const auto& [name, function] : functions)
    for (const char* length : {"short", "shorter", "zero"})
      all[concat(name, "_of_", length, "_vector")] = function;
  return all;
}

/// The functions of function_cases.py.
const std::map<std::string, FunctionOfOne>& function_table() {
  static const std::map<std::string, FunctionOfOne> table = [] {
    std::map<std::string, FunctionOfOne> all = {
        {"regularizer_l1", regularizers::l1(0.25)},
        {"regularizer_l2", regularizers::l2(0.125)},
        {"regularizer_l1_l2", regularizers::l1_l2(0.25, 0.125)},
        {"regularizer_orthogonal", regularizers::orthogonal(0.5)},
        {"max_norm", constraints::max_norm({.max_value = 1.5})},
        {"max_norm_axis_1", constraints::max_norm({.max_value = 1.5, .axis = 1})},
        {"non_neg", constraints::non_neg()},
        {"unit_norm", constraints::unit_norm()},
        {"min_max_norm",
         constraints::min_max_norm({.min_value = 0.75, .max_value = 1.25, .rate = 0.5})},
        {"max_norm_of_filters", constraints::max_norm({.max_value = 1.5, .axis = {0, 1, 2}})},
        {"unit_norm_of_filters", constraints::unit_norm({0, 1, 2})},
        {"min_max_norm_of_filters",
         constraints::min_max_norm(
             {.min_value = 0.75, .max_value = 1.25, .rate = 0.5, .axis = {0, 1, 2}})},
        {"gelu_tanh", find_activation("gelu_tanh")},
    };
    for (const char* name : kActivations) all[name] = find_activation(name);
    for (const auto& [name, function] : functions_with_corners())
      all[name + "_at_corners"] = function;
    all.merge(functions_of_short_vectors());
    return all;
  }();
  return table;
}

/// Keras has no orthogonal regularizer in float64; TensorFlow keeps the slope of leaky_relu, and
/// Keras the root of 2 in gelu, in float32.
double tolerance_of_function(const std::string& name) {
  if (name == "regularizer_orthogonal") return 5e-6;
  if (name == "leaky_relu" || name == "leaky_relu_at_corners") return 2e-8;
  if (name == "gelu_tanh") return 1e-7;
  return name.starts_with("gelu") ? 2e-6 : 1e-9;
}

class FunctionParity : public ::testing::TestWithParam<std::string> {};

TEST_P(FunctionParity, IsKerasForwardAndBackward) {
  const Float64 policy;
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("functions");
  const Variable x(record.at(prefix + "x"), {.name = "x"});
  GradientTape tape;
  const Tensor y = function_table().at(GetParam())(x.value());
  const Tensor target = reduce_sum(y * record.at(prefix + "factors"));
  const std::vector<Gradient> gradients = tape.gradient(target, std::vector<Variable>{x});
  expect_close(y, record.at(prefix + "y"), tolerance_of_function(GetParam()), "y");
  expect_close(gradients[0].dense(), record.at(prefix + "gradient"),
               tolerance_of_function(GetParam()), "gradient");
}

TUTTI_PARITY_CASES(FunctionParity, function_table(), "functions");

}  // namespace
}  // namespace tutti::parity

// Activations (also at their corners), regularizers, constraints and vectors that are almost 0
// against Keras's, with gradients, in float64.
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

namespace tutti::parity {
namespace {

using FunctionOfOne = std::function<Tensor(const Tensor&)>;

constexpr const char* kActivations[] = {
    "linear",    "relu",     "sigmoid", "tanh",       "softmax",     "log_softmax",
    "softplus",  "softsign", "elu",     "selu",       "gelu",        "silu",
    "hard_silu", "mish",     "relu6",   "leaky_relu", "exponential", "hard_sigmoid"};

/// A layer on [batch, ...].
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

/// Functions that have a corner, under their names without "_at_corners".
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

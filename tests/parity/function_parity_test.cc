// Activations, regularizers and constraints against Keras's, with gradients, in float64.
// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/constraints.h"
#include "tutti/model/layers/regularizers.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti::parity {
namespace {

using FunctionOfOne = std::function<Tensor(const Tensor&)>;

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
    };
    for (const char* name :
         {"linear", "relu", "sigmoid", "tanh", "softmax", "log_softmax", "softplus", "softsign",
          "elu", "selu", "gelu", "gelu_tanh", "silu", "hard_silu", "mish", "relu6", "leaky_relu",
          "exponential", "hard_sigmoid"}) {
      all[name] = find_activation(name);
    }
    return all;
  }();
  return table;
}

const Record& function_record() {
  static const Record record("functions");
  return record;
}

/// Keras has no orthogonal regularizer in float64; TensorFlow keeps the slope of leaky_relu, and
/// Keras the root of 2 in gelu, in float32.
double tolerance_of_function(const std::string& name) {
  if (name == "regularizer_orthogonal") return 1e-5;
  if (name == "leaky_relu") return 1e-7;
  return name.starts_with("gelu") ? 2e-6 : 1e-9;
}

class FunctionParity : public ::testing::TestWithParam<std::string> {};

TEST_P(FunctionParity, IsKerasForwardAndBackward) {
  const std::string prefix = GetParam() + "/";
  const Record& record = function_record();
  const Variable x(record.at(prefix + "x"), {.name = "x"});
  GradientTape tape;
  const Tensor y = function_table().at(GetParam())(x.value());
  const Tensor target = reduce_sum(y * record.at(prefix + "factors"));
  const std::vector<Gradient> gradients = tape.gradient(target, std::vector<Variable>{x});
  expect_close(y, record.at(prefix + "y"), tolerance_of_function(GetParam()), "y");
  expect_close(gradients[0].dense(), record.at(prefix + "gradient"),
               tolerance_of_function(GetParam()), "gradient");
}

INSTANTIATE_TEST_SUITE_P(All, FunctionParity, ::testing::ValuesIn(names_of(function_table())),
                         [](const auto& info) { return info.param; });

TEST(FunctionParityTable, HasTheCasesOfTheRecord) {
  EXPECT_EQ(names_of(function_table()), function_record().cases());
}

}  // namespace
}  // namespace tutti::parity

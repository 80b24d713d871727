// Losses against Keras's: values per example and gradients, in float64.
// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/losses.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti::parity {
namespace {

using LossFunction = std::function<Tensor(const Tensor& labels, const Tensor& predictions)>;

template <class Function, class Options>
LossFunction with(Function function, Options options) {
  return [=](const Tensor& labels, const Tensor& predictions) {
    return function(labels, predictions, options);
  };
}

/// The losses of loss_cases.py.
const std::map<std::string, LossFunction>& loss_table() {
  using namespace losses;
  const CrossentropyOptions logits{};
  const CrossentropyOptions probabilities{.from_logits = false};
  static const std::map<std::string, LossFunction> table = {
      {"sparse_categorical_crossentropy", with(sparse_categorical_crossentropy, logits)},
      {"sparse_categorical_crossentropy_probabilities",
       with(sparse_categorical_crossentropy, probabilities)},
      {"categorical_crossentropy", with(categorical_crossentropy, logits)},
      {"categorical_crossentropy_probabilities", with(categorical_crossentropy, probabilities)},
      {"categorical_crossentropy_smoothed",
       with(categorical_crossentropy, CrossentropyOptions{.label_smoothing = 0.1})},
      {"binary_crossentropy", with(binary_crossentropy, logits)},
      {"binary_crossentropy_probabilities", with(binary_crossentropy, probabilities)},
      {"binary_crossentropy_smoothed",
       with(binary_crossentropy, CrossentropyOptions{.label_smoothing = 0.2})},
      {"mean_squared_error", mean_squared_error},
      {"mean_absolute_error", mean_absolute_error},
      {"huber", with(huber, HuberOptions{})},
      {"huber_delta", with(huber, HuberOptions{.delta = 0.5})},
      {"log_cosh", log_cosh},
      {"hinge", hinge},
      {"hinge_of_zeros_and_ones", hinge},
      {"squared_hinge", squared_hinge},
      {"kl_divergence", kl_divergence},
      {"poisson", poisson},
  };
  return table;
}

const Record& loss_record() {
  static const Record record("losses");
  return record;
}

/// Keras's log_cosh subtracts a logarithm of 2 in float32.
double tolerance_of_loss(const std::string& name) { return name == "log_cosh" ? 1e-7 : 1e-9; }

class LossParity : public ::testing::TestWithParam<std::string> {};

TEST_P(LossParity, IsKerasPerExampleAndBackward) {
  const std::string prefix = GetParam() + "/";
  const Record& record = loss_record();
  const Variable predictions(record.at(prefix + "predictions"), {.name = "predictions"});
  GradientTape tape;
  const Tensor values =
      loss_table().at(GetParam())(record.at(prefix + "labels"), predictions.value());
  const Tensor target = reduce_sum(values * record.at(prefix + "factors"));
  const std::vector<Gradient> gradients = tape.gradient(target, std::vector<Variable>{predictions});
  expect_close(values, record.at(prefix + "values"), tolerance_of_loss(GetParam()), "values");
  expect_close(gradients[0].dense(), record.at(prefix + "gradient"), tolerance_of_loss(GetParam()),
               "gradient");
}

INSTANTIATE_TEST_SUITE_P(All, LossParity, ::testing::ValuesIn(names_of(loss_table())),
                         [](const auto& info) { return info.param; });

TEST(LossParityTable, HasTheCasesOfTheRecord) {
  EXPECT_EQ(names_of(loss_table()), loss_record().cases());
}

}  // namespace
}  // namespace tutti::parity

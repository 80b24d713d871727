// Losses against Keras's: values per example, gradients, and the classes with weights.
// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/losses.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti::parity {
namespace {

struct LossCase {
  Loss::Function function;
  /// The class with the same options.
  std::function<Loss(LossReduction)> make;
};

/// A function without options, and its class.
template <class LossClass>
LossCase plain(Tensor (*function)(const Operand&, const Operand&)) {
  return {function, [](LossReduction how) { return LossClass({.reduction = how}); }};
}

template <class LossClass>
LossCase crossentropy(Tensor (*function)(const Operand&, const Operand&, CrossentropyOptions),
                      CrossentropyOptions options) {
  return {[=](const Tensor& labels, const Tensor& predictions) {
            return function(labels, predictions, options);
          },
          [=](LossReduction how) {
            return LossClass({options.from_logits, options.label_smoothing, how});
          }};
}

template <class LossClass>
LossCase focal(Tensor (*function)(const Operand&, const Operand&, FocalOptions),
               FocalOptions options) {
  return {[=](const Tensor& labels, const Tensor& predictions) {
            return function(labels, predictions, options);
          },
          [=](LossReduction how) {
            return LossClass({options, how});
          }};
}

LossCase huber_of_delta(double delta) {
  return {[=](const Tensor& labels, const Tensor& predictions) {
            return losses::huber(labels, predictions, {delta});
          },
          [=](LossReduction how) {
            return Huber({delta, how});
          }};
}

/// The losses of loss_cases.py.
const std::map<std::string, LossCase>& loss_table() {
  using Sparse = SparseCategoricalCrossentropy;
  using Categorical = CategoricalCrossentropy;
  using Binary = BinaryCrossentropy;
  using BinaryFocal = BinaryFocalCrossentropy;
  using CategoricalFocal = CategoricalFocalCrossentropy;
  const auto sparse = &losses::sparse_categorical_crossentropy;
  const auto categorical = &losses::categorical_crossentropy;
  const auto binary = &losses::binary_crossentropy;
  const auto binary_focal = &losses::binary_focal_crossentropy;
  const auto categorical_focal = &losses::categorical_focal_crossentropy;
  const CrossentropyOptions logits{}, probabilities{.from_logits = false};
  static const std::map<std::string, LossCase> table = {
      {"sparse_categorical_crossentropy", crossentropy<Sparse>(sparse, logits)},
      {"sparse_categorical_crossentropy_probabilities",
       crossentropy<Sparse>(sparse, probabilities)},
      {"categorical_crossentropy", crossentropy<Categorical>(categorical, logits)},
      {"categorical_crossentropy_probabilities",
       crossentropy<Categorical>(categorical, probabilities)},
      {"categorical_crossentropy_smoothed",
       crossentropy<Categorical>(categorical, {.label_smoothing = 0.1})},
      {"binary_crossentropy", crossentropy<Binary>(binary, logits)},
      {"binary_crossentropy_probabilities", crossentropy<Binary>(binary, probabilities)},
      {"binary_crossentropy_smoothed", crossentropy<Binary>(binary, {.label_smoothing = 0.2})},
      {"mean_squared_error", plain<MeanSquaredError>(&losses::mean_squared_error)},
      {"mean_absolute_error", plain<MeanAbsoluteError>(&losses::mean_absolute_error)},
      {"huber", huber_of_delta(1.0)},
      {"huber_delta", huber_of_delta(0.5)},
      {"log_cosh", plain<LogCosh>(&losses::log_cosh)},
      {"hinge", plain<Hinge>(&losses::hinge)},
      {"hinge_of_zeros_and_ones", plain<Hinge>(&losses::hinge)},
      {"squared_hinge", plain<SquaredHinge>(&losses::squared_hinge)},
      {"kl_divergence", plain<KLDivergence>(&losses::kl_divergence)},
      {"poisson", plain<Poisson>(&losses::poisson)},
      {"binary_focal_crossentropy", focal<BinaryFocal>(binary_focal, {})},
      {"binary_focal_crossentropy_probabilities",
       focal<BinaryFocal>(binary_focal, {.from_logits = false})},
      {"binary_focal_crossentropy_options",
       focal<BinaryFocal>(binary_focal, {.label_smoothing = 0.125,
                                         .gamma = 1.5,
                                         .alpha = 0.375,
                                         .apply_class_balancing = true})},
      {"categorical_focal_crossentropy", focal<CategoricalFocal>(categorical_focal, {})},
      {"categorical_focal_crossentropy_probabilities",
       focal<CategoricalFocal>(categorical_focal, {.from_logits = false})},
      {"categorical_focal_crossentropy_options",
       focal<CategoricalFocal>(categorical_focal,
                               {.label_smoothing = 0.125, .gamma = 3.0, .alpha = 0.5})},
      {"mean_absolute_percentage_error",
       plain<MeanAbsolutePercentageError>(&losses::mean_absolute_percentage_error)},
      {"mean_squared_logarithmic_error",
       plain<MeanSquaredLogarithmicError>(&losses::mean_squared_logarithmic_error)},
      {"cosine_similarity", plain<CosineSimilarity>(&losses::cosine_similarity)},
      {"categorical_hinge", plain<CategoricalHinge>(&losses::categorical_hinge)},
      {"binary_focal_crossentropy_wide", focal<BinaryFocal>(binary_focal, {})},
      {"categorical_focal_crossentropy_wide", focal<CategoricalFocal>(categorical_focal, {})},
  };
  return table;
}

/// Keras's log_cosh subtracts a logarithm of 2 in float32.
double tolerance_of_loss(const std::string& name) { return name == "log_cosh" ? 2e-8 : 1e-9; }

class LossParity : public ::testing::TestWithParam<std::string> {
 protected:
  const Tensor& recorded(const std::string& what) const {
    return record_of("losses").at(GetParam() + "/" + what);
  }

  /// Values and gradients, computed in the type of the predictions.
  void compare_with_record(DType dtype, double tolerance) const {
    const Variable predictions(cast(recorded("predictions"), dtype), {.name = "predictions"});
    GradientTape tape;
    const Tensor values =
        loss_table().at(GetParam()).function(recorded("labels"), predictions.value());
    const Tensor target = reduce_sum(values * cast(recorded("factors"), dtype));
    const auto gradients = tape.gradient(target, std::vector<Variable>{predictions});
    EXPECT_EQ(values.dtype(), dtype);
    expect_close(values, recorded("values"), tolerance, "values");
    expect_close(gradients[0].dense(), recorded("gradient"), tolerance, "gradient");
  }
};

TEST_P(LossParity, IsKerasPerExampleAndBackward) {
  compare_with_record(DType::kFloat64, tolerance_of_loss(GetParam()));
}

TEST_P(LossParity, InFloat32StaysWithin1e4) { compare_with_record(DType::kFloat32, 1e-4); }

TEST_P(LossParity, TheClassReducesWeightedLossesAsKeras) {
  const std::vector<double> expected = recorded("reduced").to_doubles();
  const LossReduction reductions[] = {LossReduction::kSumOverBatchSize, LossReduction::kSum};
  for (std::size_t i = 0; i < 2; ++i) {
    const Loss loss = loss_table().at(GetParam()).make(reductions[i]);
    const Tensor value = loss(recorded("labels"), recorded("predictions"), recorded("factors"));
    EXPECT_NEAR(value.item_double(), expected[i],
                tolerance_of_loss(GetParam()) * std::abs(expected[i]))
        << reductions[i];
  }
}

TUTTI_PARITY_CASES(LossParity, loss_table(), "losses");

}  // namespace
}  // namespace tutti::parity

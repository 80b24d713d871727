// Masks and weights of steps in losses and metrics.
// SPDX-License-Identifier: Apache-2.0
#include "model/layers/labels_and_weights.h"

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/metric_spec.h"

namespace tutti {
namespace {

using layer_tests::error_of;
using layer_tests::expect_values;
using ::testing::HasSubstr;

/// Two sequences of two steps with one number each; the labels are 0, so that losses are squares.
Tensor numbers_of_steps() { return Tensor::from<float>({2, 2, 1}, {1, 2, 3, 4}); }
Tensor labels_of_steps() { return Tensor::zeros({2, 2, 1}); }

TEST(StepWeightsTest, LossesMultiplyEachStepAndTakeTheMeanOfThoseThatCount) {
  const Loss loss("mse");
  const Tensor x = numbers_of_steps(), y = labels_of_steps();
  const Tensor weights = Tensor::from<float>({2, 2}, {1, 0.5, 2, 0});
  expect_values(loss.per_example(y, x, weights), {(1 + 0.5 * 4) / 2, 2.0 * 9 / 2});
  expect_values(loss.per_example(y, x, Tensor::from<float>({2}, {3, 2})), {7.5, 25});
  expect_values(loss(y, x, weights), {(1.5 + 9) / 2});
  const MaskScope masks;
  MaskScope::set_mask(x, Tensor::from<bool>({2, 2}, {false, true, true, true}));
  expect_values(loss.per_example(y, x, weights), {0.5 * 4, 9});
  expect_values(loss.per_example(y, x, Tensor::from<float>({2, 1}, {3, 2})), {12, 25});
}

TEST(StepWeightsTest, WeightsOfStepsHaveGradients) {
  const Variable x(numbers_of_steps());
  GradientTape tape;
  const Tensor loss = reduce_sum(Loss("mse").per_example(
      labels_of_steps(), x.value(), Tensor::from<float>({2, 2}, {1, 0.5, 2, 0})));
  expect_values(tape.gradient(loss, x).dense(), {1, 1, 6, 0});  // weight * x, for w x^2 / 2
}

TEST(StepWeightsTest, MetricsOfHalfPredictionsReadTheMask) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Tensor x = cast(numbers_of_steps(), dtype);
    const MaskScope masks;
    MaskScope::set_mask(x, Tensor::from<bool>({2, 2}, {true, true, true, false}));
    MeanAbsoluteErrorMetric metric;
    metric.update_state(labels_of_steps(), x);
    EXPECT_EQ(metric.result().item_double(), 2.0) << dtype;
  }
}

TEST(StepWeightsTest, WeightsThatDoNotFitAreNamed) {
  const Tensor scores = Tensor::zeros({2, 3});
  EXPECT_THAT(error_of([&] {
                Loss("mse").per_example(scores, scores, Tensor::ones({2, 3}));
              }),
              HasSubstr("mse: weights [2, 3] of steps do not fit the predictions; expected "
                        "predictions [batch, steps, ...], got [2, 3]; try weights [batch]"));
  EXPECT_THAT(
      error_of([&] {
        Loss("mse").per_example(labels_of_steps(), numbers_of_steps(), Tensor::ones({2, 3}));
      }),
      HasSubstr("mse: the weights do not fit the values; expected shape [2, 2]"));
  EXPECT_THAT(
      error_of([&] {
        Loss("mse").per_example(Tensor::zeros({2}), numbers_of_steps(), Tensor::ones({2, 2}));
      }),
      HasSubstr("mse: a mask or weights tell the steps [2, 2] of the predictions apart; "
                "expected labels [batch, steps, ...], got [2]"));
}

}  // namespace
}  // namespace tutti

// Fit, evaluate and predict under mixed policies.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/model/correctness_run.h"

namespace tutti {
namespace mixed_fit_test {

using model_tests::alternating;
using model_tests::correctness_model;
using model_tests::correctness_run;
using model_tests::expect_near;
using model_tests::kSilent;
using model_tests::label_of;
using model_tests::Outcome;
using model_tests::several_strategies;

struct PolicyScope {
  explicit PolicyScope(const char* name) { set_dtype_policy(name); }
  ~PolicyScope() { set_dtype_policy("float32"); }
};

TEST(MixedFitTest, StrategyChangesOnlyRoundingInHalfPrecision) {
  const testing::HangWatchdog watchdog("fit under strategies", std::chrono::seconds(60));
  const Outcome float32 = correctness_run(nullptr, 1280, false, true);
  for (const char* name : {"mixed_bfloat16", "mixed_float16"}) {
    const PolicyScope policy(name);
    const Outcome expected = correctness_run(nullptr, 1280, false, true);
    EXPECT_LT(expected.loss[1], expected.loss[0]);
    expect_near(expected.loss, float32.loss, 2e-2);
    EXPECT_NE(expected.loss, float32.loss);  // it does compute in 16 bits
    for (const auto& strategy : several_strategies()) {
      SCOPED_TRACE(concat(name, " ", label_of(*strategy)));
      const Outcome outcome = correctness_run(strategy.get(), 1280, false, true);
      expect_near(outcome.loss, expected.loss, 1e-2);
      expect_near(outcome.mse, expected.mse, 1e-2);
      expect_near(outcome.validation, expected.validation, 1e-2);
      expect_near(outcome.weights, expected.weights, 1e-2);
      expect_near(outcome.evaluation, expected.evaluation, 1e-2);
      expect_near(outcome.predictions, expected.predictions, 1e-2);
      expect_near(outcome.again, expected.again, 1e-2);
    }
  }
}

TEST(MixedFitTest, MixedFloat16FitsEvaluatesAndPredicts) {
  const PolicyScope policy("mixed_float16");
  for (const auto& strategy : several_strategies()) {
    for (const std::int64_t batch_size : {2, 8}) {
      SCOPED_TRACE(concat(label_of(*strategy), " batch ", batch_size));
      Sequential model = correctness_model(strategy.get());
      EXPECT_GT(model.optimizer().loss_scale(), 1.0);  // without asking for it
      const Tensor x = alternating(64);
      const History history =
          model.fit(x, x, {.epochs = 2, .batch_size = batch_size, .verbose = kSilent});
      EXPECT_LT(history["loss"][1], history["loss"][0]);
      EXPECT_TRUE(std::isfinite(model.evaluate(x, x, {.batch_size = batch_size})["loss"]));
      const Tensor predictions = model.predict(x, {.batch_size = batch_size});
      EXPECT_EQ(predictions.shape(), (Shape{64, 1}));
      EXPECT_EQ(predictions.dtype(), DType::kFloat16);
      EXPECT_EQ(model.optimizer().iterations().value().item_int(), 2 * 64 / batch_size);
    }
  }
}

TEST(MixedFitTest, TheLossScaleOfMixedFloat16CanBeChosen) {
  const PolicyScope policy("mixed_float16");
  Sequential model(Input{{1}}, Dense(1));
  model.compile(
      {.optimizer = with_dynamic_loss_scale("sgd", {.initial_scale = 64.0}), .loss = "mse"});
  EXPECT_EQ(model.optimizer().loss_scale(), 64.0);
  model.compile({.optimizer = "sgd", .loss = "mse", .auto_scale_loss = false});
  EXPECT_EQ(model.optimizer().loss_scale(), 1.0);
}

}  // namespace mixed_fit_test
}  // namespace tutti

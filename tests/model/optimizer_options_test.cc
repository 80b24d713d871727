// Optimizers and their options through compile and fit.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/model/model_helpers.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti {
namespace {

using model_tests::alternating;
using model_tests::kSilent;
using model_tests::weights_of;

/// One weight and no bias, trained on 8 batches of 8 rows.
Sequential fitted_line(const OptimizerSpec& optimizer, int epochs = 1) {
  set_random_seed(7);
  Sequential model(Input{{1}}, Dense(1, {.use_bias = false}));
  model.compile({.optimizer = optimizer, .loss = "mse"});
  const Tensor x = alternating(64);
  model.fit(x, x, {.epochs = epochs, .batch_size = 8, .verbose = kSilent, .shuffle = false});
  return model;
}

TEST(OptimizerOptionsTest, EveryNameCompilesAndLearns) {
  const std::vector<double> before = weights_of(fitted_line("sgd", 0));
  for (const std::string& name : optimizer_names()) {
    const std::vector<double> after = weights_of(fitted_line(name, 2));
    EXPECT_NE(after, before) << name;
    EXPECT_TRUE(std::isfinite(after.front())) << name;
  }
}

TEST(OptimizerOptionsTest, FitEndsWithTheMovingAverage) {
  Sequential model =
      fitted_line(SgdOptions{.learning_rate = 0.1, .ema = EmaOptions{.momentum = 0.9}});
  const std::vector<Variable> state = model.optimizer().state_variables();
  ASSERT_TRUE(state.back().name().ends_with("/average"));
  EXPECT_EQ(weights_of(model), state.back().value().to_doubles());
  EXPECT_NE(weights_of(model), weights_of(fitted_line(SgdOptions{.learning_rate = 0.1})));
}

TEST(OptimizerOptionsTest, AccumulationInFitCountsUpdates) {
  Sequential model = fitted_line(SgdOptions{.gradient_accumulation_steps = 4});
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 2);
}

TEST(OptimizerOptionsTest, TheSumOverReplicasIsClippedAsOneReplicaWouldClipIt) {
  for (const int replicas : {1, 2}) {
    auto strategy = model_tests::mirrored("cpu:0", replicas);
    auto scope = strategy->scope();
    const Variable weight(Tensor(0.0f));
    Sgd optimizer(std::vector{weight}, {.learning_rate = 1.0, .clipping = {.clipvalue = 1.0}});
    const std::vector<double> gradients =
        replicas == 1 ? std::vector<double>{2.0} : std::vector<double>{3.0, -1.0};
    strategy->run([&] {
      const auto replica = static_cast<std::size_t>(ReplicaContext::current().replica_id());
      GradientTape tape;
      optimizer.minimize(tape, weight.value() * gradients[replica]);
    });
    EXPECT_EQ(weight.value().item_double(), -1.0) << replicas << " replicas; Keras 3 has 0 with 2";
  }
}

TEST(OptimizerOptionsTest, LossScalingChangesNoBits) {
  const OptimizerSpec plain = SgdOptions{.learning_rate = 0.1};
  EXPECT_EQ(weights_of(fitted_line(with_dynamic_loss_scale(plain, {.growth_steps = 3}))),
            weights_of(fitted_line(plain)));
}

}  // namespace
}  // namespace tutti

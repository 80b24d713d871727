// Dropout: rate, and which masks are equal.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/layers/layer_helpers.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/model/layers/dropout.h"

namespace tutti {
namespace {

using layer_tests::error_of;

std::vector<double> dropped(const Dropout& layer, const RandomContext& context, const Tensor& x) {
  RandomContextScope scope(context);
  return layer(x, {.training = true}).to_doubles();
}

TEST(DropoutTest, DropsAtItsRateAndKeepsTheMean) {
  Dropout layer(0.25);
  layer.build_for({1000});
  const Tensor x = Tensor::ones({100, 1000});
  const std::vector<double> y = dropped(layer, {.seed = 3, .step = 1}, x);
  double zeros = 0.0;
  for (const double value : y) {
    if (value == 0.0) {
      ++zeros;
    } else {
      ASSERT_FLOAT_EQ(value, 1.0 / 0.75);
    }
  }
  // Five standard deviations of a binomial.
  EXPECT_NEAR(zeros, 25'000, 5 * std::sqrt(100'000 * 0.25 * 0.75));
}

TEST(DropoutTest, OutsideTrainingAndAtRateZeroIsTheIdentity) {
  Dropout layer(0.5), none(0.0);
  layer.build_for({4});
  none.build_for({4});
  const Tensor x = layer_tests::counting({2, 4});
  EXPECT_EQ(layer(x).to_doubles(), x.to_doubles());
  EXPECT_EQ(none(x, {.training = true}).to_doubles(), x.to_doubles());
  EXPECT_THAT(error_of([] { Dropout bad(1.0); }), ::testing::HasSubstr("[0, 1), got 1"));
}

TEST(DropoutTest, MaskDependsOnSeedStepReplicaLayerAndCallAlone) {
  set_random_seed(0);
  Dropout layer(0.5), other(0.5);
  layer.build_for({64});
  other.build_for({64});
  const Tensor x = Tensor::ones({4, 64});
  const RandomContext context{.seed = 1, .step = 2, .replica = 3};
  const std::vector<double> mask = dropped(layer, context, x);
  EXPECT_EQ(dropped(layer, context, x), mask) << "a replayed step draws the same";
  EXPECT_NE(dropped(layer, {.seed = 9, .step = 2, .replica = 3}, x), mask);
  EXPECT_NE(dropped(layer, {.seed = 1, .step = 9, .replica = 3}, x), mask);
  EXPECT_NE(dropped(layer, {.seed = 1, .step = 2, .replica = 9}, x), mask);
  EXPECT_NE(dropped(other, context, x), mask);
  std::vector<double> elsewhere;
  Executor::system().start("other", [&] { elsewhere = dropped(layer, context, x); })->join();
  EXPECT_EQ(elsewhere, mask) << "the thread does not matter";
  RandomContextScope scope(context);
  EXPECT_EQ(layer(x, {.training = true}).to_doubles(), mask);
  EXPECT_NE(layer(x, {.training = true}).to_doubles(), mask) << "the second call of a step";
}

TEST(DropoutTest, GradientHasTheMaskOfTheForwardPass) {
  Dropout layer(0.5);
  layer.build_for({32});
  const Tensor x = Tensor::ones({2, 32});
  GradientTape tape;
  tape.watch(x);
  const Tensor y = layer(x, {.training = true});
  EXPECT_EQ(tape.gradient(reduce_sum(y), x).to_dense().to_doubles(), y.to_doubles());
}

}  // namespace
}  // namespace tutti

// fit with layers that are computed again, under strategies that cut variables.
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/model_helpers.h"
#include "tutti/core/random.h"

namespace tutti::model_tests {
namespace remat_fit_test {

std::string weights_after_fit(Strategy& strategy, bool is_remat) {
  set_random_seed(3);
  const auto scope = strategy.scope();
  Sequential model({.remat = is_remat}, Input{{4}}, Dense(24, "relu"),
                   BatchNormalization({.synchronized = true}), Dropout(0.3), Dense(24, "tanh"));
  model.add(Dense(3, "softmax"));
  for (const auto& layer : model.layers()) EXPECT_EQ(layer->is_remat(), is_remat);
  model.compile(
      {.optimizer = AdamOptions{.learning_rate = 0.01}, .loss = "sparse_categorical_crossentropy"});
  model.fit(three_classes(32).batch(8), {.epochs = 2, .verbose = kSilent});
  return hash_variables(model.variables());
}

TEST(RematFit, TheBitsAreThoseOfMirroredThatKeepsAll) {
  const std::string expected = weights_after_fit(*mirrored("cpu:0-1"), false);
  EXPECT_EQ(weights_after_fit(*mirrored("cpu:0-1"), true), expected);
  EXPECT_EQ(weights_after_fit(*fully_sharded("cpu:0-1"), false), expected);
  EXPECT_EQ(weights_after_fit(*fully_sharded("cpu:0-1"), true), expected);
  EXPECT_EQ(weights_after_fit(*fully_sharded("cpu:0-1", 2), true), expected);
}

}  // namespace remat_fit_test
}  // namespace tutti::model_tests

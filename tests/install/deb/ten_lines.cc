// Ten-line program that learns y = 3x + 2 on two replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tutti.h"

int main() {
  tutti::MirroredStrategy strategy("cpu:0-1");
  const tutti::Tensor x = tutti::random_uniform({1024, 1}, {.seed = 1}, -1.0, 1.0);
  const auto scope = strategy.scope();
  tutti::Sequential model(tutti::Input{{1}}, tutti::Dense(1));
  model.compile({.optimizer = tutti::SgdOptions{.learning_rate = 0.1}, .loss = "mse"});
  const auto data = tutti::Dataset::from_tensor_slices({x, 3.0f * x + 2.0f}).batch(64);
  return model.fit(data, {.epochs = 10}).at("loss").back() < 1e-2 ? 0 : 1;
}

// Small training run whose results must be equal under all strategies. It has sparse and dense
// gradients, random numbers, ON_READ variables and reductions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <string>
#include <vector>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti::strategy_tests {

inline constexpr std::int64_t kGlobalRows = 12;

struct Trained {
  std::string weights;
  std::string slots;
  std::string losses;
  bool operator==(const Trained&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Trained& trained) {
  return out << trained.weights << ' ' << trained.slots << ' ' << trained.losses;
}

/// Trains a two-layer network, which has an embedding, dropout and a moving mean, for `steps`
/// steps.
inline Trained train(Strategy& strategy, int steps = 4) {
  set_random_seed(7);
  Json state = strategy.save_state();
  state.set("step", 0).set("random_step", 0);
  if (state.find("seed")) state.set("seed", "7");
  strategy.restore_state(state);

  const auto scope = strategy.scope();
  const auto weight = [](const char* name, const Shape& shape, std::uint64_t number) {
    const Tensor initial = random_normal(shape, RandomKey{7, kInitializerPurpose, number, 0, 0});
    return Variable(initial, {.name = name});
  };
  Variable table = weight("table", {10, 6}, 1);
  Variable w1 = weight("w1", {6, 33}, 2);
  Variable b1 = weight("b1", {33}, 3);
  Variable w2 = weight("w2", {33, 1}, 4);
  Variable mean = on_read(Tensor::zeros({33}), VariableAggregation::kMean, "mean");
  const std::vector<Variable> weights = {table, w1, b1, w2};
  Adam optimizer(weights, {.learning_rate = 0.05});

  const int replicas = strategy.num_replicas_in_sync();
  std::string losses;
  for (int step = 0; step < steps; ++step) {
    const auto results = strategy.run([&, step] {
      ReplicaContext& context = ReplicaContext::current();
      const Device device = context.device();
      const int r = context.replica_id();
      const std::int64_t rows = kGlobalRows / replicas;
      std::vector<std::int64_t> words;
      for (std::int64_t i = 0; i < rows; ++i) words.push_back((step + r * rows + i) * 7 % 10);
      GradientTape tape;
      const Tensor x = gather(table.value(), Tensor::from<std::int64_t>({rows}, words, device));
      const Tensor hidden = relu(matmul(x, w1.value()) + b1.value());
      const RandomContext& random = current_random_context();
      const Tensor dropped = dropout(
          hidden, 0.25, RandomKey{random.seed, kDropoutPurpose, random.step, random.replica, 0});
      mean.assign(mean.value() * 0.9f + reduce_mean(hidden, {{0}}) * 0.1f);
      const Tensor loss =
          reduce_sum(square(matmul(dropped, w2.value()) - 1.0f)) / static_cast<float>(kGlobalRows);
      optimizer.minimize(tape, loss);
      return loss;
    });
    const float loss = strategy.reduce(ReduceOp::kSum, results).item();
    losses += concat(std::bit_cast<std::uint32_t>(loss), ' ');
  }
  std::vector<Variable> all = weights;
  all.push_back(mean);
  return {hash_variables(all), hash_variables(optimizer.state_variables()), losses};
}

}  // namespace tutti::strategy_tests

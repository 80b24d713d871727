// Tests the sharded dense layers of the examples: a step updates weights as on one device, and
// Krizhevsky's schemes exchange as many bytes as in the paper.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/sharded_dense.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace tutti::sharded_dense_test {

using examples::DenseScheme;

constexpr std::int64_t kRows = 64, kFeatures = 2 * 4 * 4, kHidden = 256, kClasses = 4;
constexpr double kRate = 0.5;
constexpr DenseScheme kSchemes[] = {DenseScheme::kAllAtOnce, DenseScheme::kOneByOne,
                                    DenseScheme::kSharesOfAll};

Tensor images() { return random_normal({kRows, 6, 6, 1}, {.seed = 31, .purpose = kUserPurpose}); }

Tensor classes() {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < kRows; ++i) values.push_back((i * i + i / 3) % kClasses);
  return Tensor::from<std::int64_t>({kRows}, values);
}

struct Network {
  Sequential dense =
      Sequential(Input{{kFeatures}}, Dense(kHidden, {.activation = "relu", .name = "hidden"}),
                 Dense(kClasses, {.name = "output"}));
  Sequential below = Sequential(Input{{6, 6, 1}}, Conv2D(2, 3, {.activation = "tanh"}), Flatten());

  std::vector<Variable> variables() const {
    std::vector<Variable> all = dense.trainable_variables();
    for (const Variable& each : below.trainable_variables()) all.push_back(each);
    return all;
  }
};

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<double>> weights;
  // bytes that the dense layers exchange, in total and by the busiest worker
  std::uint64_t bytes = 0, busiest_bytes = 0;
};

/// Trains for two steps on a mesh.
Trained trained(int workers, DenseScheme scheme, int rounds) {
  MeshStrategy strategy(
      {.mesh = {{"worker", workers}}, .layout = examples::sharded_dense_layouts()});
  const auto scope = strategy.scope();
  set_random_seed(9);
  const Network network;
  Sgd dense_optimizer(network.dense.trainable_variables(), kRate);
  Sgd optimizer(network.below.trainable_variables(), kRate);
  Trained result;
  const Dataset data = Dataset::from_tensor_slices(images(), classes()).batch(kRows).repeat(2);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    const PerReplica<Tensor> loss = strategy.run(
        [&](const Batch& rows) {
          return examples::hybrid_step(rows, network.below, optimizer, network.dense,
                                       dense_optimizer, scheme, rounds);
        },
        batch);
    result.losses.push_back(loss[0].item_double());
  }
  for (const auto& [kind, traffic] : strategy.traffic()) {
    if (kind == "all_reduce") continue;
    result.bytes += traffic.bytes / 2;
    result.busiest_bytes += traffic.busiest_bytes / 2;
  }
  for (const Variable& each : network.variables()) {
    result.weights.push_back(each.value().to_doubles());
  }
  return result;
}

/// Trains for two steps on one device. Each worker's rows are divided among the rounds. After each
/// round, updates the dense layers with the mean over the round's rows; after all rounds, updates
/// the convolutions with the mean over all rows.
Trained trained_on_one_device(int workers, int rounds) {
  set_random_seed(9);
  const Network network;
  std::vector<Variable> variables = network.variables();
  const std::int64_t own_rows = kRows / workers, share = own_rows / rounds;
  Trained result;
  for (int step = 0; step < 2; ++step) {
    std::vector<Tensor> sums;
    double loss_sum = 0.0;
    for (std::int64_t round = 0; round < rounds; ++round) {
      std::vector<std::int64_t> chosen;
      for (std::int64_t row = 0; row < kRows; ++row) {
        if (row % own_rows / share == round) chosen.push_back(row);
      }
      const Tensor rows = Tensor::from<std::int64_t>({std::ssize(chosen)}, chosen);
      GradientTape tape;
      const Tensor logits = network.dense(network.below(gather(images(), rows)));
      const Tensor loss =
          reduce_sum(losses::sparse_categorical_crossentropy(gather(classes(), rows), logits));
      const std::vector<Gradient> gradients = tape.gradient(loss, variables);
      loss_sum += loss.item_double();
      for (std::size_t i = 0; i < variables.size(); ++i) {
        const Tensor gradient = gradients[i].dense();
        if (i < 4) variables[i].assign_sub(gradient * (kRate / static_cast<double>(chosen.size())));
        if (i >= 4 && round == 0) sums.push_back(gradient);
        if (i >= 4 && round > 0) sums[i - 4] = sums[i - 4] + gradient;
      }
    }
    for (std::size_t i = 4; i < variables.size(); ++i) {
      variables[i].assign_sub(sums[i - 4] * (kRate / static_cast<double>(kRows)));
    }
    result.losses.push_back(loss_sum / static_cast<double>(kRows));
  }
  for (const Variable& each : variables) result.weights.push_back(each.value().to_doubles());
  return result;
}

void expect_same_training(const Trained& actual, const Trained& expected) {
  for (std::size_t step = 0; step < 2; ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], 2e-6);
  }
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (std::size_t i = 0; i < expected.weights.size(); ++i) {
    ASSERT_EQ(actual.weights[i].size(), expected.weights[i].size());
    for (std::size_t k = 0; k < expected.weights[i].size(); ++k) {
      ASSERT_NEAR(actual.weights[i][k], expected.weights[i][k], 3e-6) << "weight " << i;
    }
  }
}

// In the forward pass, each example's features are sent to the K - 1 other workers, each of which
// returns a result; the backward pass does the same with gradients. In scheme (b), one worker sends
// or receives all data.
TEST(ShardedDense, SchemesMatchOneDeviceAndSendAsManyBytesAsInPaper) {
  for (const int workers : {1, 2, 4, 8}) {
    const Trained expected = trained_on_one_device(workers, 1);
    for (const DenseScheme scheme : kSchemes) {
      SCOPED_TRACE(concat("scheme ", static_cast<int>(scheme), ", ", workers, " workers"));
      const Trained actual = trained(workers, scheme, 1);
      expect_same_training(actual, expected);
      const auto count = static_cast<std::uint64_t>(workers);
      const std::uint64_t bytes = 2 * 4 * (count - 1) * kRows * (kFeatures + kClasses);
      EXPECT_EQ(actual.bytes, bytes);
      EXPECT_EQ(actual.busiest_bytes, scheme == DenseScheme::kOneByOne ? bytes : bytes / count);
    }
  }
}

// In the paper's notation, the batches are (64, 32) and (64, 16).
TEST(ShardedDense, DenseLayersMayUseSmallerBatch) {
  const std::uint64_t bytes = 2 * 4 * 3 * kRows * (kFeatures + kClasses);
  for (const int rounds : {2, 4}) {
    SCOPED_TRACE(rounds);
    const Trained actual = trained(4, DenseScheme::kAllAtOnce, rounds);
    expect_same_training(actual, trained_on_one_device(4, rounds));
    EXPECT_EQ(actual.bytes, bytes);
  }
}

}  // namespace tutti::sharded_dense_test

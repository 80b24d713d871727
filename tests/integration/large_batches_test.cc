// What large batches cost in accuracy, and what scaled rates with warm-up give back: accuracy
// beside speed.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <functional>

#include "gtest/gtest.h"
#include "tutti/model/callbacks.h"
#include "tutti/model_parallel.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {
namespace large_batches_test {
constexpr std::int64_t kExamples = 1920;
constexpr std::int64_t kSmallBatch = 16;
constexpr double kRate = 0.1;  // right for the small batch
constexpr int kPasses = 3;

/// features [rows, 8], labels [rows]: the largest of the first four.
Dataset four_classes(std::int64_t rows, std::uint64_t seed) {
  const Tensor x = random_uniform({rows, 8}, {.seed = seed}, -1.0, 1.0);
  return Dataset::from_tensor_slices({x, argmax(slice(x, {0, 0}, {-1, 4}), 1)});
}

/// The accuracy on examples of its own after as many passes over the same ones.
double accuracy_of(std::int64_t global_batch, const LearningRate& rate) {
  set_random_seed(3);
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const auto scope = strategy.scope();
  Sequential model(Input{{8}}, Dense(24, {.activation = "relu"}), Dense(4));
  model.compile({.optimizer = SgdOptions{.learning_rate = rate},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  model.fit(four_classes(kExamples, 1).shuffle(kExamples, 1).batch(global_batch),
            {.epochs = kPasses, .verbose = Verbosity::kSilent});
  return model.evaluate(four_classes(2000, 2).batch(500), {.verbose = Verbosity::kSilent})
      .at("accuracy");
}

/// The same with the lower layer copied on four devices and the others cut over them, which change
/// after every `dense_batch` examples: Krizhevsky's (global batch, dense batch).
double accuracy_of_hybrid(std::int64_t global_batch, std::int64_t dense_batch) {
  set_random_seed(3);
  const ParallelDensePair layers(
      24, 4, {.devices = "cpu:0-3", .activation = "relu", .input_shape = Shape{16}});
  const HybridDense dense(
      layers, "sparse_categorical_crossentropy",
      {.dense_batch = dense_batch, .optimizer = SgdOptions{.learning_rate = kRate}});
  MirroredStrategy strategy("cpu:0-3");
  const auto scope = strategy.scope();
  const Sequential below(Input{{8}}, Dense(16, "tanh"));
  Sgd optimizer(below.trainable_variables(), kRate);
  const Dataset data = four_classes(kExamples, 1).shuffle(kExamples, 1).batch(global_batch);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data.repeat(kPasses))) {
    strategy.run(
        [&](const Batch& part) {
          GradientTape tape;
          optimizer.minimize(tape, dense.train(below(part.features()), part.labels()));
        },
        batch);
  }
  const Element test = *four_classes(2000, 2).batch(2000).begin();
  return reduce_mean(cast(argmax(layers(below(test[0])), 1) == test[1], DType::kFloat32)).item();
}

double shown(const char* name, std::int64_t batch, const std::function<double()>& accuracy_of_it) {
  const TimePoint begin = Clock::system().now();
  const double accuracy = accuracy_of_it();
  std::printf("batch %4lld %-28s %4lld steps  accuracy %.3f  %.2f s\n",
              static_cast<long long>(batch), name,
              static_cast<long long>(kPasses * kExamples / batch), accuracy,
              seconds_between(begin, Clock::system().now()));
  return accuracy;
}

}  // namespace large_batches_test

TEST(LargeBatches, ScaledRatesWithWarmUpRestoreTheAccuracy) {
  using namespace large_batches_test;
  constexpr std::int64_t kLarge = 192;
  const double scaled = scaled_learning_rate(kRate, kSmallBatch, kLarge);
  EXPECT_DOUBLE_EQ(scaled, 1.2);
  const auto by = [](std::int64_t batch, const LearningRate& rate) {
    return [=] { return accuracy_of(batch, rate); };
  };
  const double small = shown("", kSmallBatch, by(kSmallBatch, kRate));
  const double same_rate = shown("with the same rate", kLarge, by(kLarge, kRate));
  const double linear = shown("scaled", kLarge, by(kLarge, scaled));
  const double warm = shown("scaled, after a warm-up", kLarge,
                            by(kLarge, LinearWarmUp({.then = scaled, .warm_up_steps = 6})));
  EXPECT_GT(small, 0.85);
  EXPECT_LT(same_rate, small - 0.1);
  EXPECT_GT(warm, small - 0.08);
  EXPECT_GT(warm, same_rate + 0.05);
  EXPECT_GT(linear, same_rate);
}

TEST(LargeBatches, SmallBatchOfDenseLayersRestoresAccuracy) {
  using namespace large_batches_test;
  const double small = shown("(48, 48)", 48, [] { return accuracy_of_hybrid(48, 48); });
  const double large = shown("(192, 192)", 192, [] { return accuracy_of_hybrid(192, 192); });
  const double both = shown("(192, 48)", 192, [] { return accuracy_of_hybrid(192, 48); });
  EXPECT_LT(large, small - 0.05);
  EXPECT_GT(both, large + 0.05);
}

}  // namespace
}  // namespace tutti

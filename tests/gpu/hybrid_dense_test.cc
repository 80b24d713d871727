// Tests Dense layers split over two GPUs after layers replicated on them: training as on CPUs,
// equal bytes, and no captured step.
// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_helpers.h"
#include "tutti/model_parallel.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace gpu_tests;

namespace hybrid_dense_test {

struct Result {
  std::vector<double> losses;
  std::size_t bytes = 0;
};

/// Trains three steps on two devices; `is_captured`: as captured steps.
Result trained(const std::string& devices, HybridScheme scheme, bool is_captured = false) {
  set_random_seed(5);
  MirroredStrategy strategy(devices);
  const ParallelDensePair layers(
      16, 3, {.devices = devices, .activation = "relu", .input_shape = Shape{8}});
  const HybridDense dense(layers, "sparse_categorical_crossentropy",
                          {.scheme = scheme, .dense_batch = 12});
  const auto scope = strategy.scope();
  const Sequential below(Input{{6}}, Dense(8, "tanh"));
  Sgd optimizer(below.trainable_variables(), 0.1);
  const Tensor x = numbers({12, 6}, 1), y = argmax(slice(x, {0, 0}, {-1, 3}), 1);
  const auto step = [&](const Tensor& features, const Tensor& labels) {
    GradientTape tape;
    const Tensor loss = dense.train(below(features), labels);
    optimizer.minimize(tape, loss);
    return loss;
  };
  const auto as_captured = captured(step);
  Result result;
  const Dataset data = Dataset::from_tensor_slices(x, y).batch(12).repeat(3);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    const PerReplica<Tensor> losses = strategy.run(
        [&](const Batch& part) {
          return is_captured ? as_captured(part.features(), part.labels())
                             : step(part.features(), part.labels());
        },
        batch);
    result.losses.push_back(strategy.reduce(ReduceOp::kSum, losses).item_double());
  }
  result.bytes = dense.last_step().bytes();
  return result;
}

}  // namespace hybrid_dense_test

TEST(HybridDenseOnGpus, TrainsAndTransfersAsOnCpus) {
  using hybrid_dense_test::trained;
  for (const HybridScheme scheme :
       {HybridScheme::kAllAtOnce, HybridScheme::kOneByOne, HybridScheme::kSharesOfAll}) {
    SCOPED_TRACE(to_string(scheme));
    const auto expected = trained("cpu:0-1", scheme), actual = trained("gpu:0-1", scheme);
    ASSERT_EQ(actual.losses.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-3);
    EXPECT_LT(actual.losses[2], actual.losses[0]);
    EXPECT_EQ(actual.bytes, std::size_t{2 * 4 * 12 * (8 + 3)});
    EXPECT_EQ(expected.bytes, actual.bytes);
  }
}

TEST(HybridDenseOnGpus, ACapturedStepIsRefused) {
  EXPECT_ERROR(
      hybrid_dense_test::trained("gpu:0-1", HybridScheme::kSharesOfAll, /*is_captured=*/true),
      kUnimplemented, "HybridDense::train", "not captured");
}

}  // namespace
}  // namespace tutti

// Tests the residual networks of the examples: known sizes, gradients, and the effect of large
// batches.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <functional>

#include "examples/common/resnet.h"
#include "examples/common/sharded_dense.h"
#include "tutti/model/callbacks.h"
#include "tutti/tutti.h"

namespace tutti::resnet_test {

Tensor images(std::int64_t rows, std::int64_t size) {
  return random_normal({rows, size, size, 3}, {.seed = 4, .purpose = kUserPurpose});
}

/// Expects each weight to have a finite, non-zero gradient.
void expect_gradients(const Sequential& model, const Tensor& x) {
  GradientTape tape;
  const Tensor logits = model(x, {.training = true});
  const Tensor labels = Tensor::from(Shape{x.shape()[0]}, std::vector<std::int64_t>(2, 3));
  const Tensor loss = reduce_mean(losses::sparse_categorical_crossentropy(labels, logits));
  const std::vector<Variable> weights = model.trainable_variables();
  const std::vector<Gradient> gradients = tape.gradient(loss, weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    ASSERT_FALSE(gradients[i].is_none()) << weights[i].name();
    const float size = reduce_sum(abs(gradients[i].to_dense())).item();
    EXPECT_TRUE(std::isfinite(size) && size > 0.0f) << weights[i].name() << ": " << size;
  }
}

TEST(Resnet50, ParameterCountMatchesTorchvision) {
  const Sequential model = examples::resnet50();
  EXPECT_EQ(model.num_trainable_parameters(), 25'557'032);
  // Each channel of 53 normalizations has two moving averages.
  EXPECT_EQ(model.num_parameters() - model.num_trainable_parameters(), 2 * 26'560);
  EXPECT_EQ(model.trainable_variables().size(), 161u);
  EXPECT_EQ(model.output_shape(), Shape{1000});
}

TEST(Resnet50, GradientsReachEveryWeight) {
  const Sequential model = examples::resnet50(32, 10);
  EXPECT_EQ(model.num_trainable_parameters(), 25'557'032 - 990 * 2049);
  expect_gradients(model, images(2, 32));
}

TEST(Resnet50, HeadIsFloat32UnderMixedPolicy) {
  set_dtype_policy("mixed_bfloat16");
  const Sequential model = examples::resnet50(32, 10);
  set_dtype_policy("float32");
  EXPECT_EQ(model(images(1, 32)).dtype(), DType::kFloat32);
  EXPECT_EQ(model.trainable_variables()[0].dtype(), DType::kFloat32);
}

TEST(SmallResnet, ParametersMatchResnet20AndHaveGradients) {
  EXPECT_EQ(examples::small_resnet(3).num_trainable_parameters(), 272'474);
  EXPECT_EQ(examples::small_resnet(1).num_trainable_parameters(), 78'042);
  expect_gradients(examples::small_resnet(1, 16), images(2, 16));
}

constexpr std::int64_t kExamples = 1920;
constexpr std::int64_t kSmallBatch = 16;
constexpr double kRate = 0.1;  // learning rate suited to the small batch
constexpr int kPasses = 3;

/// Returns features [rows, 8] and labels [rows]; a label is the index of the largest of the first
/// four features.
Dataset four_classes(std::int64_t rows, std::uint64_t seed) {
  const Tensor x = random_uniform({rows, 8}, {.seed = seed}, -1.0, 1.0);
  return Dataset::from_tensor_slices({x, argmax(slice(x, {0, 0}, {-1, 4}), 1)});
}

/// Trains for kPasses epochs and returns the accuracy on held-out examples.
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

/// Same as accuracy_of(), but for Krizhevsky's scheme (global batch, dense batch) on four workers.
/// The batch of the lower layer is divided among the workers; the other layers are sharded, and
/// updated after every `dense_batch` examples.
double accuracy_of_hybrid(std::int64_t global_batch, std::int64_t dense_batch) {
  set_random_seed(3);
  MeshStrategy strategy({.mesh = {{"worker", 4}}, .layout = examples::sharded_dense_layouts()});
  const auto scope = strategy.scope();
  const Sequential dense(Input{{16}}, Dense(24, {.activation = "relu", .name = "hidden"}),
                         Dense(4, {.name = "output"}));
  const Sequential below(Input{{8}}, Dense(16, "tanh"));
  Sgd dense_optimizer(dense.trainable_variables(), kRate);
  Sgd optimizer(below.trainable_variables(), kRate);
  const Dataset data = four_classes(kExamples, 1).shuffle(kExamples, 1).batch(global_batch);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data.repeat(kPasses))) {
    strategy.run(
        [&](const Batch& rows) {
          examples::hybrid_step(rows, below, optimizer, dense, dense_optimizer,
                                examples::DenseScheme::kAllAtOnce,
                                static_cast<int>(global_batch / dense_batch));
        },
        batch);
  }
  const Element test = *four_classes(2000, 2).batch(2000).begin();
  return reduce_mean(cast(argmax(dense(below(test[0])), 1) == test[1], DType::kFloat32)).item();
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

TEST(LargeBatches, ScaledLearningRateWithWarmUpRestoresAccuracy) {
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

TEST(LargeBatches, SmallerDenseLayerBatchRestoresAccuracy) {
  const double small = shown("(48, 48)", 48, [] { return accuracy_of_hybrid(48, 48); });
  const double large = shown("(192, 192)", 192, [] { return accuracy_of_hybrid(192, 192); });
  const double both = shown("(192, 48)", 192, [] { return accuracy_of_hybrid(192, 48); });
  EXPECT_LT(large, small - 0.05);
  EXPECT_GT(both, large + 0.05);
}

}  // namespace tutti::resnet_test

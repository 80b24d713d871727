// Augmented pictures under strategies: the same bits with any number of replicas, after a stop and
// a resume, and others in every epoch of fit.
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/model_helpers.h"
#include "tutti/data/augment.h"

namespace tutti {
namespace augmentation_test {

using namespace model_tests;

constexpr std::int64_t kPictures = 22;

/// Pictures [6, 6, 3] of 3 classes, one-hot.
Dataset pictures() {
  const Tensor images = random_uniform({kPictures, 6, 6, 3}, {.seed = 5}, 0.0, 1.0);
  const Tensor labels =
      one_hot(argmax(slice(reshape(images, {kPictures, 108}), {0, 0}, {-1, 3}), 1), 3);
  return Dataset::from_tensor_slices({images, labels});
}

/// Cropped, flipped, cut out and mixed batches of 8; 6 rows in the last one.
Dataset augmented(int num_parallel_calls = 1) {
  const Dataset changed = augment_images(
      pictures().shuffle(kPictures, 1),
      {image::random_crop(6, {.padding = 2}), image::random_flip_left_right(), image::cutout(2)},
      {.seed = 7, .num_parallel_calls = num_parallel_calls});
  return mixup(changed.batch(8), {.seed = 8, .num_parallel_calls = num_parallel_calls});
}

/// The rows of one global batch: those of its replicas, one after the other.
std::vector<double> rows_of(const PerReplica<Batch>& batch) {
  std::vector<double> values;
  for (const Batch& part : batch) {
    for (const Tensor& tensor : part.element().tensors()) {
      EXPECT_EQ(tensor.shape()[0], part.rows());
    }
    for (const double value : part.features().to_doubles()) values.push_back(value);
  }
  for (const Batch& part : batch) {
    for (const double value : part.labels().to_doubles()) values.push_back(value);
  }
  return values;
}

/// The batches of `epochs` passes from where `input` stands.
std::vector<std::vector<double>> batches_of(DistributedDataset input, int epochs) {
  std::vector<std::vector<double>> batches;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const PerReplica<Batch>& batch : input) batches.push_back(rows_of(batch));
  }
  return batches;
}

TEST(Augmentation, GivesTheSameBitsWithAnyNumberOfReplicas) {
  const auto expected = batches_of(mirrored("cpu:0")->distribute_dataset(augmented()), 2);
  ASSERT_EQ(expected.size(), 6u);
  EXPECT_NE(expected[0], expected[3]);  // another epoch
  auto strategies = several_strategies();
  strategies.push_back(mirrored("cpu:0-3"));
  for (const auto& strategy : strategies) {
    EXPECT_EQ(batches_of(strategy->distribute_dataset(augmented()), 2), expected)
        << label_of(*strategy);
    EXPECT_EQ(batches_of(strategy->distribute_dataset(augmented(4).prefetch(2)), 2), expected)
        << label_of(*strategy) << ", in parallel";
  }
}

TEST(Augmentation, ResumesInTheMiddleOfAnEpochWithOtherReplicas) {
  const auto straight = batches_of(mirrored("cpu:0-1")->distribute_dataset(augmented()), 3);
  const auto first = mirrored("cpu:0-1");
  DistributedDataset input = first->distribute_dataset(augmented());
  batches_of(input, 1);
  auto iterator = input.begin();
  ++iterator;  // two batches of the second epoch are handed out
  const Json position = Json::parse(input.position().dump());

  const auto second = mirrored("cpu:0-3");
  DistributedDataset resumed = second->distribute_dataset(augmented(3));
  resumed.restore(position);
  EXPECT_EQ(batches_of(resumed, 2),
            (std::vector<std::vector<double>>(straight.begin() + 5, straight.end())));
}

Sequential small_network(Strategy& strategy, double learning_rate) {
  set_random_seed(3);
  const Scope scope = strategy.scope();
  Sequential model(Input{{6, 6, 3}}, Conv2D(4, 3, {.activation = "relu"}), Flatten(), Dense(3));
  model.compile({.optimizer = SgdOptions{.learning_rate = learning_rate},
                 .loss = "categorical_crossentropy"});
  return model;
}

TEST(Augmentation, TrainsAlikeWhateverTheThreadsAndReplicas) {
  const auto train = [](Strategy& strategy, const Dataset& data) {
    Sequential model = small_network(strategy, 0.1);
    model.fit(data, {.epochs = 3, .verbose = kSilent});
    return weights_of(model);
  };
  const auto one = mirrored("cpu:0"), two = mirrored("cpu:0-1"), four = mirrored("cpu:0-3");
  const std::vector<double> expected = train(*two, augmented());
  EXPECT_EQ(train(*two, augmented(4).prefetch(3)), expected);
  // Sums over other replicas are rounded in another order; the data are the same.
  model_tests::expect_near(train(*one, augmented()), expected, 1e-5);
  model_tests::expect_near(train(*four, augmented()), expected, 1e-5);
  // Without augmentation the weights are others: it took part.
  EXPECT_NE(train(*two, pictures().shuffle(kPictures, 1).batch(8)), expected);
}

TEST(Augmentation, FitGivesEveryEpochItsOwnNumbers) {
  const auto strategy = mirrored("cpu:0-1");
  // With a learning rate of 0 the loss is a function of the epoch's pictures alone.
  const auto losses = [&](std::int64_t initial_epoch) {
    Sequential model = small_network(*strategy, 0.0);
    return model.fit(augmented(),
                     {.epochs = 3, .initial_epoch = initial_epoch, .verbose = kSilent})["loss"];
  };
  const std::vector<double> straight = losses(0);
  ASSERT_EQ(straight.size(), 3u);
  EXPECT_NE(straight[0], straight[1]);
  EXPECT_NE(straight[1], straight[2]);
  // The last epoch alone, as after a stop.
  EXPECT_EQ(losses(2), (std::vector<double>{straight[2]}));
}

}  // namespace augmentation_test
}  // namespace tutti

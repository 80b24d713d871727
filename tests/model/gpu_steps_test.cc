// What a training step asks of a GPU: nothing that the host waits for, and one launch for all
// updates.
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/model_helpers.h"
#include "tests/support/fake_gpu.h"

namespace tutti {
namespace {

using testing::FakeGpus;

/// How often a note of what fit asked of the GPU begins with `what`.
int count_of(const std::vector<std::string>& notes, const std::string& what) {
  return static_cast<int>(std::ranges::count_if(
      notes, [&](const std::string& note) { return note.find(what) != std::string::npos; }));
}

/// Notes of an epoch of `num_steps` steps, after one that made everything.
std::vector<std::string> notes_of_epoch(FakeGpus& gpus, std::int64_t num_steps,
                                        const OptimizerSpec& optimizer) {
  OneDeviceStrategy strategy("gpu:0");
  auto scope = strategy.scope();
  Sequential model(Input{{8}}, Dense(6, {.activation = "relu"}), BatchNormalization(), Dropout(0.3),
                   Dense(3));
  model.compile({.optimizer = optimizer,
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {"accuracy"}});
  const Tensor x = random_uniform({num_steps * 4, 8}, {.seed = 1}, -1.0, 1.0);
  const Tensor y = Tensor::zeros({num_steps * 4}, DType::kInt64);
  const FitOptions options{.batch_size = 4, .verbose = Verbosity::kSilent};
  model.fit(x, y, options);
  gpus.take_notes();
  model.fit(x, y, options);
  return gpus.take_notes();
}

TEST(GpuSteps, FitWaitsForTheGpuOncePerEpochHoweverManySteps) {
  FakeGpus gpus;
  AdamOptions optimizer;
  optimizer.clipping.global_clipnorm = 1.0;
  const auto few = notes_of_epoch(gpus, 2, optimizer), many = notes_of_epoch(gpus, 7, optimizer);
  EXPECT_GT(count_of(few, "copy_to_host"), 0);  // the logs of the epoch
  EXPECT_EQ(count_of(many, "copy_to_host"), count_of(few, "copy_to_host"));
  EXPECT_EQ(count_of(many, "synchronize"), 0);
}

TEST(GpuSteps, AllVariablesAreUpdatedByOneLaunch) {
  FakeGpus gpus;
  const auto notes = notes_of_epoch(gpus, 5, SgdOptions{.learning_rate = 0.01});
  EXPECT_EQ(count_of(notes, " update "), 5);
  EXPECT_EQ(count_of(notes, concat(" update ", static_cast<int>(DeviceRuleId::kSgd), " x6")), 5);
}

TEST(GpuSteps, MemoryIsTakenFromTheCacheAfterTheFirstSteps) {
  FakeGpus gpus;
  const auto notes = notes_of_epoch(gpus, 5, "adam");
  EXPECT_EQ(count_of(notes, " allocate "), 0);
}

}  // namespace
}  // namespace tutti

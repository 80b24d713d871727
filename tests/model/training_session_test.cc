// A loop of one's own inside a TrainingSession: it stops, saves, resumes, and leaves signals alone.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/training/training_session.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "core/file.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/test_folder.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace training_session_test {

using thrown::empty_folder;

struct Outcome {
  int code = 0;
  std::int64_t steps = 0;
  std::vector<float> losses;
  Tensor weight;
};

/// Trains 12 rows in batches of 3. `before_step`, if there, is called with the number of steps
/// before each.
Outcome train(TrainingSessionOptions options,
              const std::function<void(std::int64_t)>& before_step = {}) {
  set_random_seed(4);
  options.show_progress = false;
  options.keep_losses = true;
  MirroredStrategy strategy("cpu:0-1");
  const Tensor x = random_uniform({12, 2}, {.seed = 1});
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices(x, x.sum(1)).shuffle(12, /*seed=*/2).batch(3));
  const auto scope = strategy.scope();
  const Variable w(Tensor{0.f, 0.f}, {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 0.1, .momentum = 0.9});
  const auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor error = reduce_sum(batch.features() * w.value(), 1) - batch.labels();
    const Tensor loss = square(error).sum() / static_cast<double>(batch.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };
  TrainingSession session(strategy, {w}, optimizer, batches, options);
  session.train([&] {
    while (session.begin_epoch()) {
      for (const PerReplica<Batch>& batch : batches) {
        if (before_step) before_step(session.record().steps());
        const Tensor loss = strategy.reduce(ReduceOp::kSum, strategy.run(step, batch));
        if (!session.step(loss.item(), batch[0].global_rows())) break;
      }
      session.end_epoch("error", w.value().sum().item());
    }
  });
  const int code = session.finish();
  return {code, session.record().steps(), session.record().losses(), w.value()};
}

TEST(TrainingSession, EndsAfterItsEpochsOrSteps) {
  EXPECT_EQ(train({.epochs = 3}).steps, 12);
  EXPECT_EQ(train({.epochs = 3, .steps = 6}).steps, 6);
  EXPECT_EQ(train({.epochs = 1, .steps = 6}).steps, 4);
}

TEST(TrainingSession, DataThatNeverEndNeedSteps) {
  MirroredStrategy strategy("cpu:0-1");
  DistributedDataset endless = strategy.distribute_dataset(
      Dataset::from_tensor_slices(Tensor::ones({12, 2}), Tensor::ones({12})).repeat().batch(3));
  const auto scope = strategy.scope();
  const Variable w(Tensor{0.f, 0.f}, {.name = "w"});
  const Sgd optimizer(std::vector<Variable>{w}, {});
  const auto make = [&](std::int64_t steps) {
    return TrainingSession(strategy, {w}, optimizer, endless,
                           {.steps = steps, .show_progress = false});
  };
  EXPECT_ERROR(make(0), kInvalidArgument, "TrainingSession", "never does", ".steps");
  EXPECT_TRUE(make(2).begin_epoch());
}

TEST(TrainingSession, ASignalSavesAndAResumedRunHasTheBitsOfAStraightOne) {
  const std::string folder = empty_folder();
  const Outcome straight = train({.epochs = 4});
  const std::string checkpoints = folder + "/checkpoints";
  for (const int signal : {SIGINT, SIGTERM}) {
    SCOPED_TRACE(signal);
    std::filesystem::remove_all(checkpoints);
    const Outcome stopped =
        train({.epochs = 4, .checkpoint_dir = checkpoints}, [&](std::int64_t steps) {
          if (steps == 6) std::raise(signal);
        });
    EXPECT_EQ(stopped.code, 75);
    EXPECT_EQ(stopped.steps, 7);  // the step under way is finished
    const Outcome resumed = train({.epochs = 4, .checkpoint_dir = checkpoints, .resume = true});
    EXPECT_EQ(resumed.code, 0);
    EXPECT_EQ(resumed.steps, straight.steps);
    EXPECT_EQ(resumed.losses, straight.losses);
    testing::expect_same_bits(resumed.weight, straight.weight);
  }
}

/// Time that passes when the test says so.
class StepClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void sleep_until(TimePoint time) override { now_ = time; }

 private:
  TimePoint now_{};
};

/// A session with 10 s of grace whose steps take 1 s, and which gets signals in these steps.
Outcome train_with_grace(TrainingSessionOptions options, const std::vector<std::int64_t>& signals) {
  StepClock clock;
  options.epochs = 6;  // 24 steps
  options.grace_period = std::chrono::seconds(10);
  options.clock = &clock;
  return train(options, [&](std::int64_t steps) {
    clock.sleep_for(std::chrono::seconds(1));
    if (std::ranges::count(signals, steps) > 0) std::raise(SIGTERM);
  });
}

/// tf's TerminationConfig(grace_period): save, train on, save again, end.
TEST(TrainingSession, WithAGracePeriodItSavesAtOnceTrainsOnAndSavesAgain) {
  const std::string checkpoints = empty_folder() + "/checkpoints";
  const Outcome stopped = train_with_grace({.checkpoint_dir = checkpoints}, {6});
  EXPECT_EQ(stopped.code, 75);
  // The signal is seen as step 7 ends, after 7 s. 17 s less room for two steps is 15 s.
  EXPECT_EQ(stopped.steps, 15);
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step_7/model.safetensors.index.json"));
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step_15/model.safetensors.index.json"));
  const Outcome straight = train({.epochs = 6});
  const Outcome resumed = train({.epochs = 6, .checkpoint_dir = checkpoints, .resume = true});
  EXPECT_EQ(resumed.losses, straight.losses);
  testing::expect_same_bits(resumed.weight, straight.weight);
}

TEST(TrainingSession, ASecondSignalEndsTheGracePeriod) {
  const std::string checkpoints = empty_folder() + "/checkpoints";
  const Outcome stopped = train_with_grace({.checkpoint_dir = checkpoints}, {6, 9});
  EXPECT_EQ(stopped.code, 75);
  EXPECT_EQ(stopped.steps, 10);
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step_10/model.safetensors.index.json"));
}

/// tf's TerminationConfig(save_fn).
TEST(TrainingSession, WhatSavesBecauseOfASignalMayBeTheProgramsOwn) {
  std::vector<std::int64_t> saved;
  const auto save = [&](std::int64_t steps) { saved.push_back(steps); };
  EXPECT_EQ(train_with_grace({.save_on_signal = save}, {6}).code, 75);
  EXPECT_EQ(saved, (std::vector<std::int64_t>{7, 15}));
  saved.clear();
  const Outcome at_once = train({.epochs = 6, .save_on_signal = save}, [](std::int64_t steps) {
    if (steps == 6) std::raise(SIGTERM);
  });
  EXPECT_EQ(at_once.steps, 7);
  EXPECT_EQ(saved, (std::vector<std::int64_t>{7}));
}

TEST(TrainingSession, AGracePeriodNeedsSomethingToSave) {
  EXPECT_ERROR(train({.grace_period = std::chrono::seconds(5)}), kInvalidArgument, "grace_period",
               "checkpoint_dir or save_on_signal");
}

TEST(TrainingSession, SignalsAreItsOwnOnlyWhileItLivesAndSaves) {
  static int received = 0;
  const auto earlier = std::signal(SIGTERM, [](int) { ++received; });
  const std::string folder = empty_folder();
  train({.checkpoint_dir = folder + "/checkpoints"});
  std::raise(SIGTERM);
  EXPECT_EQ(received, 1);
  train({}, [](std::int64_t steps) {
    if (steps == 1) std::raise(SIGTERM);  // without checkpoints the program's handler stays
  });
  EXPECT_EQ(received, 2);
  std::signal(SIGTERM, SIG_DFL);  // a program without a handler has none again
  train({.checkpoint_dir = folder + "/checkpoints"});
  EXPECT_EQ(std::signal(SIGTERM, earlier), SIG_DFL);
}

TEST(TrainingSession, LogsWhatItIsTold) {
  const std::string folder = empty_folder();
  train({.epochs = 2, .log_dir = folder});
  const std::string log = read_file(folder + "/log.jsonl");
  EXPECT_EQ(std::ranges::count(log, '\n'), 8 + 2);
  EXPECT_NE(log.find("\"test_error\""), std::string::npos);
}

TEST(TrainingSession, ThereMustBeSomethingToResumeFrom) {
  const std::string folder = empty_folder();
  EXPECT_ERROR(train({.checkpoint_dir = folder, .resume = true}), kNotFound, "TrainingSession",
               folder, "train without resume");
  EXPECT_ERROR(train({.resume = true}), kInvalidArgument, "resume needs a checkpoint_dir");
}

}  // namespace training_session_test
}  // namespace tutti

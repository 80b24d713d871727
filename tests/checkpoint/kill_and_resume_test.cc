// A training that is killed twenty times sees each sample exactly once per epoch, and ends with the
// values of one that was not.
// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <algorithm>

#include "tests/checkpoint/saved_series.h"
#include "tests/data/resumable_iterator.h"
#include "tests/support/warnings.h"
#include "tutti/core/random.h"

namespace tutti {
namespace kill_and_resume_test {

using saved_series::fast_folder;

constexpr std::int64_t kSamples = 60;
constexpr std::int64_t kEpochs = 6;
constexpr int kKills = 20;

/// Counts each sample, and mixes all of them into a value that knows their order.
class Training {
 public:
  explicit Training(const std::string& folder)
      : manager_(make_checkpoint(), folder, {.max_to_keep = 2, .asynchronous = true}) {
    if (const auto info = manager_.restore_latest()) step_ = info->step;
  }

  std::int64_t step() const { return step_; }
  bool is_done() const { return samples_.position().epoch == kEpochs; }

  void step_and_save() {
    if (const auto batch = samples_.next()) {
      for (const double sample : (*batch)[0].to_doubles()) see(static_cast<std::int64_t>(sample));
    }
    manager_.save(++step_);
  }

  std::vector<double> counts() const { return counts_.value().to_doubles(); }
  double order() const { return order_.value().item_double(); }
  void wait() { manager_.wait(); }

 private:
  void see(std::int64_t sample) {
    std::vector<std::int64_t> one(kSamples, 0);
    one[static_cast<std::size_t>(sample)] = 1;
    counts_.assign_add(Tensor::from(Shape{kSamples}, one));
    const auto mixed = static_cast<std::int64_t>(order_.value().item_int() * 31 + sample);
    order_.assign(Tensor::from<std::int64_t>({}, {mixed % 1'000'003}));
  }

  Checkpoint make_checkpoint() {
    Checkpoint checkpoint({counts_, order_});
    checkpoint.add_state("input", {[this] { return samples_.position().to_json(); },
                                   [this](const Json& json) {
                                     samples_.restore(DatasetPosition::from_json(json));
                                   }});
    return checkpoint;
  }

  Variable counts_{Tensor::zeros({kSamples}, DType::kInt64), VariableOptions{.name = "counts"}};
  Variable order_{Tensor::zeros({}, DType::kInt64), VariableOptions{.name = "order"}};
  ResumableIterator samples_{Dataset::range(kSamples).shuffle(kSamples, 5).batch(4)};
  std::int64_t step_ = 0;
  CheckpointManager manager_;
};

/// Ends itself after `steps` steps, while the last save may be under way.
void train_in_child(const std::string& folder, std::int64_t steps) {
  const pid_t child = ::fork();
  if (child == 0) {
    Training run(folder);
    for (std::int64_t i = 0; i < steps && !run.is_done(); ++i) run.step_and_save();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(KillAndResume, SeesEachSampleOncePerEpoch) {
  const thrown::LogLines log(LogLevel::kWarning);
  const std::string folder = fast_folder("kill"), calm_folder = fast_folder("calm");
  const RandomStream random({.seed = 20});
  std::int64_t steps_made = 0;
  for (std::uint64_t i = 0; i < kKills; ++i) {
    const auto steps = static_cast<std::int64_t>(1 + random.below(i, 4));
    const std::int64_t before = Training(folder).step();
    train_in_child(folder, steps);
    const std::int64_t after = Training(folder).step();
    EXPECT_GE(after, before + steps - 1);  // all but the save under way
    EXPECT_LE(after, before + steps);
    steps_made = after;
  }
  EXPECT_GT(steps_made, kKills / 2);
  Training resumed(folder), calm(calm_folder);
  EXPECT_FALSE(resumed.is_done());
  while (!resumed.is_done()) resumed.step_and_save();
  while (!calm.is_done()) calm.step_and_save();
  resumed.wait();
  calm.wait();
  EXPECT_EQ(resumed.counts(), std::vector<double>(kSamples, kEpochs));
  EXPECT_EQ(resumed.order(), calm.order());
  EXPECT_EQ(resumed.step(), calm.step());
  std::filesystem::remove_all(folder);
  std::filesystem::remove_all(calm_folder);
}

}  // namespace kill_and_resume_test
}  // namespace tutti

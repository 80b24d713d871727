// Tests that a process that ends at any point during a save loses neither a training sample nor a
// complete version.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <algorithm>

#include "tests/checkpoint/saved_series.h"
#include "tests/data/dataset_values.h"
#include "tests/support/warnings.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/core/random.h"

namespace tutti::testing::crash_points_test {
using file_faults::Action;

constexpr int kNumSaves = 5;
/// Step 3 occurs twice: its second save replaces the first version.
constexpr std::int64_t kSteps[kNumSaves] = {1, 2, 3, 3, 4};

/// Performs saves 1, 2, ..., and writes a byte to `done` after each save.
void save_all(const std::string& folder, CheckpointManagerOptions options, int done) {
  Series series;
  CheckpointManager manager(series.checkpoint(), folder, options);
  for (int i = 0; i < kNumSaves; ++i) {
    series.save(manager, i + 1, kSteps[i]);
    if (options.asynchronous) manager.wait();
    if (done >= 0 && ::write(done, "x", 1) != 1) std::abort();
  }
}

/// Returns how many of the first `count` file system calls commit a version.
int num_commits(const std::vector<std::string>& calls, int count) {
  return static_cast<int>(std::count_if(calls.begin(), calls.begin() + count, [](const auto& c) {
    return c.starts_with("renameat ") && c.ends_with("/model.safetensors.index.json");
  }));
}

/// Expects a new manager to save and restore successfully, and to remove incomplete files.
void expect_going_on(const std::string& folder) {
  Series series;
  CheckpointManager manager(series.checkpoint(), folder, {.max_to_keep = 2});
  series.save(manager, 99, 99);
  EXPECT_EQ(restored_number(folder), 99);
  EXPECT_LE(list_checkpoints(folder).size(), 2u);
  for (const CheckpointVersion& version : list_checkpoints(folder)) {
    EXPECT_EQ(version.state, VersionState::kWhole) << version.problem;
    const std::filesystem::directory_iterator files(version.path);
    // an index, a state and a file of tensors
    EXPECT_EQ(std::distance(files, {}), 3) << version.path;
  }
}

class CrashPoints : public TestWithParam<bool> {
 protected:
  void SetUp() override {
    folder_ = fast_folder("crash");
    options_ = {.max_to_keep = 2, .asynchronous = GetParam()};
    file_faults::arm(folder_, Action::kCount);
    save_all(folder_, options_, -1);
    calls_ = file_faults::calls();
    file_faults::disarm();
  }
  void TearDown() override {
    file_faults::disarm();
    std::filesystem::remove_all(folder_);
  }

  void run(Action action) {
    ASSERT_EQ(num_commits(calls_, static_cast<int>(calls_.size())), kNumSaves);
    for (int call = 1;; ++call) {
      SCOPED_TRACE(call <= static_cast<int>(calls_.size())
                       ? concat(call, ": ", calls_[static_cast<std::size_t>(call - 1)])
                       : "end");
      std::filesystem::remove_all(folder_);
      const Crash crash =
          crash_at(call, action, folder_, [&](int done) { save_all(folder_, options_, done); });
      if (crash.finished) {
        EXPECT_EQ(call, static_cast<int>(calls_.size()) + 1);
        EXPECT_GT(call, 60);
        return;
      }
      ASSERT_LE(call, static_cast<int>(calls_.size()));
      const int found = static_cast<int>(restored_number(folder_).value_or(0));
      const int committed = num_commits(calls_, call - 1);
      EXPECT_GE(found, crash.num_saved);  // all saves that returned are kept
      if (action == Action::kKill) {
        EXPECT_EQ(found, committed);
      } else {
        EXPECT_LE(found, committed);
      }
      expect_going_on(folder_);
    }
  }

  const LogLines log_{LogLevel::kWarning};  // captures warnings such as "skipping step_3 ..."
  std::string folder_;
  CheckpointManagerOptions options_;
  std::vector<std::string> calls_;
};

TEST_P(CrashPoints, KillKeepsNewestCommittedVersion) { run(Action::kKill); }

TEST_P(CrashPoints, PowerLossKeepsEveryCommittedVersion) { run(Action::kPowerCut); }

INSTANTIATE_TEST_SUITE_P(Checkpoint, CrashPoints, Bool(), [](const auto& info) {
  return info.param ? "Asynchronous" : "Synchronous";
});

// Checks that faults occur, and that a power cut discards unsynced data.
TEST(FileFaults, PowerLossRemovesUnsyncedData) {
  const std::string folder = fast_folder("faults");
  std::filesystem::create_directories(folder);
  const pid_t child = ::fork();
  if (child == 0) {
    file_faults::arm(folder, Action::kPowerCut, 4);
    const int fd = ::open((folder + "/a").c_str(), O_WRONLY | O_CREAT, 0666);
    // syncs the content, but not the folder entry
    if (::write(fd, "12345678", 8) == 8) ::fsync(fd);
    ::close(fd);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(folder + "/a"));
  std::filesystem::remove_all(folder);
}

constexpr std::int64_t kSamples = 60;
constexpr std::int64_t kEpochs = 6;
constexpr int kKills = 20;

/// Training loop that counts samples and mixes them into a value that depends on their order.
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

/// Trains in a child process, which kills itself after `steps` steps, possibly during the last
/// save.
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
  const LogLines log(LogLevel::kWarning);
  const std::string folder = fast_folder("kill"), calm_folder = fast_folder("calm");
  const RandomStream random({.seed = 20});
  std::int64_t steps_made = 0;
  for (std::uint64_t i = 0; i < kKills; ++i) {
    const auto steps = static_cast<std::int64_t>(1 + random.below(i, 4));
    const std::int64_t before = Training(folder).step();
    train_in_child(folder, steps);
    const std::int64_t after = Training(folder).step();
    EXPECT_GE(after, before + steps - 1);  // at most the save in progress is lost
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

}  // namespace tutti::testing::crash_points_test

// A saving process is ended before every single call that changes a file.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/wait.h>

#include <algorithm>

#include "tests/checkpoint/crash_at.h"
#include "tests/checkpoint/saved_series.h"
#include "tests/support/warnings.h"
#include "tutti/checkpoint/checkpoint_versions.h"

namespace tutti {
namespace crash_points_test {

using crash_points::Crash;
using crash_points::crash_at;
using file_faults::Action;
using saved_series::fast_folder;
using saved_series::restored_number;
using saved_series::Series;

constexpr int kNumSaves = 5;
/// Step 3 twice: the second time its version is replaced.
constexpr std::int64_t kSteps[kNumSaves] = {1, 2, 3, 3, 4};

/// Saves 1, 2, ... and tells each that returned through `done`.
void save_all(const std::string& folder, CheckpointManagerOptions options, int done) {
  Series series;
  CheckpointManager manager(series.checkpoint(), folder, options);
  for (int i = 0; i < kNumSaves; ++i) {
    series.save(manager, i + 1, kSteps[i]);
    if (options.asynchronous) manager.wait();
    if (done >= 0 && ::write(done, "x", 1) != 1) std::abort();
  }
}

/// How many of the first `count` calls commit a version.
int num_commits(const std::vector<std::string>& calls, int count) {
  return static_cast<int>(std::count_if(calls.begin(), calls.begin() + count, [](const auto& c) {
    return c.starts_with("renameat ") && c.ends_with("/model.safetensors.index.json");
  }));
}

/// After any crash the next process goes on, and what the crash left behind is gone.
void expect_going_on(const std::string& folder) {
  Series series;
  CheckpointManager manager(series.checkpoint(), folder, {.max_to_keep = 2});
  series.save(manager, 99, 99);
  EXPECT_EQ(restored_number(folder), 99);
  EXPECT_LE(list_checkpoints(folder).size(), 2u);
  for (const CheckpointVersion& version : list_checkpoints(folder)) {
    EXPECT_EQ(version.state, VersionState::kWhole) << version.problem;
    const std::filesystem::directory_iterator files(version.path);
    EXPECT_EQ(std::distance(files, {}), 3) << version.path;  // index, state and tensors
  }
}

class CrashPoints : public testing::TestWithParam<bool> {
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
      EXPECT_GE(found, crash.num_saved);  // what save() promised is there
      if (action == Action::kKill) {
        EXPECT_EQ(found, committed);
      } else {
        EXPECT_LE(found, committed);
      }
      expect_going_on(folder_);
    }
  }

  const thrown::LogLines log_{LogLevel::kWarning};  // takes "passing over step_3 ..."
  std::string folder_;
  CheckpointManagerOptions options_;
  std::vector<std::string> calls_;
};

TEST_P(CrashPoints, AKilledProcessLeavesTheNewestCommittedVersion) { run(Action::kKill); }

TEST_P(CrashPoints, APowerCutLeavesEveryVersionThatWasPromised) { run(Action::kPowerCut); }

INSTANTIATE_TEST_SUITE_P(Checkpoint, CrashPoints, testing::Bool(),
                         [](const auto& info) { return info.param ? "Asynchronous" : "Waiting"; });

// That the faults come at all, and that a power cut takes what was not synced.
TEST(FileFaults, TakeAwayWhatWasNotSynced) {
  const std::string folder = fast_folder("faults");
  std::filesystem::create_directories(folder);
  const pid_t child = ::fork();
  if (child == 0) {
    file_faults::arm(folder, Action::kPowerCut, 4);
    const int fd = ::open((folder + "/a").c_str(), O_WRONLY | O_CREAT, 0666);
    if (::write(fd, "12345678", 8) == 8) ::fsync(fd);  // the bytes, not the name
    ::close(fd);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(folder + "/a"));
  std::filesystem::remove_all(folder);
}

}  // namespace crash_points_test
}  // namespace tutti

// Reading beside a process that saves the same step again and again: never an error, never damage.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "tests/checkpoint/saved_series.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace replaced_versions_test {

using saved_series::fast_folder;
using saved_series::Series;

constexpr std::int64_t kNumSaves = 600;

class ReplacedVersions : public testing::Test {
 protected:
  void SetUp() override {
    previous_ = set_log_sink([this](LogLevel level, std::string_view line) {
      if (level >= LogLevel::kError) log_.emplace_back(line);
    });
    folder_ = fast_folder("replaced");
    Series series;
    CheckpointManager manager(series.checkpoint(), folder_);
    series.save(manager, 1, 7);
  }
  void TearDown() override {
    set_log_sink(previous_);
    std::filesystem::remove_all(folder_);
  }

  LogSink previous_;
  std::vector<std::string> log_;
  std::string folder_;
};

// The old version's tensors go away after its manifest was read: the reader looks again.
TEST_F(ReplacedVersions, AreReadWholeWhileTheyAreReplaced) {
  std::atomic<bool> is_saving{true};
  const auto saver = Executor::system().start("saver", [&] {
    Series series;
    CheckpointManager manager(series.checkpoint(), folder_);
    for (std::int64_t i = 2; i <= kNumSaves; ++i) series.save(manager, i, 7);
    is_saving = false;
  });
  std::int64_t newest = 0;
  while (is_saving) {
    Series series;
    CheckpointManager manager(series.checkpoint(), folder_);
    ASSERT_TRUE(manager.restore_latest());
    ASSERT_GE(series.number(), newest);  // whole, and none older than the last one
    newest = series.number();
  }
  EXPECT_THAT(log_, testing::IsEmpty());
}

}  // namespace replaced_versions_test
}  // namespace tutti

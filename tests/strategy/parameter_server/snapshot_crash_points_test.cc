// A server that saves is ended before every single call that changes a file.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/durable_helpers.h"

namespace tutti::durable_tests {

constexpr int kSnapshotSaves = 4;

/// Saves cuts 1, 2, ..., each of them taken, and tells each that was.
void save_cuts(const std::string& path, const std::function<void()>& done) {
  const SnapshotFolder folder(path, "job", 0, 1);
  for (int cut = 1; cut <= kSnapshotSaves; ++cut) {
    folder.save(static_cast<std::uint64_t>(cut), 1, all_values(cut),
                static_cast<std::uint64_t>(cut - 1));
    done();
  }
}

/// 0: there is none.
int newest_whole(const SnapshotFolder& folder) {
  int newest = 0;
  for (const std::uint64_t cut : folder.cuts()) {
    try {
      newest = static_cast<int>(number_of(folder.load(cut).snapshot));
    } catch (const Error&) {  // damaged
    }
  }
  return newest;
}

void crash_everywhere(file_faults::Action action) {
  const KeptWarnings quiet;
  const OwnFolder folder("snapshot_crash");
  for (int call = 1;; ++call) {
    SCOPED_TRACE(call);
    folder.clear();
    const Crash crash = crash_at(call, action, folder.path(),
                                 [&](const auto& done) { save_cuts(folder.path(), done); });
    if (crash.finished) {
      EXPECT_EQ(crash.num_done, kSnapshotSaves);
      EXPECT_GT(call, 30);
      return;
    }
    ASSERT_LT(call, 400);
    const SnapshotFolder after(folder.path(), "job", 0, 1);
    const int found = newest_whole(after);
    EXPECT_GE(found, crash.num_done);  // what save() promised is there, and whole
    EXPECT_LE(found, crash.num_done + 1);
    // The cut before, which counts as long as nobody said that the new one does, is there too.
    if (crash.num_done > 0) {
      const auto before = static_cast<std::uint64_t>(crash.num_done);
      EXPECT_EQ(number_of(after.load(before).snapshot), crash.num_done);
    }
    // The next process goes on, and what the crash left behind is gone.
    after.save(99, 2, all_values(99), static_cast<std::uint64_t>(crash.num_done));
    EXPECT_EQ(newest_whole(after), 99);
    EXPECT_LE(folder.names().size(), 2u);
  }
}

TEST(SnapshotCrashPoints, KilledServerKeepsItsSnapshot) {
  crash_everywhere(file_faults::Action::kKill);
}

TEST(SnapshotCrashPoints, PowerCutKeepsTheSnapshot) {
  crash_everywhere(file_faults::Action::kPowerCut);
}

/// A full disk, or one that reports errors, at any call: the error names the file, and what was
/// saved before is there.
TEST(SnapshotCrashPoints, FullDiskKeepsTheSnapshot) {
  const OwnFolder folder("snapshot_full");
  for (const auto action : {file_faults::Action::kNoSpace, file_faults::Action::kIoError}) {
    int num_refused = 0;
    for (int call = 1; call < 400; ++call) {
      SCOPED_TRACE(call);
      folder.clear();
      const SnapshotFolder saved(folder.path(), "job", 0, 1);
      saved.save(1, 1, all_values(1), 0);
      file_faults::arm(folder.path(), action, call);
      std::string problem;
      try {
        saved.save(2, 1, all_values(2), 1);
      } catch (const Error& error) {
        problem = error.message();
        EXPECT_TRUE(error.code() == ErrorCode::kResourceExhausted ||
                    error.code() == ErrorCode::kUnavailable)
            << error.what();
        EXPECT_THAT(problem, ::testing::HasSubstr(folder.path()));
      }
      const int num_calls = static_cast<int>(file_faults::calls().size());
      file_faults::disarm();
      EXPECT_EQ(number_of(saved.load(1).snapshot), 1);
      if (problem.empty()) {
        EXPECT_EQ(number_of(saved.load(2).snapshot), 2);
      }
      num_refused += problem.empty() ? 0 : 1;
      saved.save(3, 1, all_values(3), 1);  // there is space again
      EXPECT_EQ(number_of(saved.load(3).snapshot), 3);
      if (num_calls < call) break;
    }
    EXPECT_GT(num_refused, 3);
  }
}

}  // namespace tutti::durable_tests

// A coordinator is ended before every single call that changes its journal.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/journal_helpers.h"
#include "tests/support/hang_watchdog.h"

namespace tutti::durable_tests {

/// Events one by one, each told when it was appended (or put on the disk); in the middle the
/// journal is made short, and another coordinator goes on.
void write_story(const std::string& folder, bool with_sync, const std::function<void()>& done) {
  const auto story = journal_story();
  const auto ledgers = ledgers_of(story);
  for (std::size_t i = 0; i < story.size();) {
    JournalFile journal(folder, kJournalRules, kNever);
    const std::size_t end = std::min(story.size(), i + 18);
    for (; i < end; ++i) {
      journal.append(story[i]);
      if (i % 12 == 10) journal.begin_with(ledgers[i + 1]);
      if (with_sync) journal.sync();
      done();
    }
  }
}

void crash_journal_everywhere(file_faults::Action action) {
  const KeptWarnings quiet;
  const bool is_power_cut = action == file_faults::Action::kPowerCut;
  const auto story = journal_story();
  const auto ledgers = ledgers_of(story);
  const OwnFolder folder("journal_crash");
  for (int call = 1;; ++call) {
    SCOPED_TRACE(call);
    folder.clear();
    const Crash crash = crash_at(call, action, folder.path(), [&](const auto& done) {
      write_story(folder.path(), is_power_cut, done);
    });
    if (crash.finished) {
      EXPECT_EQ(crash.num_done, static_cast<int>(story.size()));
      EXPECT_GT(call, 60);
      return;
    }
    ASSERT_LT(call, 400);
    const auto found = std::ranges::find(ledgers, ledger_in(folder.path()));
    ASSERT_NE(found, ledgers.end());  // never a state that was not
    const auto num_found = static_cast<int>(found - ledgers.begin());
    EXPECT_GE(num_found, crash.num_done);  // what append() or sync() promised
    EXPECT_LE(num_found, crash.num_done + 1);
    // The next coordinator goes on, and the one after it knows.
    {
      JournalFile journal(folder.path(), kJournalRules, kNever);
      append_story(journal, {story.begin() + num_found, story.end()});
    }
    EXPECT_EQ(ledger_in(folder.path()), ledgers.back());
    EXPECT_EQ(folder.names(), std::vector<std::string>{"journal"});
  }
}

TEST(JournalCrashPoints, KilledCoordinatorKeepsEveryEvent) {
  crash_journal_everywhere(file_faults::Action::kKill);
}

TEST(JournalCrashPoints, PowerCutKeepsEverySyncedEvent) {
  crash_journal_everywhere(file_faults::Action::kPowerCut);
}

int num_syncs(const std::string& path) {
  const auto calls = file_faults::calls();
  return static_cast<int>(std::ranges::count(calls, "fsync " + path));
}

/// A record alone is on the disk soon; of a thousand many go together.
TEST(JournalCrashPoints, PutsRecordsOnTheDiskTogetherAndSoon) {
  const testing::HangWatchdog watchdog("group commit");
  const OwnFolder folder("journal_group");
  JournalFile journal(folder.path(), kJournalRules, std::chrono::milliseconds(5));
  const std::string path = folder.path() + "/journal";
  file_faults::arm(folder.path(), file_faults::Action::kCount);
  journal.append(events::TookOver{1});
  const TimePoint deadline = deadline_after(Clock::system().now(), std::chrono::seconds(60));
  while (num_syncs(path) == 0 && Clock::system().now() < deadline) {
    Clock::system().sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(num_syncs(path), 1);
  for (std::uint64_t n = 0; n < 1000; ++n) {
    journal.append(events::Scheduled{n, "content"});
  }
  journal.sync();
  EXPECT_LT(num_syncs(path), 1000);
  const int num_before = num_syncs(path);
  journal.sync();  // nothing new
  EXPECT_EQ(num_syncs(path), num_before);
  file_faults::disarm();
}

}  // namespace tutti::durable_tests

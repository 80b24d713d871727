// The coordinator's journal on the disk: what is found again, what is refused, who may write.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "tests/strategy/parameter_server/journal_helpers.h"
#include "tests/support/hang_watchdog.h"

namespace tutti::durable_tests {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::HangWatchdog;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Writes the story into a journal of its own, closes it, and gives the file.
std::string journal_with(const std::vector<ClosureEvent>& story, const std::string& folder) {
  JournalFile journal(folder, kJournalRules, kNever);
  append_story(journal, story);
  journal.sync();
  return read_file(folder + "/journal");
}

TEST(JournalFile, GivesALaterCoordinatorTheSameLedger) {
  const HangWatchdog watchdog("journal");
  const OwnFolder folder("journal");
  const auto story = journal_story();
  const auto ledgers = ledgers_of(story);
  std::string job_id;
  for (std::size_t i = 0; i < story.size(); ++i) {
    const KeptWarnings warnings;
    JournalFile journal(folder.path(), kJournalRules);
    EXPECT_EQ(journal.ledger(), ledgers[i]);
    if (i == 0) job_id = journal.job_id();
    EXPECT_EQ(journal.job_id(), job_id);
    journal.append(story[i]);
    EXPECT_GT(journal.num_appended(), 0u);
    EXPECT_THAT(warnings.lines, IsEmpty());
  }
  EXPECT_EQ(ledger_in(folder.path()), ledgers.back());
  EXPECT_EQ(job_id.size(), 32u);
  const OwnFolder other("journal_of_another");
  EXPECT_NE(JournalFile(other.path(), kJournalRules).job_id(), job_id);
}

TEST(JournalFile, CutsOffARecordThatWasBeingWritten) {
  const HangWatchdog watchdog("torn journal", std::chrono::seconds(120));
  const OwnFolder folder("journal_torn");
  const auto story = journal_story();
  const auto ledgers = ledgers_of(story);
  const std::string whole = journal_with(story, folder.path());
  const std::size_t last = internal::encode_record(story.back()).size();
  for (std::size_t missing = 1; missing <= last; ++missing) {
    write_file_atomically(folder.path() + "/journal", whole.substr(0, whole.size() - missing));
    const KeptWarnings warnings;
    {
      JournalFile journal(folder.path(), kJournalRules, kNever);
      EXPECT_EQ(journal.ledger(), ledgers[story.size() - 1]) << missing;
      journal.append(story.back());
    }
    if (missing == last) {
      EXPECT_THAT(warnings.lines, IsEmpty());  // between two records
    } else {
      EXPECT_THAT(warnings.lines, ElementsAre(HasSubstr(concat(folder.path(), "/journal: offset ",
                                                               whole.size() - last, ": cuts off ",
                                                               last - missing, " bytes"))));
    }
    EXPECT_EQ(ledger_in(folder.path()), ledgers.back());  // nothing was appended behind a half
  }
}

TEST(JournalFile, DamageInTheMiddleIsRefusedWithItsOffset) {
  const HangWatchdog watchdog("damaged journal", std::chrono::seconds(120));
  const OwnFolder folder("journal_damaged");
  const auto story = journal_story();
  const auto ledgers = ledgers_of(story);
  (void)journal_with({story.begin(), story.begin() + 20}, folder.path());
  // Opened again, it begins with a state that has closures.
  const std::string whole = journal_with({story.begin() + 20, story.end()}, folder.path());
  const std::size_t last = whole.size() - internal::encode_record(story.back()).size();
  const std::string path = folder.path() + "/journal";
  for (std::size_t place = 0; place < whole.size(); ++place) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ (1 << (place % 8)));
    write_file_atomically(path, damaged);
    const KeptWarnings warnings;
    try {
      EXPECT_EQ(ledger_in(folder.path()), ledgers[story.size() - 1]);
      EXPECT_GE(place, last) << place;
      EXPECT_EQ(warnings.lines.size(), 1u);
    } catch (const Error& error) {
      EXPECT_LT(place, last) << error.what();
      EXPECT_THAT(error.message(), HasSubstr(path));
      EXPECT_THAT(error.message(), HasSubstr("expected "));
      EXPECT_THAT(error.message(), HasSubstr("found "));
      EXPECT_EQ(read_file(path), damaged);  // for whoever looks into it
    }
  }
}

TEST(JournalFile, AFileOfAnotherFormatIsRefusedByItsNumber) {
  const HangWatchdog watchdog("old journal");
  const OwnFolder folder("journal_format");
  (void)journal_with({}, folder.path());
  std::string bytes;
  const internal::RecordWriter out({"TUTTIJNL", 3}, {}, [&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  write_file_atomically(folder.path() + "/journal", bytes);
  expect_error(ErrorCode::kUnimplemented, {"/journal", "expected format 4, found 3", "try"},
               [&] { (void)ledger_in(folder.path()); });
}

TEST(JournalFile, OneCoordinatorAtATime) {
  const HangWatchdog watchdog("two journals");
  const OwnFolder folder("journal_locked");
  auto first = std::make_unique<JournalFile>(folder.path(), kJournalRules);
  first->append(events::TookOver{1});
  expect_error(ErrorCode::kFailedPrecondition,
               {folder.path() + "/journal: another coordinator writes it", "expected one", "try"},
               [&] { JournalFile(folder.path(), kJournalRules); });
  first.reset();
  EXPECT_EQ(ledger_in(folder.path()).term(), 1u);
}

TEST(JournalFile, RefusesSnapshotsWithoutTheirJournal) {
  const HangWatchdog watchdog("no journal");
  const OwnFolder folder("journal_missing");
  SnapshotFolder(folder.path(), "job", 0, 1).save(1, 1, all_values(1), 0);
  expect_error(ErrorCode::kFailedPrecondition,
               {"expected the journal of the job that saved 'ps_0_of_1.cut_1', found none"},
               [&] { JournalFile(folder.path(), kJournalRules); });
}

TEST(JournalFile, BeginsAnewWithTheStateItLedTo) {
  const HangWatchdog watchdog("short journal");
  const OwnFolder folder("journal_short");
  const auto story = journal_story();
  const auto ledgers = ledgers_of(story);
  constexpr std::size_t kFirst = 30;
  std::string job_id;
  {
    JournalFile journal(folder.path(), kJournalRules);
    job_id = journal.job_id();
    append_story(journal, {story.begin(), story.begin() + kFirst});
    const std::size_t before = read_file(folder.path() + "/journal").size();
    journal.begin_with(ledgers[kFirst]);
    EXPECT_LT(read_file(folder.path() + "/journal").size(), before);
    EXPECT_EQ(journal.num_appended(), 0u);
    append_story(journal, {story.begin() + kFirst, story.end()});
  }
  JournalFile journal(folder.path(), kJournalRules);
  EXPECT_EQ(journal.ledger(), ledgers.back());
  EXPECT_EQ(journal.job_id(), job_id);
  EXPECT_THAT(folder.names(), ElementsAre("journal"));
}

TEST(JournalFile, WritesNothingAfterATruncatedRecord) {
  const HangWatchdog watchdog("full journal");
  const OwnFolder folder("journal_full");
  const auto story = journal_story();
  const auto ledgers = ledgers_of(story);
  constexpr std::size_t kFirst = 25;
  {
    JournalFile journal(folder.path(), kJournalRules, kNever);
    append_story(journal, {story.begin(), story.begin() + kFirst});
    file_faults::arm(folder.path(), file_faults::Action::kNoSpace, 1, 2);
    expect_error(ErrorCode::kResourceExhausted, {folder.path() + "/journal", "free"},
                 [&] { journal.append(story[kFirst]); });
    file_faults::disarm();
    const KeptWarnings warnings;
    expect_error(ErrorCode::kUnavailable, {"could not be written before", "a new coordinator"},
                 [&] { journal.append(story[kFirst]); });
    expect_error(ErrorCode::kUnavailable, {"could not be written before"},
                 [&] { journal.begin_with(ledgers[kFirst]); });
  }
  const KeptWarnings warnings;
  EXPECT_EQ(ledger_in(folder.path()), ledgers[kFirst]);
  EXPECT_THAT(warnings.lines, ElementsAre(HasSubstr("cuts off")));
}

}  // namespace tutti::durable_tests

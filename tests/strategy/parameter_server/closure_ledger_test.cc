// The coordinator's closures as a value: numbers, errors, retries, cuts, and the journal.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/closure_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategy/parameter_server/protocol/record_file.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace closure_ledger_test {

using State = ClosureLedger::State;
using Kind = AttemptReport::Kind;
using testing::expect_error;

/// A ledger and the journal of all that happened to it.
class Book {
 public:
  explicit Book(LedgerRules rules = {}) : rules(rules), ledger(rules) {
    apply(events::TookOver{1});
  }
  void apply(const ClosureEvent& event) {
    ledger.apply(event);
    const auto record = encode_record(event);
    journal.insert(journal.end(), record.begin(), record.end());
  }
  void schedule(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      apply(events::Scheduled{ledger.next_number(), concat("content ", ledger.next_number())});
    }
  }
  int start(std::uint64_t number, int worker = 0) {
    const int attempt = ledger.find(number)->attempts + 1;
    apply(events::Started{number, attempt, worker});
    return attempt;
  }
  void finish(std::uint64_t number) {
    apply(events::Finished{number, ledger.find(number)->attempts});
  }
  void fail(std::uint64_t number, const std::string& text = "boom") {
    apply(events::Failed{{number, ledger.find(number)->attempts, 0, ErrorOrigin::kUser,
                          ErrorCode::kInvalidArgument, text}});
  }
  void put_back(std::uint64_t number, Kind kind, int worker = 0) {
    apply(events::PutBack{number,
                          ledger.find(number)->attempts,
                          {kind, worker, ErrorOrigin::kWorker, ErrorCode::kUnavailable,
                           concat("worker ", worker, " is gone")}});
  }
  State state(std::uint64_t number) const { return ledger.find(number)->state; }

  LedgerRules rules;
  ClosureLedger ledger;
  std::vector<std::byte> journal;
};

TEST(ClosureLedger, NumbersFromZeroAndHandsOutInOrder) {
  Book book;
  book.schedule(3);
  EXPECT_EQ(book.ledger.next_queued(), 0u);
  EXPECT_EQ(book.start(0), 1);
  book.start(1);
  book.put_back(0, Kind::kTransient);
  EXPECT_EQ(book.ledger.next_queued(), 0u);  // before 2
  EXPECT_EQ(book.start(0), 2);               // the number stays, the attempt counts
  EXPECT_TRUE(book.ledger.is_current(0, 2));
  EXPECT_FALSE(book.ledger.is_current(0, 1));
  book.finish(1);
  EXPECT_EQ(book.ledger.finished_below(), 0u);
  book.finish(0);
  EXPECT_EQ(book.ledger.finished_below(), 2u);
  EXPECT_EQ(book.ledger.find(0), nullptr);
  EXPECT_EQ(book.ledger.num_queued(), 1u);
}

TEST(ClosureLedger, RefusesWhatCannotHappenAndStaysAsItWas) {
  Book book;
  book.schedule(2);
  book.start(0);
  const ClosureLedger before = book.ledger;
  const std::vector<ClosureEvent> impossible = {
      events::Scheduled{7, ""},  events::Started{0, 2, 0}, events::Started{1, 2, 0},
      events::Started{9, 1, 0},  events::Finished{0, 2},   events::Finished{1, 1},
      events::Stopped{5, 1},     events::ErrorRaised{},    events::TookOver{1},
      events::TookOver{3},       events::CutBegan{0},      events::CutTaken{1},
      events::PutBack{1, 1, {}}, events::Failed{{1, 1}},   events::BeganAfter{1, 1}};
  for (const ClosureEvent& event : impossible) {
    expect_error(ErrorCode::kFailedPrecondition, {"closure ledger"},
                 [&] { book.ledger.apply(event); });
    EXPECT_EQ(book.ledger, before) << event.index();
  }
}

TEST(ClosureLedger, NumbersOnAfterAnotherCoordinator) {
  const std::vector<ClosureEvent> story = {events::BeganAfter{3, 40}, events::TookOver{4},
                                           events::Scheduled{40, "x"}, events::Started{40, 1, 0}};
  ClosureLedger ledger;
  std::vector<std::byte> journal;
  for (const ClosureEvent& event : story) {
    ledger.apply(event);
    const auto record = internal::encode_record(event);
    journal.insert(journal.end(), record.begin(), record.end());
    EXPECT_EQ(ClosureLedger::restore(ledger.bytes(), {}), ledger);
  }
  EXPECT_EQ(ClosureLedger::replay(journal), ledger);
  EXPECT_EQ(ledger.finished_below(), 40u);  // nobody does those below again
  EXPECT_EQ(ledger.next_number(), 41u);
  EXPECT_EQ(ledger.term(), 4u);
}

TEST(ClosureLedger, TheFirstFailureCancelsTheQueueAndIsRaisedWhenNothingRuns) {
  Book book;
  book.schedule(5);
  book.start(0), book.start(1), book.start(2);
  book.fail(1, "first");
  EXPECT_EQ(book.ledger.num_queued(), 0u);
  EXPECT_EQ(book.state(4), State::kCancelled);
  expect_error(ErrorCode::kFailedPrecondition, {"not raised yet"}, [&] { book.schedule(1); });
  expect_error(ErrorCode::kFailedPrecondition, {"still run"},
               [&] { book.apply(events::ErrorRaised{}); });
  book.put_back(2, Kind::kTransient);  // not tried again any more
  EXPECT_EQ(book.state(2), State::kCancelled);
  book.fail(0, "second");
  ASSERT_EQ(book.ledger.failures().size(), 2u);
  EXPECT_EQ(book.ledger.failures()[0].text, "first");
  book.apply(events::ErrorRaised{});
  EXPECT_EQ(book.ledger.finished_below(), 5u);
  book.schedule(1);
  EXPECT_EQ(book.ledger.next_queued(), 5u);
}

TEST(ClosureLedger, AClosureThatTwoWorkersDiedOfFailsWithBothReports) {
  Book book;
  book.schedule(2);
  book.start(0, 3);
  book.put_back(0, Kind::kWorkerLost, 3);
  book.start(0, 3);
  book.put_back(0, Kind::kWorkerLost, 3);  // the same worker again: no proof
  EXPECT_EQ(book.state(0), State::kQueued);
  book.start(0, 1);
  book.put_back(0, Kind::kWorkerLost, 1);
  ASSERT_EQ(book.ledger.failures().size(), 1u);
  const ClosureFailure& failure = book.ledger.failures()[0];
  EXPECT_EQ(failure.origin, ErrorOrigin::kWorker);
  EXPECT_THAT(failure.text, ::testing::HasSubstr("2 different workers"));
  EXPECT_THAT(failure.text, ::testing::HasSubstr("worker 3: worker 3 is gone"));
  EXPECT_THAT(failure.text, ::testing::HasSubstr("worker 1: worker 1 is gone"));
}

TEST(ClosureLedger, InfrastructureMayEndThreeAttemptsButNotFour) {
  Book book;
  book.schedule(1);
  for (int i = 0; i < 3; ++i) book.start(0), book.put_back(0, Kind::kTransient);
  for (int i = 0; i < 9; ++i) book.start(0), book.put_back(0, Kind::kNotStarted);
  EXPECT_EQ(book.state(0), State::kQueued);
  book.start(0);
  book.put_back(0, Kind::kTransient);
  ASSERT_EQ(book.ledger.failures().size(), 1u);
  EXPECT_THAT(book.ledger.failures()[0].text, ::testing::HasSubstr("ended 4 attempts"));
}

TEST(ClosureLedger, ANewCoordinatorGoesOnUnderTheNextTerm) {
  Book book;
  book.schedule(3);
  book.start(0), book.start(1);
  book.finish(0);
  ClosureLedger next = ClosureLedger::replay(book.journal);
  EXPECT_EQ(next, book.ledger);
  next.apply(events::TookOver{next.term() + 1});
  EXPECT_EQ(next.term(), 2u);
  EXPECT_EQ(next.num_running(), 0u);
  EXPECT_EQ(next.next_queued(), 1u);
  EXPECT_EQ(next.find(1)->content, "content 1");
  EXPECT_FALSE(next.is_current(1, 1));  // what the lost coordinator gave out counts no more
}

TEST(ClosureLedger, ACutThatWasGivenUpIsNotTaken) {
  Book book;
  book.schedule(2);
  book.start(0), book.start(1);
  book.apply(events::CutBegan{1});
  book.apply(events::CutBegan{2});  // the first one was given up
  book.finish(0);
  EXPECT_EQ(book.ledger.finished_below(), 1u);
  EXPECT_EQ(book.ledger.find(0), nullptr);  // servers that come back have it
  expect_error(ErrorCode::kFailedPrecondition, {"not being taken"},
               [&] { book.apply(events::CutTaken{1}); });
  book.apply(events::CutTaken{2});
  EXPECT_EQ(book.ledger.last_cut(), 2u);
  book.apply(events::CutBegan{3});
  book.apply(events::TookOver{2});
  EXPECT_EQ(book.ledger.last_cut(), 2u);
  EXPECT_EQ(book.state(1), State::kQueued);
  expect_error(ErrorCode::kFailedPrecondition, {"not being taken"},
               [&] { book.apply(events::CutTaken{3}); });
}

TEST(ClosureLedger, EqualStatesHaveEqualBytesAndOthersDoNot) {
  Book a, b;
  a.schedule(2), b.schedule(2);
  EXPECT_EQ(a.ledger.bytes(), b.ledger.bytes());
  a.start(0), a.start(1), b.start(1), b.start(0);  // another order, the same state
  EXPECT_EQ(a.ledger.bytes(), b.ledger.bytes());
  a.finish(1);
  EXPECT_NE(a.ledger.bytes(), b.ledger.bytes());
  EXPECT_NE(a.ledger, b.ledger);
}

/// Something of everything, by chance.
Book random_book(std::uint64_t seed) {
  Book book;
  const RandomStream random({.seed = seed});
  std::uint64_t cuts = 0;
  bool is_taking_cut = false;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t number = random.below(3 * i + 1, book.ledger.next_number() + 1);
    const auto* closure = book.ledger.find(number);
    const bool runs = closure != nullptr && closure->state == State::kRunning;
    const bool waits = closure != nullptr && closure->state == State::kQueued;
    switch (random.below(3 * i, 12)) {
      case 0:
        if (book.ledger.failures().empty()) book.schedule(2);
        break;
      case 1:
        if (runs) book.fail(number);
        break;
      case 2:
        if (runs) book.put_back(number, static_cast<Kind>(1 + i % 3), static_cast<int>(i % 5));
        break;
      case 3:
        if (runs) book.apply(events::Stopped{number, closure->attempts});
        break;
      case 4:
        book.apply(events::CutBegan{++cuts});
        is_taking_cut = true;
        break;
      case 5:
        if (is_taking_cut) book.apply(events::CutTaken{cuts});
        is_taking_cut = false;
        break;
      case 6:
        if (i % 4 != 0) break;
        book.apply(events::TookOver{book.ledger.term() + 1});
        is_taking_cut = false;
        break;
      case 7:
        if (!book.ledger.failures().empty() && book.ledger.is_drained()) {
          book.apply(events::ErrorRaised{});
        }
        break;
      default:
        if (waits) book.start(number, static_cast<int>(i % 3));
        if (runs) book.finish(number);
    }
  }
  return book;
}

/// Reads all events; returns the bytes of whole records.
std::size_t read_journal(std::span<const std::byte> journal) {
  RecordReader in("a journal", journal.size(), source_of(journal));
  while (const auto packet = in.next()) (void)decode_event(*packet);
  return in.offset();
}

TEST(ClosureJournal, LeadsToTheSameStateWhereverItIsCut) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Book book = random_book(seed);
    EXPECT_EQ(ClosureLedger::replay(book.journal, book.rules), book.ledger) << seed;
    for (std::size_t cut = 0; cut < book.journal.size(); cut += 17) {
      const auto part = std::span(book.journal).first(cut);
      const std::size_t whole = read_journal(part);
      ASSERT_LE(whole, cut);
      // A record that is cut short changes nothing.
      EXPECT_EQ(ClosureLedger::replay(part, book.rules),
                ClosureLedger::replay(part.first(whole), book.rules));
    }
  }
}

TEST(ClosureJournal, ADamagedByteIsFoundUnlessItIsOfTheLastRecord) {
  const Book book = random_book(3);
  const std::size_t last = read_journal(std::span(book.journal).first(book.journal.size() - 1));
  for (std::size_t place = 0; place < book.journal.size(); ++place) {
    auto damaged = book.journal;
    damaged[place] ^= std::byte{0x10};
    try {
      // Of the last record nothing is taken.
      EXPECT_EQ(read_journal(damaged), last) << place;
      EXPECT_GE(place, last);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      EXPECT_LT(place, last) << error.what();
    }
  }
}

TEST(ClosureJournal, ALengthThatPointsBehindTheEndHidesNothing) {
  const Book book = random_book(5);
  auto damaged = book.journal;
  damaged[3] = std::byte{0x7F};  // of the first record
  const std::size_t second = encode_record(events::TookOver{1}).size();
  expect_error(ErrorCode::kDataLoss,
               {"offset 0: expected a whole record", concat("the one at offset ", second, ":")},
               [&] { (void)ClosureLedger::replay(damaged, book.rules); });
}

TEST(ClosureLedger, IsTheSameFromItsBytes) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Book book = random_book(seed);
    const auto bytes = book.ledger.bytes();
    EXPECT_EQ(ClosureLedger::restore(bytes, book.rules), book.ledger) << seed;
    // It goes on as the other one does.
    Book on = book;
    on.ledger = ClosureLedger::restore(bytes, book.rules);
    Book expected = book;
    for (Book* each : {&on, &expected}) {
      each->apply(events::TookOver{each->ledger.term() + 1});
      while (const auto next = each->ledger.next_queued()) each->start(*next);
    }
    EXPECT_EQ(on.ledger, expected.ledger);
  }
  const Book book = random_book(4);
  EXPECT_NE(ClosureLedger::restore(book.ledger.bytes(), {.most_attempts = 7}), book.ledger);
}

TEST(ClosureLedger, RefusesBytesOfNoLedger) {
  const auto bytes = random_book(6).ledger.bytes();
  for (std::size_t size = 0; size < bytes.size(); size += 3) {
    expect_error(ErrorCode::kDataLoss, {concat(size, " bytes that are no state of closures")},
                 [&] { (void)ClosureLedger::restore(std::span(bytes).first(size), {}); });
  }
  // What is restored in spite of a changed byte is a ledger that a journal can begin with.
  int num_refused = 0;
  for (std::size_t place = 0; place < bytes.size(); ++place) {
    auto damaged = bytes;
    damaged[place] ^= std::byte{0x05};
    try {
      const ClosureLedger ledger = ClosureLedger::restore(damaged, {});
      EXPECT_LE(ledger.num_queued() + ledger.num_running(), ledger.next_number());
      EXPECT_EQ(ClosureLedger::restore(ledger.bytes(), {}), ledger);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      EXPECT_THAT(error.message(), ::testing::HasSubstr("no state of closures"));
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, static_cast<int>(bytes.size() / 4));
}

TEST(ClosureError, KeepsAllFailuresAndTheOriginOfTheFirst) {
  const ClosureFailure first{7, 2, 1, ErrorOrigin::kServer, ErrorCode::kUnavailable, "ps 1: gone"};
  const ClosureFailure second{9, 1, 0, ErrorOrigin::kUser, ErrorCode::kOutOfRange, "end"};
  const ClosureError error({first, second});
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error.origin(), ErrorOrigin::kServer);
  EXPECT_EQ(error.closure(), 7u);
  EXPECT_EQ(error.message(),
            "closure 7 on worker 1, attempt 2, ps error: ps 1: gone\n"
            "  also closure 9 on worker 0, attempt 1, user error: end");
}

}  // namespace closure_ledger_test
}  // namespace tutti::internal

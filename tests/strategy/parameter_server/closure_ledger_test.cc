// Tests the coordinator's ledger of closures: numbers, errors, retries, checkpoints and rollbacks.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/closure_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategy/parameter_server/protocol/operation.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace closure_ledger_test {

using State = ClosureLedger::State;
using Kind = AttemptReport::Kind;
using testing::expect_error;

/// ClosureLedger with shorthand functions that act on the current attempt of a closure.
struct Book {
  explicit Book(LedgerRules rules = {.keeps_finished = true}) : ledger(rules) {}

  void schedule(int count) {
    for (int i = 0; i < count; ++i) (void)ledger.schedule();
  }
  void start(std::initializer_list<std::uint64_t> numbers, int worker = 0) {
    for (const std::uint64_t number : numbers) (void)ledger.start(number, worker);
  }
  void finish(std::initializer_list<std::uint64_t> numbers) {
    for (const std::uint64_t number : numbers) ledger.finish(number, attempt(number));
  }
  void do_all(std::initializer_list<std::uint64_t> numbers) { start(numbers), finish(numbers); }
  void fail(std::uint64_t number, const std::string& text = "boom") {
    ledger.fail(
        {number, attempt(number), 0, ErrorOrigin::kUser, ErrorCode::kInvalidArgument, text});
  }
  void put_back(std::uint64_t number, Kind kind, int worker = 0) {
    ledger.put_back(number, attempt(number),
                    {kind, worker, ErrorOrigin::kWorker, ErrorCode::kUnavailable,
                     concat("worker ", worker, " is gone")});
  }
  int attempt(std::uint64_t number) const { return ledger.find(number)->attempts; }
  State state(std::uint64_t number) const { return ledger.find(number)->state; }

  ClosureLedger ledger;
};

TEST(ClosureLedger, AssignsNumbersFromZeroAndDispatchesInOrder) {
  Book book{LedgerRules()};
  book.schedule(3);
  EXPECT_EQ(book.ledger.next_queued(), 0u);
  EXPECT_EQ(book.ledger.start(0, 0), 1);
  book.start({1});
  book.put_back(0, Kind::kInterrupted);
  EXPECT_EQ(book.ledger.next_queued(), 0u);  // a closure that was put back precedes closure 2
  EXPECT_EQ(book.ledger.next_queued_new_to(0), 2u);
  EXPECT_EQ(book.ledger.next_queued_new_to(1), 0u);
  EXPECT_EQ(book.ledger.start(0, 0), 2);  // same number, next attempt
  EXPECT_TRUE(book.ledger.is_current(0, 2));
  EXPECT_FALSE(book.ledger.is_current(0, 1));
  book.finish({1});
  EXPECT_EQ(book.ledger.finished_below(), 0u);
  book.finish({0});
  EXPECT_EQ(book.ledger.finished_below(), 2u);
  EXPECT_EQ(book.ledger.find(0), nullptr);
  EXPECT_EQ(book.ledger.num_queued(), 1u);
}

TEST(ClosureLedger, InvalidEventLeavesStateUnchanged) {
  Book book;
  book.schedule(2);
  book.start({0});
  const ClosureLedger before = book.ledger;
  const std::vector<std::function<void()>> impossible = {
      [&] { book.ledger.start(0, 0); },        [&] { book.ledger.start(9, 0); },
      [&] { book.ledger.finish(0, 2); },       [&] { book.ledger.finish(1, 1); },
      [&] { book.ledger.stop(5, 1); },         [&] { (void)book.ledger.raise_failures(); },
      [&] { book.ledger.put_back(1, 1, {}); }, [&] { book.ledger.fail({1, 1}); },
      [&] { book.ledger.put_back(0, 2, {}); }, [&] { book.ledger.fail({0, 2}); },
      [&] { book.ledger.note_saved(1); }};
  for (const auto& event : impossible) {
    expect_error(ErrorCode::kFailedPrecondition, {"closure ledger"}, event);
    EXPECT_EQ(book.ledger, before);
  }
}

TEST(ClosureLedger, StartsAtClosureNumberFromCheckpoint) {
  ClosureLedger ledger({.keeps_finished = true}, 40, 3);
  EXPECT_EQ(ledger.finished_below(), 40u);
  EXPECT_EQ(ledger.saved_below(), 40u);
  EXPECT_EQ(ledger.generation(), 3u);
  EXPECT_TRUE(ledger.is_drained());
  EXPECT_EQ(ledger.schedule(), 40u);
  expect_error(ErrorCode::kFailedPrecondition, {"39", "later checkpoint"},
               [&] { ledger.note_saved(39); });
}

TEST(ClosureLedger, FirstFailureCancelsQueueAndIsRaisedWhenIdle) {
  Book book;
  book.schedule(6);
  book.start({0, 1, 2, 3});
  book.fail(1, "first");
  EXPECT_EQ(book.ledger.num_queued(), 0u);
  EXPECT_EQ(book.state(4), State::kCancelled);
  expect_error(ErrorCode::kFailedPrecondition, {"not been raised yet"}, [&] { book.schedule(1); });
  expect_error(ErrorCode::kFailedPrecondition, {"still run"},
               [&] { (void)book.ledger.raise_failures(); });
  book.put_back(2, Kind::kInterrupted);  // cancelled instead of retried, because closure 1 failed
  EXPECT_EQ(book.state(2), State::kCancelled);
  book.ledger.stop(3, 1);
  EXPECT_EQ(book.state(3), State::kCancelled);
  book.fail(0, "second");
  const auto failures = book.ledger.raise_failures();
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].text, "first");
  EXPECT_TRUE(book.ledger.failures().empty());
  EXPECT_EQ(book.ledger.finished_below(), 6u);
  book.schedule(1);
  EXPECT_EQ(book.ledger.next_queued(), 6u);
}

TEST(ClosureLedger, ClosureFailsAfterMaximumInterruptedAttempts) {
  Book book;
  book.schedule(2);
  for (int i = 0; i < 3; ++i) book.start({0}, i), book.put_back(0, Kind::kInterrupted, i);
  for (int i = 0; i < 9; ++i) book.start({0}), book.put_back(0, Kind::kNotStarted);
  EXPECT_EQ(book.state(0), State::kQueued);
  book.start({0}, 3);
  book.put_back(0, Kind::kInterrupted, 3);
  ASSERT_EQ(book.ledger.failures().size(), 1u);
  const ClosureFailure& failure = book.ledger.failures()[0];
  EXPECT_EQ(failure.origin, ErrorOrigin::kWorker);
  EXPECT_THAT(failure.text, ::testing::HasSubstr("ended 4 attempts"));
  EXPECT_THAT(failure.text, ::testing::HasSubstr("worker 3: worker 3 is gone"));
  EXPECT_THAT(failure.text, ::testing::HasSubstr("worker 0: worker 0 is gone"));
}

TEST(ClosureLedger, KeepsFinishedClosuresUntilCheckpointContainsThem) {
  Book book;
  book.schedule(3);
  book.do_all({0, 1});
  EXPECT_EQ(book.ledger.finished_below(), 2u);
  ASSERT_NE(book.ledger.find(0), nullptr);
  EXPECT_EQ(book.state(1), State::kFinished);
  book.ledger.note_saved(1);
  EXPECT_EQ(book.ledger.find(0), nullptr);
  ASSERT_NE(book.ledger.find(1), nullptr);
  EXPECT_EQ(book.ledger.saved_below(), 1u);
  expect_error(ErrorCode::kFailedPrecondition, {"3", "not ended"},
               [&] { book.ledger.note_saved(3); });
  book.ledger.note_saved(2);
  EXPECT_EQ(book.ledger.find(1), nullptr);
  EXPECT_EQ(book.state(2), State::kQueued);
}

TEST(ClosureLedger, IsBetweenClosuresOnceAllStartedClosuresEnd) {
  Book book;
  book.schedule(4);
  EXPECT_TRUE(book.ledger.is_between_closures());
  EXPECT_EQ(book.ledger.next_queued(true), std::nullopt);
  book.start({0, 1, 2});
  book.put_back(1, Kind::kInterrupted, 7);
  book.put_back(2, Kind::kNotStarted);  // closure 2 may have started nevertheless
  book.finish({0});
  EXPECT_FALSE(book.ledger.is_between_closures());
  EXPECT_EQ(book.ledger.next_queued(true), 1u);
  EXPECT_EQ(book.ledger.next_queued_new_to(7, true), 2u);
  book.do_all({1});
  EXPECT_FALSE(book.ledger.is_between_closures());
  book.do_all({2});
  EXPECT_TRUE(book.ledger.is_between_closures());  // closure 3 has not started
  EXPECT_EQ(book.ledger.next_queued(true), std::nullopt);
  EXPECT_EQ(book.ledger.next_queued_new_to(7, true), std::nullopt);
  EXPECT_EQ(book.ledger.finished_below(), 3u);
}

TEST(ClosureLedger, RollbackRequeuesClosuresSinceCheckpoint) {
  Book book;
  book.schedule(6);
  book.do_all({0, 1, 3});
  book.ledger.note_saved(1);
  book.start({2, 4});
  book.put_back(4, Kind::kInterrupted);
  book.ledger.roll_back();
  EXPECT_EQ(book.ledger.generation(), 2u);
  EXPECT_EQ(book.ledger.find(0), nullptr);  // the checkpoint contains closure 0
  EXPECT_EQ(book.ledger.finished_below(), 1u);
  EXPECT_EQ(book.ledger.num_queued(), 5u);
  EXPECT_EQ(book.ledger.num_running(), 0u);
  EXPECT_FALSE(book.ledger.is_current(2, 1));  // the rollback cancelled this attempt
  expect_error(ErrorCode::kFailedPrecondition, {"2", "not under way"},
               [&] { book.ledger.finish(2, 1); });
  EXPECT_TRUE(book.ledger.is_between_closures());  // no unfinished closure has changed a server
  EXPECT_TRUE(book.ledger.is_catching_up());
  book.do_all({1});
  EXPECT_EQ(book.ledger.finished_below(), 2u);
  EXPECT_EQ(book.ledger.start(2, 0), 2);
  book.do_all({3});
  // Closures 2 and 4 were unfinished before the rollback.
  EXPECT_FALSE(book.ledger.is_catching_up());
  EXPECT_FALSE(book.ledger.is_between_closures());
  book.finish({2});
  EXPECT_EQ(book.ledger.finished_below(), 4u);
}

/// Skipping closure 0, which was interrupted on worker 0 before the rollback, would let closure 1
/// start first.
TEST(ClosureLedger, ClosuresStartInOrderAfterRollback) {
  Book book;
  book.schedule(2);
  book.start({0}, 0);
  book.put_back(0, Kind::kInterrupted, 0);
  EXPECT_EQ(book.ledger.next_queued_new_to(0), 1u);
  book.ledger.roll_back();
  EXPECT_EQ(book.ledger.next_queued_new_to(0), 0u);
  book.start({0}, 0);
  book.put_back(0, Kind::kInterrupted, 0);
  EXPECT_EQ(book.ledger.next_queued_new_to(0), 1u);  // the next checkpoint waits for closure 0
  EXPECT_FALSE(book.ledger.is_between_closures());
}

TEST(ClosureLedger, RollbackDuringCatchUpRestartsCatchUp) {
  Book book;
  book.schedule(3);
  book.do_all({0, 1});
  book.ledger.roll_back();
  book.do_all({0});
  book.start({1, 2});
  book.ledger.roll_back();
  EXPECT_EQ(book.ledger.generation(), 3u);
  EXPECT_EQ(book.ledger.num_queued(), 3u);
  EXPECT_EQ(book.ledger.num_running(), 0u);
  EXPECT_EQ(book.attempt(0), 2);
  book.do_all({1});
  EXPECT_TRUE(book.ledger.is_catching_up());
  book.do_all({0});
  EXPECT_FALSE(book.ledger.is_catching_up());
  book.ledger.note_saved(2);
  book.ledger.roll_back();
  EXPECT_FALSE(book.ledger.is_catching_up());
  EXPECT_EQ(book.ledger.num_queued(), 1u);
}

TEST(ClosureLedger, FailureDoesNotCancelPreviouslyFinishedClosures) {
  Book book;
  book.schedule(7);
  book.do_all({0, 1, 2, 3});
  book.ledger.roll_back();
  book.start({0, 1, 2, 4, 5});  // closures 3 and 6 stay queued
  book.fail(4);
  EXPECT_EQ(book.state(6), State::kCancelled);
  EXPECT_EQ(book.state(3), State::kQueued);
  book.put_back(0, Kind::kInterrupted);
  EXPECT_EQ(book.state(0), State::kQueued);
  book.ledger.stop(1, book.attempt(1));
  EXPECT_EQ(book.state(1), State::kQueued);
  book.put_back(5, Kind::kInterrupted);
  EXPECT_EQ(book.state(5), State::kCancelled);
  EXPECT_FALSE(book.ledger.is_between_closures());
  expect_error(ErrorCode::kFailedPrecondition, {"still run"},
               [&] { (void)book.ledger.raise_failures(); });
  book.finish({2});
  book.do_all({0, 1, 3});
  EXPECT_FALSE(book.ledger.is_catching_up());
  EXPECT_TRUE(book.ledger.is_drained());
  EXPECT_EQ(book.ledger.raise_failures().size(), 1u);
  EXPECT_EQ(book.ledger.finished_below(), 7u);
}

TEST(ClosureLedger, FailureOfRepeatedClosureEndsCatchUp) {
  Book book;
  book.schedule(2);
  book.do_all({0});
  book.ledger.roll_back();
  book.start({0});
  book.fail(0);
  EXPECT_FALSE(book.ledger.is_catching_up());
  EXPECT_EQ(book.state(1), State::kCancelled);
  book.ledger.roll_back();  // failed closures are not repeated
  EXPECT_EQ(book.state(0), State::kFailed);
  EXPECT_TRUE(book.ledger.is_drained());
  EXPECT_EQ(book.ledger.finished_below(), 2u);
}

TEST(ClosureLedger, RollbackDuringFailureCancelsRunningAttempts) {
  Book book;
  book.schedule(4);
  book.do_all({0});
  book.start({1, 2});
  book.fail(1);
  book.ledger.roll_back();
  EXPECT_EQ(book.state(0), State::kQueued);
  EXPECT_EQ(book.state(1), State::kFailed);
  EXPECT_EQ(book.state(2), State::kCancelled);
  EXPECT_EQ(book.state(3), State::kCancelled);
  book.do_all({0});
  EXPECT_TRUE(book.ledger.is_between_closures());
  EXPECT_EQ(book.ledger.raise_failures()[0].closure, 1u);
  book.ledger.note_saved(4);
  EXPECT_EQ(book.ledger.find(1), nullptr);
}

TEST(ClosureLedger, EqualityIgnoresStartOrder) {
  Book a, b;
  a.schedule(2), b.schedule(2);
  EXPECT_EQ(a.ledger, b.ledger);
  a.start({0, 1}), b.start({1, 0});  // the orders differ, but the states are equal
  EXPECT_EQ(a.ledger, b.ledger);
  a.finish({1});
  EXPECT_NE(a.ledger, b.ledger);
  EXPECT_NE(ClosureLedger({.most_attempts = 7}), ClosureLedger());
}

/// Compares the ledger's counts with counts over all closures.
void expect_counts(const ClosureLedger& ledger) {
  std::size_t num_queued = 0, num_running = 0, num_interrupted = 0, num_repeated = 0;
  for (std::uint64_t number = 0; number < ledger.next_number(); ++number) {
    const auto* closure = ledger.find(number);
    if (closure == nullptr) continue;
    num_queued += closure->state == State::kQueued ? 1 : 0;
    num_running += closure->state == State::kRunning ? 1 : 0;
    num_interrupted += closure->is_interrupted ? 1 : 0;
    num_repeated += closure->has_finished && !closure->has_ended() ? 1 : 0;
    EXPECT_TRUE(number >= ledger.finished_below() || closure->has_ended()) << number;
    EXPECT_GE(number, ledger.saved_below());
  }
  EXPECT_EQ(ledger.num_queued(), num_queued);
  EXPECT_EQ(ledger.num_running(), num_running);
  EXPECT_EQ(ledger.is_between_closures(), num_interrupted == 0);
  EXPECT_EQ(ledger.is_catching_up(), num_repeated > 0);
  EXPECT_EQ(ledger.has_only_repeats(), ledger.num_queued() + ledger.num_running() == num_repeated);
  EXPECT_LE(ledger.saved_below(), ledger.finished_below());
}

TEST(ClosureLedger, CountsAreConsistentUnderRandomEvents) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Book book;
    const RandomStream random({.seed = seed});
    for (std::uint64_t i = 0; i < 100; ++i) {
      const std::uint64_t number = random.below(3 * i + 1, book.ledger.next_number() + 1);
      const auto* closure = book.ledger.find(number);
      const bool runs = closure != nullptr && closure->state == State::kRunning;
      const bool waits = closure != nullptr && closure->state == State::kQueued;
      const std::uint64_t event = random.below(3 * i, 12);
      if (event == 0 && book.ledger.failures().empty()) book.schedule(2);
      if (event == 1 && runs) book.fail(number);
      if (event == 2 && runs) {
        book.put_back(number, static_cast<Kind>(1 + i % 2), static_cast<int>(i % 5));
      }
      if (event == 3 && runs) book.ledger.stop(number, closure->attempts);
      if (event == 4) book.ledger.note_saved(book.ledger.finished_below());
      if (event == 5 && i % 4 == 0) book.ledger.roll_back();
      if (event == 6 && !book.ledger.failures().empty() && book.ledger.is_drained()) {
        (void)book.ledger.raise_failures();
      }
      if (event > 6 && waits) book.start({number}, static_cast<int>(i % 3));
      if (event > 6 && runs) book.finish({number});
      expect_counts(book.ledger);
    }
  }
}

TEST(ClosureId, IsOrderedByGenerationThenNumber) {
  const std::uint64_t last = (std::uint64_t{1} << kClosureNumberBits) - 1;
  EXPECT_LT(closure_id(1, last), closure_id(2, 0));
  EXPECT_LT(closure_id(2, 7), closure_id(2, 8));
  EXPECT_EQ(closure_number(closure_id(5, last)), last);
  EXPECT_EQ(closure_id(5, last) >> kClosureNumberBits, 5u);
}

TEST(ClosureError, ReportsAllFailuresAndOriginOfFirst) {
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

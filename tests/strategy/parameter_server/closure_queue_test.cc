// The closure queue among threads, also with room for only two entries.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/closure_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"

namespace tutti::internal {
namespace closure_queue_test {

using testing::expect_error;
using testing::HangWatchdog;
using namespace std::chrono_literals;
using Handout = ClosureQueue::Handout;

std::shared_ptr<const ScheduledWork> scheduled(const std::string& step = "step") {
  return std::make_shared<const ScheduledWork>(step, Nest(Nest::List()));
}

/// Returns the code of the error that ended `work`; kOk: none did.
ErrorCode code_of(const std::shared_ptr<const ScheduledWork>& work) {
  if (work->result()->state() == RemoteValueState::kNotReady) return ErrorCode::kOk;
  try {
    (void)work->result()->get(TimePoint::max());
    return ErrorCode::kOk;
  } catch (const Error& error) {
    return error.code();
  }
}

AttemptReport lost(int worker = 0) {
  return {AttemptReport::Kind::kNotStarted, worker, ErrorOrigin::kWorker, ErrorCode::kUnavailable,
          "gone"};
}

TimePoint soon() { return deadline_after(Clock::system().now(), 20ms); }

ClosureTakers only(int worker) {
  return [worker] { return std::vector<int>{worker}; };
}

std::optional<Handout> get(ClosureQueue& queue, int worker, TimePoint deadline = TimePoint::max()) {
  return queue.get(only(worker), deadline);
}

bool user_failure(ClosureQueue& queue, const Handout& handout, const std::string& text) {
  return queue.mark_failed(handout, ErrorCode::kInvalidArgument, ErrorOrigin::kUser, text);
}

/// By the most that may be queued.
class ClosureQueueTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  ClosureQueueOptions options(int window = 2) const {
    ClosureQueueOptions options;
    options.most_queued = GetParam();
    options.window = window;
    return options;
  }
};

TEST_P(ClosureQueueTest, ReturnedClosureIsHandedOutAgainUntilFinished) {
  ClosureQueue queue(options());
  const auto work = scheduled();
  queue.put(work);
  auto handout = get(queue, 0);
  EXPECT_EQ(handout->work, work);
  EXPECT_FALSE(queue.done());
  EXPECT_TRUE(queue.put_back(*handout, lost()));
  EXPECT_FALSE(queue.done());
  const auto again = get(queue, 0);
  EXPECT_EQ(again->work, work);
  EXPECT_EQ(again->number, handout->number);
  EXPECT_EQ(again->attempt, handout->attempt + 1);
  EXPECT_FALSE(queue.mark_finished(*handout));  // the first attempt counts no more
  EXPECT_TRUE(queue.mark_finished(*again));
  EXPECT_TRUE(queue.done());
  queue.wait();
  EXPECT_EQ(code_of(work), ErrorCode::kOk);
}

TEST_P(ClosureQueueTest, ReturnedClosuresRunExactlyOnce) {
  HangWatchdog watchdog("two threads on a closure queue");
  ClosureQueue queue(options(1));
  std::array<std::atomic<int>, 5> num_runs{};
  std::vector<std::unique_ptr<Thread>> threads;
  for (int worker = 0; worker < 2; ++worker) {
    threads.push_back(Executor::system().start("queue-worker", [&queue, &num_runs, worker] {
      bool has_put_back = false;
      while (auto handout = get(queue, worker)) {
        if (!std::exchange(has_put_back, true)) {
          queue.put_back(*handout, lost(worker));
          continue;
        }
        ++num_runs.at(handout->number);
        queue.mark_finished(*handout);
      }
    }));
  }
  for (int i = 0; i < 5; ++i) queue.put(scheduled());
  for (int i = 0; i < 4; ++i) queue.wait();
  queue.stop();
  for (auto& thread : threads) thread->join();
  for (const auto& runs : num_runs) EXPECT_EQ(runs, 1);
}

TEST_P(ClosureQueueTest, WaitThrowsTheFailureOnceAfterAllInFlightEnd) {
  HangWatchdog watchdog("wait() beside a failure");
  ClosureQueue queue(options());
  const auto failing = scheduled(), running = scheduled();
  queue.put(failing), queue.put(running);
  const auto first = get(queue, 0), second = get(queue, 0);
  user_failure(queue, *first, "boom");
  expect_error(ErrorCode::kDeadlineExceeded, {"closure 1 on worker 0 (attempt 1)"},
               [&] { queue.wait(soon()); });
  std::atomic<bool> has_ended{false};
  const auto thread = Executor::system().start("ends", [&] {
    Clock::system().sleep_for(20ms);
    has_ended = true;
    queue.mark_finished(*second);
  });
  try {
    queue.wait();
    ADD_FAILURE() << "no error";
  } catch (const ClosureError& error) {
    EXPECT_TRUE(has_ended);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.origin(), ErrorOrigin::kUser);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("boom"));
  }
  EXPECT_TRUE(queue.done());
  queue.wait();
  EXPECT_EQ(code_of(failing), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(running), ErrorCode::kOk);
}

TEST_P(ClosureQueueTest, DoneThrowsTheFailure) {
  ClosureQueue queue(options());
  queue.put(scheduled());
  const auto handout = get(queue, 0);
  EXPECT_FALSE(queue.done());
  user_failure(queue, *handout, "boom");
  expect_error(ErrorCode::kInvalidArgument, {"boom"}, [&] { queue.done(); });
  EXPECT_TRUE(queue.done());
}

TEST_P(ClosureQueueTest, OnlyTheFirstErrorIsThrownAfterTheSecondEnds) {
  HangWatchdog watchdog("two failures");
  for (const bool by_put : {false, true}) {
    ClosureQueue queue(options());
    const auto waiting = scheduled(), unlucky = scheduled();
    queue.put(scheduled()), queue.put(scheduled());
    const auto first = get(queue, 0), second = get(queue, 0);
    queue.put(waiting);
    EXPECT_FALSE(second->token->is_cancelled());
    user_failure(queue, *first, "Some error");
    EXPECT_TRUE(second->token->is_cancelled());
    EXPECT_EQ(queue.num_queued(), 0u);
    EXPECT_EQ(code_of(waiting), ErrorCode::kCancelled);
    const auto thread = Executor::system().start("ends", [&] {
      Clock::system().sleep_for(20ms);
      queue.mark_failed(*second, ErrorCode::kCancelled, ErrorOrigin::kUser, "cancellation error");
    });
    try {
      by_put ? void(queue.put(unlucky)) : queue.wait();
      ADD_FAILURE() << "no error";
    } catch (const ClosureError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.failures()[0].text, ::testing::HasSubstr("Some error"));
      EXPECT_EQ(error.failures().size(), 2u);  // all are kept
    }
    EXPECT_EQ(queue.num_running(), 0u);
    EXPECT_EQ(code_of(unlucky), by_put ? ErrorCode::kCancelled : ErrorCode::kOk);
    EXPECT_EQ(queue.ledger().next_number(), 3u);  // it got no number
    EXPECT_TRUE(queue.done());
  }
}

TEST_P(ClosureQueueTest, ConcurrentThreadsLoseNoWakeUp) {
  HangWatchdog watchdog("ten threads on a closure queue");
  ClosureQueue queue(options(1));
  std::vector<std::unique_ptr<Thread>> threads;
  for (int worker = 0; worker < 10; ++worker) {
    threads.push_back(Executor::system().start("queue-worker", [&queue, worker] {
      for (int action = 0; action < 20; ++action) {
        const auto handout = get(queue, worker);
        if (action % 2 == 0) {
          queue.put_back(*handout, lost(worker));
        } else {
          queue.mark_finished(*handout);
        }
      }
    }));
  }
  for (int i = 0; i < 100; ++i) queue.put(scheduled());
  queue.wait();
  EXPECT_TRUE(queue.done());
  EXPECT_EQ(queue.num_ended(), 100u);
  EXPECT_EQ(queue.ledger().finished_below(), 100u);
}

INSTANTIATE_TEST_SUITE_P(Unbounded, ClosureQueueTest, ::testing::Values(4096));
INSTANTIATE_TEST_SUITE_P(TwoEntries, ClosureQueueTest, ::testing::Values(2));

TEST(ClosureQueue, PutWaitsForRoomAndGetForTheWindow) {
  HangWatchdog watchdog("a full queue");
  ClosureQueue queue({.most_queued = 2});
  queue.put(scheduled()), queue.put(scheduled());
  const auto refused = scheduled();
  expect_error(ErrorCode::kDeadlineExceeded, {"2 closures queued"},
               [&] { queue.put(refused, soon()); });
  EXPECT_EQ(code_of(refused), ErrorCode::kCancelled);
  const auto first = get(queue, 0);
  queue.put(scheduled());
  EXPECT_EQ(get(queue, 0)->number, 1u);
  EXPECT_FALSE(get(queue, 0, soon()));  // has two
  EXPECT_EQ(get(queue, 1)->number, 2u);
  queue.put(scheduled());
  queue.mark_finished(*first);
  EXPECT_EQ(get(queue, 0)->number, 3u);
}

TEST(ClosureQueue, AnIdleWorkerGetsWhatAnotherHasNotBegun) {
  HangWatchdog watchdog("a spare closure");
  ClosureQueue queue;
  queue.put(scheduled()), queue.put(scheduled());
  get(queue, 0);
  const auto second = get(queue, 0);
  EXPECT_FALSE(get(queue, 1));  // at once: there is a spare one
  const auto spare = queue.spare(only(1));
  ASSERT_TRUE(spare);
  EXPECT_EQ(spare->number, 1u);
  EXPECT_EQ(spare->worker, 0);
  EXPECT_FALSE(queue.spare(only(1)));  // once
  EXPECT_FALSE(queue.spare(only(0)));
  EXPECT_TRUE(queue.put_back(*spare, lost(0)));
  const auto moved = get(queue, 1);
  EXPECT_EQ(moved->number, 1u);
  EXPECT_EQ(moved->attempt, 2);
  EXPECT_FALSE(queue.mark_finished(*second));
  EXPECT_TRUE(queue.mark_finished(*moved));
}

TEST(ClosureQueue, AWorkerWithLessToDoGoesFirst) {
  ClosureQueue queue;
  for (int i = 0; i < 6; ++i) queue.put(scheduled());
  const ClosureTakers all = [] { return std::vector<int>{0, 1, 2}; };
  get(queue, 1);
  for (const int expected : {0, 2, 0, 1, 2}) EXPECT_EQ(queue.get(all)->worker, expected);
  EXPECT_FALSE(queue.get(all, soon()));
  queue.put(scheduled());
  EXPECT_FALSE(queue.get(all, soon()));  // each has two
}

TEST(ClosureQueue, AnotherWorkerTriesWhatOneCouldNotDo) {
  ClosureQueue queue;
  queue.put(scheduled());
  const ClosureTakers both = [] { return std::vector<int>{0, 1}; };
  const AttemptReport gone{AttemptReport::Kind::kWorkerLost, 0};
  const auto first = queue.get(both);
  EXPECT_EQ(first->worker, 0);
  queue.put_back(*first, gone);
  const auto second = queue.get(both);
  EXPECT_EQ(second->worker, 1);
  queue.put_back(*second, {AttemptReport::Kind::kTransient, 1});
  EXPECT_EQ(get(queue, 1)->worker, 1);  // there is no other one
}

TEST(ClosureQueue, StopEndsEveryWait) {
  HangWatchdog watchdog("stop()");
  ClosureQueue queue({.most_queued = 1});
  const auto running = scheduled(), queued = scheduled();
  queue.put(running);
  const auto handout = get(queue, 0);
  queue.put(queued);
  std::atomic<int> num_ended{0};
  std::vector<std::unique_ptr<Thread>> threads;
  const auto waits = [&](auto body) {
    threads.push_back(Executor::system().start("waits", [&num_ended, body] {
      expect_error(ErrorCode::kCancelled, {"was stopped"}, body);
      ++num_ended;
    }));
  };
  waits([&] { queue.put(scheduled()); });
  waits([&] { queue.wait(); });
  threads.push_back(Executor::system().start("waits", [&] {
    EXPECT_FALSE(queue.get([] { return std::vector<int>(); }));
    ++num_ended;
  }));
  Clock::system().sleep_for(20ms);
  queue.stop();
  for (auto& thread : threads) thread->join();
  EXPECT_EQ(num_ended, 3);
  EXPECT_TRUE(handout->token->is_cancelled());
  EXPECT_EQ(code_of(running), ErrorCode::kCancelled);
  EXPECT_EQ(code_of(queued), ErrorCode::kCancelled);
  EXPECT_FALSE(queue.mark_finished(*handout));
}

TEST(ClosureQueue, ALateResultOfAVoidedAttemptCountsForNothing) {
  ClosureQueue queue;
  const auto a = scheduled(), b = scheduled();
  queue.put(a), queue.put(b);
  const auto first = get(queue, 0), second = get(queue, 0);
  int num_delivered = 0;
  queue.mark_finished(*first, [&] { ++num_delivered; });
  EXPECT_EQ(queue.news()->said(), (CoordinatorNews::Said{1, 1}));
  EXPECT_EQ(queue.take_over(), 2u);
  EXPECT_TRUE(second->token->is_cancelled());
  EXPECT_EQ(queue.news()->said(), (CoordinatorNews::Said{2, 1}));
  EXPECT_FALSE(queue.mark_finished(*second, [&] { ++num_delivered; }));
  const auto again = get(queue, 0);
  EXPECT_EQ(again->number, 1u);
  EXPECT_EQ(again->work, b);
  EXPECT_EQ(again->term, 2u);
  EXPECT_TRUE(queue.mark_finished(*again, [&] { ++num_delivered; }));
  EXPECT_EQ(num_delivered, 2);
  queue.wait();
}

TEST(ClosureQueue, AJournalGivesTheNextCoordinatorItsClosures) {
  std::vector<std::byte> journal;
  ClosureQueueOptions options;
  options.journal = [&](const ClosureEvent& event) {
    const std::vector<std::byte> record = encode_record(event);
    journal.insert(journal.end(), record.begin(), record.end());
  };
  {
    ClosureQueue queue(options);
    for (const char* step : {"a", "b", "c"}) queue.put(scheduled(step));
    const auto first = get(queue, 0);
    get(queue, 0);
    queue.mark_finished(*first);
  }  // dies
  ClosureQueue next(options, ClosureLedger::replay(journal));
  EXPECT_EQ(next.term(), 2u);
  const auto handout = get(next, 0);
  EXPECT_EQ(handout->number, 1u);
  EXPECT_EQ(handout->attempt, 2);
  EXPECT_EQ(handout->work->step(), "b");
  const auto last = get(next, 0);
  EXPECT_EQ(last->number, 2u);
  EXPECT_EQ(last->work->step(), "c");
  EXPECT_EQ(ClosureLedger::replay(journal), next.ledger());
}

TEST(ClosureQueue, AJournalThatCannotBeWrittenStopsIt) {
  int left = 3;
  ClosureQueueOptions options;
  options.journal = [&](const ClosureEvent&) {
    if (left-- == 0) fail(ErrorCode::kResourceExhausted, "journal: no space left");
  };
  ClosureQueue queue(options);  // one record
  const auto work = scheduled();
  queue.put(work);
  const auto handout = get(queue, 0);
  expect_error(ErrorCode::kResourceExhausted, {"no space"}, [&] { queue.mark_finished(*handout); });
  EXPECT_EQ(code_of(work), ErrorCode::kCancelled);
  expect_error(ErrorCode::kCancelled, {"was stopped"}, [&] { queue.wait(); });
}

TEST(ClosureContextTest, IsOfTheThreadAndDrawsByTheClosuresNumber) {
  EXPECT_EQ(ClosureContext::current(), nullptr);
  const auto news = std::make_shared<CoordinatorNews>();
  const auto token = std::make_shared<CancellationToken>();
  const ClosureContext first(7, 1, 0, 1, news, token), second(7, 2, 3, 2, news);
  std::uint64_t step = 0;
  {
    const ClosureScope scope(first);
    EXPECT_EQ(ClosureContext::current(), &first);
    step = current_random_context().step;
    {
      const ClosureScope inner(second, 1);
      EXPECT_EQ(ClosureContext::current(), &second);
      EXPECT_EQ(current_random_context().step, step);  // another attempt, the same numbers
      EXPECT_EQ(current_random_context().replica, 1u);
    }
    EXPECT_EQ(ClosureContext::current(), &first);
    token->cancel();
    expect_error(ErrorCode::kCancelled, {"closure 7"}, [&] { first.throw_if_cancelled(); });
  }
  EXPECT_EQ(ClosureContext::current(), nullptr);
  EXPECT_EQ(step, 7u);
  news->hear({1, 5});
  news->hear({1, 4});
  EXPECT_EQ(first.finished_below(), 5u);
  EXPECT_EQ(second.finished_below(), 0u);  // said under another term
  news->hear({2, 3});
  news->hear({1, 9});
  EXPECT_EQ(first.finished_below(), 0u);
  EXPECT_EQ(second.finished_below(), 3u);
}

}  // namespace closure_queue_test
}  // namespace tutti::internal

// Tests the closure queue: dispatch, failures, retries, rollbacks, pauses and concurrent threads.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/closure_queue.h"

#include <array>
#include <atomic>

#include "tests/strategy/parameter_server/coordinator_kit.h"
#include "tests/support/ranks.h"

namespace tutti::internal {
namespace closure_queue_test {

using testing::expect_closure_error;
using testing::expect_error;
using testing::HangWatchdog;
using namespace std::chrono_literals;
using AssignedClosure = ClosureQueue::AssignedClosure;

std::shared_ptr<const ScheduledWork> scheduled(const std::string& step = "step") {
  return std::make_shared<const ScheduledWork>(step, Nest(Nest::List()));
}

/// Returns the code of the error that ended `work`; kOk if there was none.
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

std::optional<AssignedClosure> get(ClosureQueue& queue, int worker,
                                   TimePoint deadline = TimePoint::max()) {
  return queue.get(worker, deadline);
}

bool user_failure(ClosureQueue& queue, const AssignedClosure& assigned, const std::string& text) {
  return queue.mark_failed(assigned, ErrorCode::kInvalidArgument, ErrorOrigin::kUser, text);
}

/// Returns options for a queue with room for two closures.
ClosureQueueOptions two_entries(int window = 2) {
  ClosureQueueOptions options;
  options.most_queued = 2;
  options.window = window;
  return options;
}

/// A worker may be lost while the queue's lock is held.
TEST(ClosureQueue, WorkerLostDuringSelectionStillGetsClosure) {
  ClosureQueueOptions options;
  int num_asked = 0;
  // The first two queries succeed: one counts the present workers, the other checks this worker.
  options.is_present = [&](int) { return ++num_asked <= 2; };
  options.first_number = 1000;
  ClosureQueue queue(options);
  queue.put(scheduled());
  const auto assigned = get(queue, 0, soon());
  ASSERT_TRUE(assigned.has_value());
  EXPECT_EQ(assigned->number, 1000u);
  EXPECT_EQ(num_asked, 2);
}

TEST(ClosureQueue, ReturnedClosureIsDispatchedAgainUntilFinished) {
  ClosureQueue queue(two_entries());
  const auto work = scheduled();
  queue.put(work);
  auto assigned = get(queue, 0);
  EXPECT_EQ(assigned->work, work);
  EXPECT_FALSE(queue.done());
  EXPECT_TRUE(queue.put_back(*assigned, lost()));
  EXPECT_FALSE(queue.done());
  const auto again = get(queue, 0);
  EXPECT_EQ(again->work, work);
  EXPECT_EQ(again->number, assigned->number);
  EXPECT_EQ(again->attempt, assigned->attempt + 1);
  EXPECT_FALSE(queue.mark_finished(*assigned));  // the first attempt no longer counts
  EXPECT_TRUE(queue.mark_finished(*again));
  EXPECT_TRUE(queue.done());
  queue.wait();
  EXPECT_EQ(code_of(work), ErrorCode::kOk);
}

TEST(ClosureQueue, ReturnedClosurePrefersDifferentIdleWorker) {
  HangWatchdog watchdog("a closure that was put back");
  ClosureQueueOptions options;
  options.num_workers = 2;
  options.window = 1;
  ClosureQueue queue(options);
  queue.put(scheduled()), queue.put(scheduled());
  const auto of_0 = get(queue, 0, soon()), of_1 = get(queue, 1, soon());
  const AttemptReport failed{AttemptReport::Kind::kInterrupted, 0};
  EXPECT_TRUE(queue.put_back(*of_0, failed));
  const auto again = get(queue, 0, soon());  // worker 1 is busy, so worker 0 retries
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->number, of_0->number);
  EXPECT_TRUE(queue.mark_finished(*of_1));
  EXPECT_TRUE(queue.put_back(*again, failed));
  EXPECT_FALSE(get(queue, 0, soon()));
  EXPECT_EQ(get(queue, 1, soon())->number, of_0->number);
}

TEST(ClosureQueue, ReturnedClosuresRunExactlyOnce) {
  HangWatchdog watchdog("two threads on a closure queue");
  ClosureQueue queue(two_entries(1));
  std::array<std::atomic<int>, 5> num_runs{};
  expect_on_ranks(3, [&](int worker) {
    if (worker == 2) {
      for (int i = 0; i < 5; ++i) queue.put(scheduled());
      for (int i = 0; i < 4; ++i) queue.wait();
      queue.stop();
    }
    bool has_put_back = false;
    while (auto assigned = get(queue, worker)) {
      if (!std::exchange(has_put_back, true)) {
        queue.put_back(*assigned, lost(worker));
        continue;
      }
      ++num_runs.at(assigned->number);
      queue.mark_finished(*assigned);
    }
  });
  for (const auto& runs : num_runs) EXPECT_EQ(runs, 1);
}

TEST(ClosureQueue, WaitThrowsFailureOnceAfterInFlightClosuresEnd) {
  HangWatchdog watchdog("wait() after a failure");
  ClosureQueue queue(two_entries());
  const auto failing = scheduled(), running = scheduled();
  queue.put(failing), queue.put(running);
  const auto first = get(queue, 0), second = get(queue, 0);
  user_failure(queue, *first, "boom");
  EXPECT_ERROR(queue.wait(soon()), kDeadlineExceeded, "closure 1 on worker 0 (attempt 1)");
  std::atomic<bool> has_ended{false};
  const auto thread = Executor::system().start("ends", [&] {
    Clock::system().sleep_for(20ms);
    has_ended = true;
    queue.mark_finished(*second);
  });
  expect_closure_error(ErrorOrigin::kUser, ErrorCode::kInvalidArgument, "boom",
                       [&] { queue.wait(); });
  EXPECT_TRUE(has_ended);
  EXPECT_TRUE(queue.done());
  queue.wait();
  EXPECT_EQ(code_of(failing), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(running), ErrorCode::kOk);
}

TEST(ClosureQueue, DoneThrowsErrorOfFailedClosure) {
  ClosureQueue queue(two_entries());
  queue.put(scheduled());
  const auto assigned = get(queue, 0);
  EXPECT_FALSE(queue.done());
  user_failure(queue, *assigned, "boom");
  EXPECT_ERROR(queue.done(), kInvalidArgument, "boom");
  EXPECT_TRUE(queue.done());
}

TEST(ClosureQueue, OnlyFirstOfTwoFailuresIsThrown) {
  HangWatchdog watchdog("two failures");
  for (const bool by_put : {false, true}) {
    ClosureQueue queue(two_entries());
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
      EXPECT_EQ(error.failures().size(), 2u);  // both failures are reported
    }
    EXPECT_EQ(queue.num_running(), 0u);
    EXPECT_EQ(code_of(unlucky), by_put ? ErrorCode::kCancelled : ErrorCode::kOk);
    EXPECT_EQ(queue.ledger().next_number(), 3u);  // `unlucky` got no number
    EXPECT_TRUE(queue.done());
  }
}

TEST(ClosureQueue, AllConcurrentThreadsAreWoken) {
  HangWatchdog watchdog("ten threads on a closure queue");
  ClosureQueue queue(two_entries(1));
  expect_on_ranks(11, [&](int worker) {
    if (worker == 10) {
      for (int i = 0; i < 100; ++i) queue.put(scheduled());
      return queue.wait();
    }
    for (int action = 0; action < 20; ++action) {
      const auto assigned = get(queue, worker);
      if (action % 2 == 0) {
        queue.put_back(*assigned, lost(worker));
      } else {
        queue.mark_finished(*assigned);
      }
    }
  });
  EXPECT_TRUE(queue.done());
  EXPECT_EQ(queue.num_ended(), 100u);
  EXPECT_EQ(queue.ledger().finished_below(), 100u);
}

TEST(ClosureQueue, PutBlocksWhenFullAndGetLimitsClosuresPerWorker) {
  HangWatchdog watchdog("a full queue");
  ClosureQueue queue({.most_queued = 2});
  queue.put(scheduled()), queue.put(scheduled());
  const auto refused = scheduled();
  EXPECT_ERROR(queue.put(refused, soon()), kDeadlineExceeded, "2 closures queued");
  EXPECT_EQ(code_of(refused), ErrorCode::kCancelled);
  const auto first = get(queue, 0);
  queue.put(scheduled());
  EXPECT_EQ(get(queue, 0)->number, 1u);
  EXPECT_FALSE(get(queue, 0, soon()));  // worker 0 already has two closures
  EXPECT_EQ(get(queue, 1)->number, 2u);
  queue.put(scheduled());
  queue.mark_finished(*first);
  EXPECT_EQ(get(queue, 0)->number, 3u);
}

TEST(ClosureQueue, BusyWorkerLeavesClosureToIdleWorker) {
  HangWatchdog watchdog("the end of a queue");
  ClosureQueue queue({.num_workers = 3});
  for (int i = 0; i < 4; ++i) queue.put(scheduled());
  EXPECT_EQ(get(queue, 0)->number, 0u);
  EXPECT_EQ(get(queue, 0)->number, 1u);
  EXPECT_EQ(get(queue, 1)->number, 2u);
  EXPECT_FALSE(get(queue, 1, soon()));  // closure 3 starts sooner on worker 2, which is idle
  EXPECT_EQ(get(queue, 2)->number, 3u);
}

TEST(ClosureQueue, LeastBusyWorkerIsServedFirst) {
  HangWatchdog watchdog("waiting workers");
  ClosureQueue queue({.num_workers = 3});
  queue.put(scheduled());
  (void)get(queue, 1);
  std::atomic<int> num_waiting{0};
  std::array<std::atomic<std::uint64_t>, 3> got{};
  std::vector<std::unique_ptr<Thread>> threads;
  for (int worker = 0; worker < 3; ++worker) {
    threads.push_back(Executor::system().start("worker", [&, worker] {
      ++num_waiting;
      got.at(static_cast<std::size_t>(worker)) = get(queue, worker)->number;
    }));
  }
  while (num_waiting < 3) Clock::system().sleep_for(1ms);
  Clock::system().sleep_for(20ms);  // all three threads are waiting now
  for (int i = 0; i < 5; ++i) queue.put(scheduled());
  threads.clear();
  EXPECT_EQ(got[0], 1u);
  EXPECT_EQ(got[2], 2u);
  EXPECT_EQ(got[1], 3u);  // worker 1 already has a closure, so it is served last
}

TEST(ClosureQueue, FailedAttemptIsRetriedOnDifferentWorker) {
  bool is_first_present = true;
  ClosureQueueOptions options;
  options.num_workers = 2;
  options.is_present = [&](int worker) { return worker == 1 || is_first_present; };
  ClosureQueue queue(options);
  queue.put(scheduled());
  const auto first = get(queue, 0);
  queue.put_back(*first, {AttemptReport::Kind::kInterrupted, 0});
  EXPECT_FALSE(get(queue, 0, soon()));
  const auto second = get(queue, 1);
  queue.put_back(*second, {AttemptReport::Kind::kInterrupted, 1});
  EXPECT_FALSE(get(queue, 1, soon()));
  is_first_present = false;
  EXPECT_FALSE(get(queue, 0, soon()));
  EXPECT_EQ(get(queue, 1)->number, 0u);  // no other worker is present
}

TEST(ClosureQueue, UnclaimedClosureCanBeFailed) {
  ClosureQueue queue({.is_present = [](int) { return false; }});
  queue.fail_next(ErrorCode::kUnavailable, ErrorOrigin::kWorker, "there is none");
  const auto work = scheduled();
  queue.put(work);
  EXPECT_FALSE(get(queue, 0, soon()));
  queue.fail_next(ErrorCode::kUnavailable, ErrorOrigin::kWorker, "there is none");
  expect_closure_error(ErrorOrigin::kWorker, ErrorCode::kUnavailable, "there is none",
                       [&] { queue.wait(); });
}

TEST(ClosureQueue, StopWakesEveryWaiter) {
  HangWatchdog watchdog("stop()");
  ClosureQueue queue({.most_queued = 1, .is_present = [](int worker) { return worker == 0; }});
  const auto running = scheduled(), queued = scheduled();
  queue.put(running);
  const auto assigned = get(queue, 0);
  queue.put(queued);
  expect_on_ranks(4, [&](int rank) {
    if (rank == 0) EXPECT_ERROR(queue.put(scheduled()), kCancelled, "was stopped");
    if (rank == 1) EXPECT_ERROR(queue.wait(), kCancelled, "was stopped");
    if (rank == 2) {
      EXPECT_FALSE(get(queue, 1));
    }
    if (rank < 3) return;
    Clock::system().sleep_for(20ms);  // the other threads are waiting now
    queue.stop();
  });
  EXPECT_TRUE(assigned->token->is_cancelled());
  EXPECT_EQ(code_of(running), ErrorCode::kCancelled);
  EXPECT_EQ(code_of(queued), ErrorCode::kCancelled);
  EXPECT_FALSE(queue.mark_finished(*assigned));
}

ClosureQueueOptions keeping() {
  ClosureQueueOptions options;
  options.rules.keeps_finished = true;
  return options;
}

TEST(ClosureQueue, RollbackRepeatsClosuresSinceCheckpoint) {
  ClosureQueue queue(keeping());
  const auto a = scheduled("a"), b = scheduled("b"), c = scheduled("c");
  queue.put(a), queue.put(b), queue.put(c);
  int num_delivered = 0;
  const auto deliver = [&] { ++num_delivered; };
  queue.mark_finished(*get(queue, 0), deliver);
  queue.note_saved(1);
  queue.mark_finished(*get(queue, 0), deliver);
  const auto third = get(queue, 0);
  EXPECT_EQ(queue.watermark()->value(), closure_id(1, 2));
  queue.roll_back();
  EXPECT_TRUE(third->token->is_cancelled());
  EXPECT_EQ(queue.watermark()->value(), closure_id(2, 1));
  EXPECT_FALSE(queue.mark_finished(*third, deliver));  // an attempt from before the rollback
  const auto again = get(queue, 0, soon()), last = get(queue, 0, soon());
  ASSERT_TRUE(again && last);
  EXPECT_EQ(again->work, b);
  EXPECT_EQ(again->id, closure_id(2, 1));
  EXPECT_EQ(last->work, c);
  EXPECT_TRUE(queue.mark_finished(*again, deliver));
  EXPECT_EQ(num_delivered, 2);  // the result of b had already been delivered
  EXPECT_TRUE(queue.mark_finished(*last, deliver));
  EXPECT_EQ(num_delivered, 3);
  queue.wait();
}

TEST(ClosureQueue, KeepsArgumentsUntilClosureIsCheckpointed) {
  ClosureQueue queue(keeping());
  const auto large = std::make_shared<const ScheduledWork>("a", Nest(Tensor::zeros({1000})));
  queue.put(large), queue.put(scheduled());
  EXPECT_EQ(queue.num_held_bytes(), 0u);
  const auto first = get(queue, 0), second = get(queue, 0);
  queue.mark_finished(*second);
  EXPECT_EQ(queue.num_held_bytes(), second->work->num_bytes());
  queue.mark_finished(*first);
  EXPECT_GE(queue.num_held_bytes(), 4000 + second->work->num_bytes());
  queue.note_saved(1);
  EXPECT_EQ(queue.num_held_bytes(), second->work->num_bytes());
  queue.roll_back();
  queue.mark_finished(*get(queue, 0));
  EXPECT_EQ(queue.num_held_bytes(), second->work->num_bytes());
  queue.note_saved(2);
  EXPECT_EQ(queue.num_held_bytes(), 0u);
}

TEST(ClosureQueue, PausedQueueDispatchesOnlyInterruptedClosures) {
  ClosureQueue queue;
  queue.put(scheduled()), queue.put(scheduled());
  const auto first = get(queue, 0);
  EXPECT_FALSE(queue.pause(soon()));
  EXPECT_EQ(get(queue, 1, soon()), std::nullopt);
  queue.put_back(*first, AttemptReport{.worker = 0});
  EXPECT_FALSE(queue.pause(soon()));
  const auto again = get(queue, 1);
  EXPECT_EQ(again->number, 0u);
  const auto waiter =
      Executor::system().start("pause", [&] { EXPECT_TRUE(queue.pause(TimePoint::max())); });
  queue.mark_finished(*again);
  waiter->join();
  EXPECT_EQ(get(queue, 1, soon()), std::nullopt);
  queue.resume();
  EXPECT_EQ(get(queue, 1)->number, 1u);
}

TEST(ClosureQueue, WaitUntilCaughtUpBlocksWhileClosuresAreRepeated) {
  ClosureQueue queue(keeping());
  queue.put(scheduled());
  queue.mark_finished(*get(queue, 0));
  queue.wait_until_caught_up(soon());
  queue.roll_back();
  EXPECT_ERROR(queue.wait_until_caught_up(soon()), kDeadlineExceeded, "are repeated");
  const auto again = get(queue, 0);
  const auto waiter =
      Executor::system().start("reader", [&] { queue.wait_until_caught_up(TimePoint::max()); });
  queue.mark_finished(*again);
  waiter->join();
}

TEST(ClosureQueue, ContinueFromStartsNewGeneration) {
  ClosureQueueOptions options;
  options.first_number = 7;
  options.generation = 3;
  ClosureQueue queue(options);
  EXPECT_EQ(queue.num_scheduled(), 7u);
  queue.continue_from(4);
  EXPECT_EQ(queue.put(scheduled()), 4u);
  EXPECT_EQ(get(queue, 0)->id, closure_id(4, 4));
}

TEST(ClosureContextTest, IsThreadLocalAndSeededByClosureNumber) {
  EXPECT_EQ(ClosureContext::current(), nullptr);
  const auto watermark = std::make_shared<ClosureWatermark>();
  const auto token = std::make_shared<CancellationToken>();
  const ClosureContext first(closure_id(1, 7), 1, 0, watermark, token);
  const ClosureContext second(closure_id(2, 7), 2, 3);
  std::uint64_t step = 0;
  {
    const ClosureScope scope(first);
    EXPECT_EQ(ClosureContext::current(), &first);
    step = current_random_context().step;
    {
      const ClosureScope inner(second, 1);
      EXPECT_EQ(ClosureContext::current(), &second);
      EXPECT_EQ(current_random_context().step, step);  // the same random numbers
      EXPECT_EQ(current_random_context().replica, 1u);
    }
    EXPECT_EQ(ClosureContext::current(), &first);
    token->cancel();
    EXPECT_ERROR(first.throw_if_cancelled(), kCancelled, "closure 7");
  }
  EXPECT_EQ(ClosureContext::current(), nullptr);
  EXPECT_EQ(step, 7u);
  EXPECT_EQ(first.number(), 7u);
  EXPECT_EQ(second.number(), 7u);
  watermark->raise(closure_id(1, 5));
  watermark->raise(closure_id(1, 4));
  EXPECT_EQ(first.finished_below(), closure_id(1, 5));
  EXPECT_EQ(second.finished_below(), 0u);
}

}  // namespace closure_queue_test
}  // namespace tutti::internal

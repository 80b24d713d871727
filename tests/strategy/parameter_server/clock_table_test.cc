// Clocks of workers on the variable store: who waits for whom, who does not any more.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/clock_gate.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "tests/strategy/parameter_server/store_helpers.h"
#include "tests/support/hang_watchdog.h"
#include "tutti/core/random.h"

namespace tutti {
namespace {
namespace clocks {

using namespace store_tests;
using internal::ClockTable;
using internal::TellClock;
using Event = TellClock::Event;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr std::uint64_t kBound = 2;

TellClock tell(Event event, int worker, std::uint64_t clock = 0, std::uint64_t bound = kBound) {
  return {event, worker, clock, bound};
}

/// Workers on a store with one variable; worker w is client w + 1.
struct Job {
  explicit Job(int num_workers) {
    for (int w = 0; w < num_workers; ++w) {
      clients.emplace_back(store, static_cast<std::uint64_t>(w + 1));
    }
    clients[0].call({CreateShard{whole("w", {}), Tensor(5.0f)}});
  }
  OperationAnswer say(int worker, Event event, std::uint64_t clock = 0,
                      std::uint64_t bound = kBound) {
    return clients[static_cast<std::size_t>(worker)]
        .call({tell(event, worker, clock, bound)})
        .front();
  }
  std::shared_ptr<PendingAnswers> read(int worker) {
    return clients[static_cast<std::size_t>(worker)].start({ReadShard{whole("w", {}).id()}});
  }
  VariableStore store{"ps 0"};
  std::vector<Client> clients;
};

TEST(WorkerClocks, AReadWaitsForTheWorkerThatIsTooFarBehind) {
  const testing::HangWatchdog watchdog("held read");
  Job job(2);
  job.say(0, Event::kJoin), job.say(1, Event::kJoin);
  EXPECT_EQ(job.say(0, Event::kAdvance, kBound).version, 0u);  // the slowest worker's
  EXPECT_TRUE(job.read(0)->is_ready());
  job.say(0, Event::kAdvance, kBound + 1);
  const auto held = job.read(0);
  EXPECT_FALSE(held->is_ready());
  EXPECT_TRUE(job.read(1)->is_ready());  // the slow one itself
  job.clients[1].call({AssignShard{whole("w", {}).id(), AssignOp::kAdd, Tensor(1.0f)}});
  EXPECT_FALSE(held->is_ready());
  job.say(1, Event::kAdvance, 1);
  ASSERT_TRUE(held->is_ready());
  EXPECT_EQ(held->wait(soon()).front().value->item(), 6.0f);  // what there is now
}

TEST(WorkerClocks, StalenessZeroIsBulkSynchronous) {
  const testing::HangWatchdog watchdog("s = 0");
  Job job(3);
  for (int w = 0; w < 3; ++w) job.say(w, Event::kJoin, 0, 0);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    job.say(0, Event::kAdvance, step, 0);
    const auto first = job.read(0);
    job.say(2, Event::kAdvance, step, 0);
    const auto second = job.read(2);
    EXPECT_FALSE(first->is_ready());
    EXPECT_FALSE(second->is_ready());
    job.say(1, Event::kAdvance, step, 0);
    EXPECT_TRUE(first->is_ready());
    EXPECT_TRUE(second->is_ready());
  }
  EXPECT_THAT(job.store.statistics().lead, UnorderedElementsAre(Pair(0, 6)));
}

TEST(WorkerClocks, WhoLeavesOrWhoseConnectionEndsIsNotWaitedFor) {
  const testing::HangWatchdog watchdog("leaving");
  Job job(3);
  for (int w = 0; w < 3; ++w) job.say(w, Event::kJoin);
  job.say(0, Event::kAdvance, 9);
  const auto held = job.read(0);
  job.say(1, Event::kLeave);
  EXPECT_FALSE(held->is_ready());
  job.store.end_client(3);  // worker 2's
  EXPECT_TRUE(held->is_ready());
}

TEST(WorkerClocks, WhoJoinsBeginsAtTheSlowest) {
  Job job(3);
  job.say(0, Event::kJoin), job.say(1, Event::kJoin);
  job.say(0, Event::kAdvance, 6), job.say(1, Event::kAdvance, 5);
  EXPECT_EQ(job.say(2, Event::kJoin).num_steps, 5u);
  EXPECT_EQ(job.say(2, Event::kJoin).num_steps, 5u);  // the message came twice
  EXPECT_THAT(job.store.statistics().clocks,
              UnorderedElementsAre(Pair(0, 6), Pair(1, 5), Pair(2, 5)));
}

TEST(WorkerClocks, AServerThatWasStartedAgainTakesTheClockThatItIsTold) {
  Job job(2);
  EXPECT_EQ(job.say(0, Event::kAdvance, 41).num_steps, 41u);
  EXPECT_EQ(job.say(1, Event::kAdvance, 40).num_steps, 40u);
  EXPECT_EQ(job.say(0, Event::kJoin).version, 40u);
}

TEST(WorkerClocks, WhatContradictsIsRefusedAndTheServerGoesOn) {
  Job job(2);
  job.say(0, Event::kJoin);
  expect_error(ErrorCode::kInvalidArgument, {"workers 0 and 1", "2 and none"},
               [&] { job.say(1, Event::kJoin, 0, TellClock::kUnboundedStaleness); });
  job.say(0, Event::kAdvance, 3);
  expect_error(ErrorCode::kFailedPrecondition, {"worker 0", "clock 2", "at least 3"},
               [&] { job.say(0, Event::kAdvance, 2); });
  expect_error(ErrorCode::kInvalidArgument, {"worker -1"},
               [&] { job.clients[0].call({tell(Event::kJoin, -1)}); });
  Client other(job.store, 9);
  expect_error(ErrorCode::kInvalidArgument, {"without changes"}, [&] {
    other.call({AssignShard{whole("w", {}).id(), AssignOp::kAssign, Tensor(1.0f)},
                tell(Event::kAdvance, 0, 4)});
  });
  EXPECT_EQ(job.read(0)->wait(soon()).front().value->item(), 5.0f);
}

TEST(WorkerClocks, AHeldReadEndsWithItsOwnerOrTheServer) {
  const testing::HangWatchdog watchdog("dropped reads");
  std::shared_ptr<PendingAnswers> left;
  int num_answered = 0;
  {
    Job job(3);
    for (const int worker : {0, 1, 2}) job.say(worker, Event::kJoin);
    job.say(0, Event::kAdvance, 10), job.say(2, Event::kAdvance, 10);
    left = job.read(0);
    constexpr std::uint64_t kOwner = 77;
    job.store.apply(job.clients[2].batch({ReadShard{whole("w", {}).id()}}), kOwner,
                    [&](const internal::BatchResult&) { ++num_answered; });
    job.store.owner_left(kOwner);
    job.say(1, Event::kAdvance, 1);
    EXPECT_FALSE(left->is_ready());
  }
  EXPECT_EQ(num_answered, 0);
  expect_error(ErrorCode::kUnavailable, {"ended"}, [&] { left->wait(soon()); });
}

/// Random joins, steps, reads and ends: a read passes exactly when no worker is more than the bound
/// behind, computed from a plain map.
TEST(WorkerClocks, NoReadOfARandomHistoryIsAheadOfTheBound) {
  for (const std::uint64_t bound : {0u, 1u, 3u}) {
    ClockTable table;
    std::map<std::uint64_t, std::uint64_t> expected;
    const RandomStream random(RandomKey{5, kUserPurpose, bound});
    std::uint64_t num_drawn = 0;
    const auto draw = [&](std::uint64_t below) { return random.below(num_drawn++, below); };
    for (int i = 0; i < 3000; ++i) {
      const std::uint64_t client = draw(5) + 1;
      const bool is_there = expected.contains(client);
      const auto slowest = [&] {
        std::uint64_t least = ~std::uint64_t{0};
        for (const auto& [who, clock] : expected) least = std::min(least, clock);
        return expected.empty() ? 0 : least;
      };
      if (!is_there) {
        const std::uint64_t begin = slowest();
        EXPECT_EQ(table.tell(client, tell(Event::kJoin, 0, 0, bound)).num_steps, begin);
        expected[client] = begin;
      } else if (draw(20) == 0) {
        EXPECT_TRUE(table.leave(client));
        expected.erase(client);
      } else if (const bool may_read = expected[client] - slowest() <= bound; may_read) {
        EXPECT_LE(table.wanted_by(client), table.slowest());
        EXPECT_LE(*table.lead_of(client), bound);
        table.tell(client, tell(Event::kAdvance, 0, ++expected[client], bound));
      } else {
        EXPECT_GT(table.wanted_by(client), table.slowest());
      }
    }
  }
}

}  // namespace clocks
}  // namespace
}  // namespace tutti

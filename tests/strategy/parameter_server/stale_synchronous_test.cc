// Bounded staleness: who may read what, who is waited for, and who is named.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/strategy/parameter_server/workers_apart.h"
#include "tutti/core/random.h"

namespace tutti::stale_synchronous_tests {
namespace {

using strategy_tests::expect_no_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using workers_apart::Countdown;
using workers_apart::Gathering;
using workers_apart::make_servers;
using workers_apart::options_of;
using workers_apart::run_apart;
using workers_apart::Services;
using workers_apart::statistics_of;

/// A reader at clock c sees all steps of all workers before c - s, and none after c + s.
void expect_bounded(int staleness, int num_workers) {
  const testing::HangWatchdog watchdog(concat("staleness ", staleness), std::chrono::seconds(60));
  constexpr int kSteps = 30;
  const Services servers = make_servers(2);
  ParameterServerOptions options = options_of(UpdateMode::kStaleSync);
  options.staleness = staleness;
  Gathering gathering(num_workers);
  const auto errors =
      run_apart(num_workers, servers, options, [&](ParameterServerStrategy& strategy) {
        const auto scope = strategy.scope();
        Countdown countdown;
        const RandomStream random(
            RandomKey{1, kUserPurpose, static_cast<std::uint64_t>(strategy.worker())});
        for (int clock = 0; clock < kSteps; ++clock) {
          const int seen = countdown.step(strategy, [&] {
            if (clock == 0) return gathering.meet();
            const auto pause = random.below(static_cast<std::uint64_t>(clock), 400);
            Clock::system().sleep_for(std::chrono::microseconds(pause));
          });
          const int others = num_workers - 1;
          EXPECT_GE(seen, clock + others * std::max(0, clock - staleness)) << "clock " << clock;
          EXPECT_LE(seen, clock + others * (clock + staleness + 1)) << "clock " << clock;
        }
      });
  expect_no_error(errors);
  const auto told = statistics_of(servers);
  ASSERT_FALSE(told.lead.empty());
  EXPECT_LE(told.lead.rbegin()->first, static_cast<std::uint64_t>(staleness));
  EXPECT_TRUE(told.clocks.empty()) << "who ends, leaves";
}

TEST(UpdateModes, StaleSynchronousReadsAreWithinTheBound) {
  for (const int staleness : {0, 1, 3}) expect_bounded(staleness, 3);
}

TEST(UpdateModes, AWorkerThatEndsIsNotWaitedFor) {
  const testing::HangWatchdog watchdog("a worker ends");
  const Services servers = make_servers(2);
  ParameterServerOptions options = options_of(UpdateMode::kStaleSync);
  options.staleness = 1;
  Gathering gathering(2);
  const auto errors = run_apart(2, servers, options, [&](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    Countdown countdown;
    const int steps = strategy.worker() == 0 ? 3 : 20;
    for (int i = 0; i < steps; ++i) {
      countdown.step(strategy, [&] {
        if (i == 0) gathering.meet();
      });
    }
  });
  expect_no_error(errors);
}

TEST(UpdateModes, AReadThatWaitsTooLongNamesTheWorker) {
  const testing::HangWatchdog watchdog("a stalled worker");
  for (const UpdateMode mode : {UpdateMode::kStaleSync, UpdateMode::kSyncReplicas}) {
    ParameterServerOptions options = options_of(mode);
    options.staleness = 0;
    options.timeout = options.local.timeout = std::chrono::seconds(2);
    Gathering gathering(2);
    Event is_told;
    const auto errors =
        run_apart(2, make_servers(1), options, [&](ParameterServerStrategy& strategy) {
          const auto scope = strategy.scope();
          Countdown countdown;
          const bool is_slow = strategy.worker() == 1;
          countdown.step(strategy, [&] {
            gathering.meet();
            if (is_slow) (void)is_told.wait_until(TimePoint::max());
          });
          if (is_slow) return;
          struct Tell {
            Event& event;
            ~Tell() { event.set(); }
          } const tell{is_told};
          countdown.step(strategy);
        });
    EXPECT_THAT(errors[0], AllOf(HasSubstr("worker 0 has ended 1 steps"),
                                 HasSubstr("for worker 1, which has ended 0")))
        << to_string(mode);
    EXPECT_EQ(errors[1], "");
  }
}

}  // namespace
}  // namespace tutti::stale_synchronous_tests

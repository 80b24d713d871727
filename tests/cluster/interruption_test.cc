// Connecting ends when somebody learns that a peer is lost, whatever this rank waits for.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/interruption.h"
#include "cluster/control/control_client.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "cluster/net/announcement.h"
#include "cluster/net/build.h"
#include "tests/cluster/acceptor_visitor.h"
#include "tests/cluster/control_job.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/thrown.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace interruption_test {

using control_job::after;
using thrown::expect_error;
using namespace std::chrono_literals;

const Error kReason(ErrorCode::kUnavailable, "worker 1 (pid 4711) died");

/// `wait` is under way for a while, then the reason comes; it ends with that, not with its 60 s.
/// `before`, if given, runs before the reason comes.
template <class Wait>
void expect_that_it_ends(const Wait& wait, const std::function<void()>& before = nullptr) {
  const testing::HangWatchdog watchdog("interruption", 120s);
  const auto interruption = std::make_shared<Interruption>();
  const TimePoint begin = Clock::system().now();
  const auto other = Executor::system().start("alarm", [&] {
    Clock::system().sleep_for(100ms);
    if (before) before();
    interruption->raise(kReason);
    interruption->raise(Error(ErrorCode::kInternal, "the second one does not count"));
  });
  expect_error(ErrorCode::kUnavailable, {"worker 1 (pid 4711) died"},
               [&] { wait(std::shared_ptr<const Interruption>(interruption)); });
  EXPECT_GE(Clock::system().now() - begin, 100ms);
}

class InterruptedConnecting : public ::testing::TestWithParam<ConnectOptions::Way> {};

/// It has been told that rank 1 comes.
TEST_P(InterruptedConnecting, TheLowestRankWaitsForNobodyWhoDied) {
  expect_that_it_ends([](const std::shared_ptr<const Interruption>& interruption) {
    InProcessStore store;
    (void)connect_ranks(0, 2, store,
                        {.way = GetParam(), .timeout = 60s, .interruption = interruption});
  });
}

/// It never says where it is.
TEST_P(InterruptedConnecting, AHigherRankWaitsForNoAddressOfOneWhoDied) {
  expect_that_it_ends([](const std::shared_ptr<const Interruption>& interruption) {
    InProcessStore store;
    (void)connect_ranks(1, 2, store,
                        {.way = GetParam(), .timeout = 60s, .interruption = interruption});
  });
}

/// It listens, and never answers.
TEST_P(InterruptedConnecting, AHigherRankWaitsForNoAnswerOfOneWhoDied) {
  InProcessStore store;
  const internal::Listener far = internal::listen_at({"127.0.0.1", 0});
  const internal::Listener near = internal::listen_locally();
  const auto own = connect_ranks(0, 1, store, {.way = ConnectOptions::Way::kTcp});
  const auto announced = internal::parse_announcement(store.get("ranks/0").value()).value();
  store.set("ranks/0", internal::to_text({7, announced.machine, far.endpoint, near.endpoint}));
  expect_that_it_ends([&](const std::shared_ptr<const Interruption>& interruption) {
    (void)connect_ranks(1, 2, store,
                        {.way = GetParam(), .timeout = 60s, .interruption = interruption});
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, InterruptedConnecting,
                         ::testing::Values(ConnectOptions::Way::kTcp,
                                           ConnectOptions::Way::kSharedMemory,
                                           ConnectOptions::Way::kAuto),
                         [](const auto& info) {
                           return info.param == ConnectOptions::Way::kTcp            ? "tcp"
                                  : info.param == ConnectOptions::Way::kSharedMemory ? "shm"
                                                                                     : "any";
                         });

/// One who is stopped keeps its connections open, and never says that it has all of its own.
TEST(Interruption, NobodyWaitsForTheOthersOfOneWhoIsSilent) {
  const testing::HangWatchdog watchdog("silent", 120s);
  InProcessStore store;
  store.set("ranks/1", internal::to_text({.run = 815,
                                          .machine = "elsewhere",
                                          .endpoint = {"127.0.0.1", 9},
                                          .group_size = 2,
                                          .build = internal::make_build("", {})}));
  internal::FileDescriptor socket;
  const auto peer = Executor::system().start("rank-1", [&] {
    const auto zero = internal::parse_announcement(store.wait("ranks/0", after(60s))).value();
    socket = acceptor_visitor::connect_to(zero.endpoint);
    const auto handshake = acceptor_visitor::shake_hands(socket, {1, 815}, {});
    EXPECT_EQ(handshake.state(), internal::Handshake::State::kDone) << handshake.reason();
    store.set("is_connected", "");
  });
  expect_that_it_ends(
      [&](const std::shared_ptr<const Interruption>& interruption) {
        (void)connect_ranks(
            0, 2, store,
            {.way = ConnectOptions::Way::kTcp, .timeout = 60s, .interruption = interruption});
      },
      [&] { (void)store.wait("is_connected", after(60s)); });
  peer->join();
}

TEST(Interruption, SaysItsReasonAgainAndAgain) {
  Interruption interruption;
  interruption.check();
  interruption.raise(kReason);
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorCode::kUnavailable, {"worker 1"}, [&] { interruption.check(); });
  }
}

}  // namespace interruption_test
}  // namespace tutti

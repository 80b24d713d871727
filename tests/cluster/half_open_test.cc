// Packets that vanish, ranks that are silent for long, and connecting that is interrupted.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <list>
#include <memory>

#include "cluster/control/control_client.h"
#include "cluster/net/handshake.h"
#include "cluster/net/socket.h"
#include "tests/cluster/acceptor_visitor.h"
#include "tests/cluster/control_job.h"
#include "tests/cluster/proxied_ranks.h"
#include "tests/support/thrown.h"
#include "tests/support/vanishing_packets.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace half_open_test {
using namespace proxied_ranks;
using namespace std::chrono_literals;

/// Two ranks of this process without a proxy, and the ends of their connection.
struct DirectRanks {
  DirectRanks() {
    EXPECT_EQ(error_of_ranks(2,
                             [&](int r) {
                               rank(r) = connect_by_tcp(r, 2, store);
                               exchange(*rank(r), 1);
                             }),
              "");
    const auto announced = internal::parse_announcement(store.get("ranks/0").value()).value();
    for (const bool is_zero : {true, false}) {
      end_of_rank[is_zero ? 0 : 1] = testing::end_of_connection(announced.endpoint.port, is_zero);
    }
  }
  std::shared_ptr<Transport>& rank(int r) { return ranks[static_cast<std::size_t>(r)]; }

  InProcessStore store;
  std::array<std::shared_ptr<Transport>, 2> ranks;
  std::array<int, 2> end_of_rank{};
};

/// Where packets vanish, and what the ranks do then.
struct Silence {
  const char* name;
  bool to_zero, to_one;
  std::size_t count;          // of bytes that they exchange again and again; 0: both wait
  std::uint32_t longest = 0;  // segments that pass
};

constexpr Silence kSilences[] = {
    {"to rank 0, both wait", true, false, 0},
    {"to rank 1, both send", false, true, 10},
    {"both ways, both wait", true, true, 0},
    {"both ways, both send", true, true, 300'000},
    {"to rank 1, what is longer than 1000 bytes", false, true, 300'000, 1000},
};

void expect_that_both_are_told(const Silence& silence) {
  DirectRanks group;
  if (silence.to_zero) testing::let_packets_vanish(group.end_of_rank[0], silence.longest);
  if (silence.to_one) testing::let_packets_vanish(group.end_of_rank[1], silence.longest);
  const TimePoint begin = Clock::system().now();
  std::array<CallsEnd, 2> ends;
  const std::string error = error_of_ranks(2, [&](int r) {
    std::array<std::byte, 1> byte{};
    ends[static_cast<std::size_t>(r)] = end_of([&](std::uint64_t round) {
      if (silence.count == 0) group.rank(r)->recv(1 - r, 9, {}, byte)->wait(in(60s));
      if (silence.count > 0) exchange(*group.rank(r), silence.count, round);
    });
  });
  EXPECT_EQ(error, "");
  std::printf("half-open | %s | rank 0 told after %.2f s, rank 1 after %.2f s (goal 5)\n",
              silence.name, seconds_between(begin, ends[0].at), seconds_between(begin, ends[1].at));
  for (const int rank : {0, 1}) {
    const CallsEnd& end = ends[static_cast<std::size_t>(rank)];
    expect_loss_of(1 - rank, end, *group.rank(rank));
    EXPECT_NE(end.message.find("is gone: "), std::string::npos) << end.message;
    EXPECT_LT(seconds_between(begin, end.at), 20) << silence.name;
  }
}

// All at once, for each takes as long as the system waits.
TEST(TcpHalfOpen, PacketLossEndsTheCallsOfBothRanks) {
  std::list<std::unique_ptr<Thread>> threads;
  for (const Silence& silence : kSilences) {
    threads.push_back(
        Executor::system().start("silence", [&silence] { expect_that_both_are_told(silence); }));
  }
  for (const auto& thread : threads) thread->join();
}

// They are sent again by the system, some of them late.
TEST(TcpHalfOpen, ALinkThatIsSilentForTwoSecondsIsJustSlow) {
  DirectRanks group;
  for (const int end : group.end_of_rank) testing::let_packets_vanish(end);
  const auto heals = Executor::system().start("healing", [&] {
    Clock::system().sleep_for(2s);
    for (const int end : group.end_of_rank) testing::let_packets_arrive(end);
  });
  EXPECT_EQ(error_of_ranks(2, [&](int rank) { exchange(*group.rank(rank), 100'000, 1); }), "");
  heals->join();
  EXPECT_EQ(group.rank(0)->lost_peer(), std::nullopt);
}

/// Rank 1 looks at nothing for so long, while rank 0 has sent it so many bytes.
void expect_patience(std::size_t count) {
  DirectRanks group;
  const auto body = pattern_of(count, 5);
  const std::string error = error_of_ranks(2, [&](int r) {
    std::vector<std::byte> answer(1), got(count);
    if (r == 0) {
      const auto send = group.rank(0)->send(1, 3, {}, body);
      group.rank(0)->recv(1, 4, {}, answer)->wait(in(60s));
      send->wait(in(60s));
      return;
    }
    Clock::system().sleep_for(8s);
    group.rank(1)->recv(0, 3, {}, got)->wait(in(60s));
    if (got != body) fail(ErrorCode::kInternal, "other bytes");
    group.rank(1)->send(0, 4, {}, answer)->wait(in(60s));
  });
  EXPECT_EQ(error, "") << count << " bytes";
}

// Longer than a silent link is waited for: its system speaks for it, and says that it has no room.
TEST(TcpHalfOpen, ARankThatComputesForLongKeepsItsConnections) {
  std::list<std::unique_ptr<Thread>> threads;
  for (const std::size_t count : {std::size_t{0}, std::size_t{1000}, std::size_t{32} << 20}) {
    threads.push_back(Executor::system().start("busy", [count] { expect_patience(count); }));
  }
  for (const auto& thread : threads) thread->join();
}

using control_job::after;
using thrown::expect_error;

const Error kReason(ErrorCode::kUnavailable, "worker 1 (pid 4711) died");

/// `wait` is under way for a while, then the reason comes; it ends with that, not with its 60 s.
/// `before`, if given, runs before the reason comes.
template <class Wait>
void expect_that_it_ends(const Wait& wait, const std::function<void()>& before = nullptr) {
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

}  // namespace half_open_test
}  // namespace tutti

// Connections that are cut, closed on one side, slow, or bring changed bits: every rank that waits
// is told who is gone, soon, and no message ever arrives with other bytes.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "cluster/net/handshake.h"
#include "tests/cluster/proxied_ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {
namespace chaos_test {
using namespace proxied_ranks;
using namespace std::chrono_literals;
using ::testing::AnyOf;
using testing::ChaosPlan;
using testing::ChaosProxy;
using ::testing::HasSubstr;

// Two hellos, two proofs and a verdict.
constexpr std::uint64_t kHandshakeBytes =
    2 * (internal::kRankHelloBytes + internal::kProofBytes) + 1;

/// Both ranks send each other messages of many lengths until the connection breaks.
std::array<CallsEnd, 2> exchange_until_it_breaks(ProxiedRanks& group, std::size_t large) {
  std::array<CallsEnd, 2> ends;
  expect_on_ranks(2, [&](int rank) {
    ends[static_cast<std::size_t>(rank)] = end_of([&](std::uint64_t round) {
      const std::size_t count = round * 7919 % 13 == 0 ? large + round : round * 7919 % 30'001;
      exchange(*group.rank(rank), count, round);
    });
  });
  return ends;
}

/// From the event of a proxy to the end of the last call.
double seconds_until_told(const ChaosProxy& proxy, const std::array<CallsEnd, 2>& ends) {
  return seconds_between(proxy.last_event(), std::max(ends[0].at, ends[1].at));
}

/// What breaks, and how: one event, somewhere in the first bytes or in the first megabytes.
enum class Fault { kCut, kFlip, kHalfClose };

ChaosPlan plan_of(Fault fault, std::uint64_t seed) {
  constexpr std::uint64_t kDistances[] = {40, 500, 20'000, 1'500'000};  // means
  ChaosPlan plan{.seed = seed, .most_events = 1, .spares = kHandshakeBytes};
  auto& every = fault == Fault::kCut    ? plan.cut_every
                : fault == Fault::kFlip ? plan.flip_every
                                        : plan.half_close_every;
  every = kDistances[seed % 4];
  return plan;
}

struct Told {
  std::vector<double> seconds;  // in order
  int damaged = 0;              // errors that speak of damage
};

/// Breaks the connection of a new pair of ranks with each seed.
Told break_pairs(Fault fault, std::uint64_t num_seeds) {
  Told told;
  for (std::uint64_t seed = 1; seed <= num_seeds; ++seed) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, concat("seed ", seed));
    ProxiedRanks group(plan_of(fault, seed));
    const auto ends = exchange_until_it_breaks(group, 3'000'000);
    EXPECT_EQ(
        group.proxy().num_cuts() + group.proxy().num_flips() + group.proxy().num_half_closes(), 1);
    for (const int rank : {0, 1}) {
      const CallsEnd& end = ends[static_cast<std::size_t>(rank)];
      expect_loss_of(1 - rank, end, *group.rank(rank));
      const bool is_damaged = end.message.find("damaged on the way") != std::string::npos;
      told.damaged += is_damaged;
      EXPECT_TRUE(is_damaged || end.message.find("is gone: ") != std::string::npos) << end.message;
    }
    told.seconds.push_back(seconds_until_told(group.proxy(), ends));
  }
  std::ranges::sort(told.seconds);
  return told;
}

/// Calls end because of the break, long before their deadline of a minute: within a second on a
/// quiet machine.
TEST(TcpChaos, BreakAtAnyByteEndsCallsOfBothRanks) {
  struct Case {
    const char* name;
    Fault fault;
    std::uint64_t num_seeds;
    int num_damaged;  // one of the two ranks has seen a changed bit, and says so
  };
  for (const Case& each : {Case{"reset", Fault::kCut, 12, 0},
                           {"changed bit", Fault::kFlip, 16, 16},
                           {"closed on one side", Fault::kHalfClose, 8, 0}}) {
    SCOPED_TRACE(each.name);
    const Told told = break_pairs(each.fault, each.num_seeds);
    const double median = told.seconds[told.seconds.size() / 2];
    std::printf("broken | %s | %zu times | both ranks told after %.4f s (median), at most %.3f s\n",
                each.name, told.seconds.size(), median, told.seconds.back());
    EXPECT_LT(median, 15.0);
    EXPECT_EQ(told.damaged, each.num_damaged);
  }
}

TEST(TcpChaos, AConnectionThatBreaksWhileNobodyLooksIsNamedInTheNextCall) {
  ProxiedRanks group;
  expect_on_ranks(2, [&](int rank) { exchange(*group.rank(rank), 10); });
  group.proxy().cut_all();
  Clock::system().sleep_for(100ms);
  const auto ends = exchange_until_it_breaks(group, 10);
  for (const int rank : {0, 1}) {
    expect_loss_of(1 - rank, ends[static_cast<std::size_t>(rank)], *group.rank(rank));
  }
}

// What had arrived whole before the break is there for who asks late.
TEST(TcpChaos, MessagesThatArrivedBeforeTheBreakAreReceivedAfterIt) {
  ProxiedRanks group;
  const auto body = pattern_of(10'000, 1);
  std::array<std::byte, 1> byte{};
  for (const std::uint64_t tag : {5, 6}) group.rank(0)->send(1, tag, {}, body)->wait(late());
  group.rank(0)->send(1, 7, {}, byte)->wait(late());
  group.rank(1)->recv(0, 7, {}, byte)->wait(late());
  group.proxy().cut_all();
  const CallsEnd end =
      end_of([&](std::uint64_t) { group.rank(1)->recv(0, 8, {}, byte)->wait(late()); });
  for (const std::uint64_t tag : {6, 5}) {
    std::vector<std::byte> got(body.size());
    group.rank(1)->recv(0, tag, {}, got)->wait(late());
    EXPECT_TRUE(got == body);
  }
  expect_loss_of(0, end, *group.rank(1));
}

/// Sums of three ranks in a ring until the connection between ranks 1 and 2 breaks.
std::vector<std::string> errors_when_one_pair_breaks(bool is_cut) {
  ProxiedRanks group({.most_events = 1, .spares = std::uint64_t{1} << 40}, 3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    const auto communicator =
        make_communicator(group.rank(rank), {.algorithm = "ring", .timeout = 60s});
    for (int call = 0;; ++call) {
      std::vector<float> values(2'000, static_cast<float>(rank));
      communicator->all_reduce(ReduceOp::kSum, Elements(std::span(values)));
      if (std::ranges::count(values, 3.0f) != 2'000) fail(ErrorCode::kInternal, "another sum");
      if (rank != 0 || call != 5) continue;
      ChaosProxy& between_1_and_2 = group.store.proxy(1);  // which rank 2 alone connects to
      is_cut ? between_1_and_2.cut_after(100) : between_1_and_2.flip_after(100);
    }
  });
  EXPECT_EQ(group.rank(0)->lost_peer(), std::nullopt);
  const auto lost = {group.rank(1)->lost_peer(), group.rank(2)->lost_peer()};
  EXPECT_TRUE(std::ranges::count(lost, 2) + std::ranges::count(lost, 1) >= 1);
  return errors;
}

TEST(TcpChaos, AllRanksOfAGroupAreToldWhenOnePairBreaks) {
  for (const bool is_cut : {true, false}) {
    for (const std::string& error : errors_when_one_pair_breaks(is_cut)) {
      EXPECT_THAT(error, AnyOf(HasSubstr("rank 1 (127.0.0.1:"), HasSubstr("rank 2 (127.0.0.1:")));
      EXPECT_THAT(error, AnyOf(HasSubstr("is gone: "), HasSubstr("damaged on the way")));
    }
  }
}

// All of them but the last one, whose sender does not wait for an answer.
TEST(TcpChaos, HandshakesThatBreakOrAreDamagedAreBegunAgain) {
  int disturbed = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    ChaosPlan plan{.seed = seed, .most_events = 1, .spares = 0};
    (seed % 2 == 0 ? plan.cut_every : plan.flip_every) = kHandshakeBytes / 10;
    ProxiedRanks group(plan);
    SCOPED_TRACE(concat("seed ", seed));
    expect_on_ranks(2, [&](int rank) { exchange(*group.rank(rank), 1); });
    if (HasFailure()) return;
    disturbed += group.proxy().num_cuts() + group.proxy().num_flips();
  }
  EXPECT_GE(disturbed, 35);
}

TEST(TcpChaos, ARankIsReachedWhereItSaysAndNotWhereItListens) {
  const internal::Endpoint inside = internal::listen_at({"127.0.0.1", 0}).endpoint;  // free again
  ChaosProxy outside(inside, {});
  InProcessStore store;
  std::array<ConnectedRanks, 2> ranks;
  expect_on_ranks(2, [&](int rank) {
    ConnectOptions options{.way = ConnectOptions::Way::kTcp};
    if (rank == 0) options.listen_at = inside.to_string();
    if (rank == 0) options.reached_at = outside.endpoint().to_string();
    auto& place = ranks[static_cast<std::size_t>(rank)];
    place = connect_ranks(rank, 2, store, options);
    exchange(*place.transport, 1000);
  });
  EXPECT_EQ(ranks[1].line, concat("rank 1 of 2: rank 0: tcp ", outside.endpoint()));
  EXPECT_GE(outside.num_passed(), 2000u);
  testing::expect_error(
      ErrorCode::kInvalidArgument, {"where to listen", "host:port", "'5000'"}, [] {
        InProcessStore none;
        connect_ranks(0, 1, none, {.way = ConnectOptions::Way::kTcp, .listen_at = "5000"});
      });
}

TEST(TcpChaos, SlowAndTricklingWiresAreJustSlow) {
  for (const ChaosPlan& plan : {ChaosPlan{.seed = 14, .trickle = 8191, .delay = 100us},
                                ChaosPlan{.seed = 15, .trickle = 61}}) {
    ProxiedRanks group(plan);
    const std::size_t large = plan.trickle > 100 ? 3'000'000 : 100'000;
    expect_on_ranks(2, [&](int rank) {
      for (std::uint64_t round = 0; round < 8; ++round) {
        exchange(*group.rank(rank), round % 4 == 0 ? large + round : round * 1'009, round);
      }
    });
    EXPECT_EQ(group.rank(0)->lost_peer(), std::nullopt);
  }
}

TEST(TcpChaos, CollectivesOverASlowWireGiveTheSameBits) {
  ProxiedRanks group({.trickle = 1021}, 2, {.secret = JobSecret::generate(), .job_id = "chaos"});
  expect_on_ranks(2, [&](int rank) {
    const auto communicator = make_communicator(group.rank(rank), {.algorithm = "canonical"});
    for (int step = 0; step < 5; ++step) {
      std::vector<float> values(40'000 + 1000 * static_cast<std::size_t>(step));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(i % 1013) * 0.1f + static_cast<float>(rank);
      }
      communicator->all_reduce(ReduceOp::kSum, Elements(std::span(values)));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float own = static_cast<float>(i % 1013) * 0.1f;
        if (values[i] != (own + 0.0f) + (own + 1.0f)) {
          fail(ErrorCode::kInternal, "step ", step, ": element ", i, " is ", values[i]);
        }
      }
    }
  });
}

}  // namespace chaos_test
}  // namespace tutti

// Tests the TCP transport: frames, connections from unknown clients, buffered messages, missing
// ranks and broken connections.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>

#include "cluster/net/connection.h"
#include "cross_device_ops/algorithms/algorithm.h"
#include "tests/cluster/proxied_ranks.h"
#include "tests/cross_device_ops/engine_helpers.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::tcp_transport_test {
using testing::expect_error;
using namespace std::chrono_literals;
using testing::late;
using namespace proxied_ranks;
using ::testing::AnyOf;
using testing::ChaosPlan;
using testing::ChaosProxy;
using ::testing::HasSubstr;

TEST(TcpFrame, HeaderRoundTrips) {
  using Kind = internal::FrameHeader::Kind;
  for (const internal::FrameHeader& header :
       {internal::FrameHeader{}, internal::FrameHeader{Kind::kMessage, 256, ~0ull, 1ull << 40},
        internal::FrameHeader{Kind::kAbort, 0, 0, 65536}}) {
    EXPECT_EQ(internal::decode_frame_header(internal::encode(header)), header);
  }
}

TEST(TcpFrame, EveryFlippedHeaderBitIsDetected) {
  const auto good = internal::encode(
      internal::FrameHeader{internal::FrameHeader::Kind::kMessage, 7, 0x0123456789abcdef, 4711});
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_ERROR(internal::decode_frame_header(bytes), kUnavailable, "is damaged", "expected",
                 "got");
  }
}

TEST(TcpFrame, OutOfRangeLengthsAndKindsAreRefused) {
  using Kind = internal::FrameHeader::Kind;
  const auto expect_refusal = [](const internal::FrameHeader& header,
                                 const std::vector<std::string>& words) {
    expect_error(ErrorCode::kUnavailable, words,
                 [&] { internal::decode_frame_header(internal::encode(header)); });
  };
  expect_refusal({static_cast<Kind>(3), 0, 0, 0}, {"kind 1 or 2", "got 3"});
  expect_refusal({Kind::kMessage, 257, 0, 0}, {"at most 256", "got 257 and 0"});
  expect_refusal({Kind::kMessage, 0, 0, (1ull << 40) + 1}, {"1099511627776", "1099511627777"});
  expect_refusal({Kind::kAbort, 0, 0, 65537}, {"65536", "65537"});
  expect_refusal({Kind::kAbort, 1, 0, 0}, {"at most 0", "got 1 and 0"});
}

TEST(TcpFrame, InvalidAnnouncementsAreRefused) {
  v1::Build build;
  build.set_version("tutti 1.2.3");
  const internal::Announcement mine{12345, "machine", {"::1", 4711}, {"@0001f", 0}, 3, build};
  const auto parsed = internal::parse_announcement(internal::to_text(mine));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(internal::to_text(*parsed), internal::to_text(mine));
  EXPECT_EQ(parsed->address(), "[::1]:4711");
  EXPECT_EQ(parsed->build.version(), "tutti 1.2.3");
  for (const char* text : {"", "1 m 127.0.0.1:4711"}) {
    EXPECT_FALSE(internal::parse_announcement(text)) << text;
  }
  for (const char* address : {"", "a", "a:0", "a:70000", ":5", "a:5x", "@0001f"}) {
    v1::RankAnnouncement message;
    message.set_address(address);
    *message.mutable_build() = build;
    EXPECT_FALSE(internal::parse_announcement(message.SerializeAsString())) << address;
    message.set_address("127.0.0.1:4711");
    EXPECT_TRUE(internal::parse_announcement(message.SerializeAsString()));
    message.set_local("127.0.0.1:4711");
    EXPECT_FALSE(internal::parse_announcement(message.SerializeAsString()));
  }
}

TEST(TcpTransport, GroupFormsDespiteUnknownClientsAndStaleAddresses) {
  InProcessStore store;
  // The store has a stale address of a listener that never replies; rank 1 switches to the new
  // address.
  const internal::Listener silent = internal::listen_at({"127.0.0.1", 0});
  store.set("ranks/0", internal::to_text({7, "m", silent.endpoint}));
  std::shared_ptr<Transport> zero, one;
  const auto higher =
      Executor::system().start("rank-1", [&] { one = connect_by_tcp(1, 2, store); });
  Clock::system().sleep_for(50ms);
  const auto lower =
      Executor::system().start("rank-0", [&] { zero = connect_by_tcp(0, 2, store); });
  higher->join();
  lower->join();
  std::array<std::byte, 1> byte{std::byte{5}}, got{};
  const auto recv = one->recv(0, 0, {}, got);
  zero->send(1, 0, {}, byte)->wait(late());
  recv->wait(late());
  EXPECT_EQ(got, byte);
}

TEST(TcpTransport, ConnectTimeoutNamesMissingRanks) {
  InProcessStore store;
  const ConnectOptions brief{.timeout = 50ms};
  EXPECT_ERROR(connect_by_tcp(0, 3, store, brief), kDeadlineExceeded, "rank 0 of 3",
               "rank 1, 2 did not connect", "0.05 s");
  expect_error(ErrorCode::kDeadlineExceeded, {"rank 2 of 3", "rank 1 did not", "127.0.0.1:"}, [&] {
    InProcessStore other;
    const internal::Listener silent = internal::listen_at({"127.0.0.1", 0});
    other.set("ranks/0", "no announcement");
    other.set("ranks/1", internal::to_text({7, "m", silent.endpoint}));
    const auto zero = Executor::system().start(
        "rank-0", [&] { EXPECT_THROW(connect_by_tcp(0, 3, other, {.timeout = 300ms}), Error); });
    connect_by_tcp(2, 3, other, {.timeout = 300ms});
  });
  InProcessStore empty, unreachable;
  EXPECT_ERROR(connect_by_tcp(1, 2, empty, {.timeout = 20ms, .key_prefix = "g"}), kDeadlineExceeded,
               "rank 0 did not connect", "'g/0'");
  EXPECT_INVALID(connect_by_tcp(2, 2, store, brief), "rank 2 of 2");
  EXPECT_ERROR(
      connect_by_tcp(0, 2, store, {.address = "192.0.2.7", .allow_insecure_network = true}),
      kUnavailable, "192.0.2.7", "an address of this machine");
  unreachable.set("ranks/0", internal::to_text({7, "m", {"255.255.255.255", 80}}));
  EXPECT_ERROR(connect_by_tcp(1, 2, unreachable, brief), kNotFound, "rank 0 did not answer",
               "255.255.255.255:80", "Network is unreachable");
}

TEST(TcpTransport, BuffersUnreceivedMessagesUpToLimit) {
  InProcessStore store;
  const ConnectOptions options{.bytes_kept = 1000};
  std::shared_ptr<Transport> zero;
  const auto lower =
      Executor::system().start("rank-0", [&] { zero = connect_by_tcp(0, 2, store, options); });
  const auto one = connect_by_tcp(1, 2, store, options);
  lower->join();
  std::vector<std::byte> bytes(600);
  std::array<std::byte, 1> byte{};
  const auto never = zero->recv(1, 99, {}, byte);
  one->send(0, 1, {}, bytes)->wait(late());
  zero->recv(1, 1, {}, bytes)->wait(late());  // frees buffer space
  one->send(0, 2, {}, bytes)->wait(late());
  one->send(0, 3, {}, bytes)->wait(late());
  EXPECT_ERROR(never->wait(late()), kResourceExhausted, "rank 1 (", "1000", "600 bytes with tag 3");
  zero->recv(1, 2, {}, bytes)->wait(late());  // earlier messages are intact
}

using namespace engine_tests;
using internal::message_engine;

/// Runs body(transport) on one thread per rank; the ranks are connected over TCP.
std::vector<std::optional<Error>> over_tcp(
    int size, const std::function<void(std::shared_ptr<Transport>)>& body) {
  InProcessStore store;
  return on_ranks(size, [&](int rank) { body(connect_by_tcp(rank, size, store)); });
}

TEST(MessageEngineOverTcp, SendsOnlyScheduledMessages) {
  for (const int size : {2, 3, 5}) {
    expect_no_errors(over_tcp(size, [&](std::shared_ptr<Transport> transport) {
      std::uint64_t sequence = 0;
      for (const internal::Algorithm& algorithm : internal::algorithms()) {
        const auto engine = message_engine(transport, algorithm.name);
        for (const std::size_t count : {0, 1, 1021, 80'021}) {
          TypedBytes data(DType::kFloat64, count, 1);
          for (std::size_t i = 0; i < count; ++i) data.set(i, transport->rank() + 1.0);
          const TransportStats before = transport->stats();
          all_reduce_call(data).run(*engine, sequence++);
          const TransportStats after = transport->stats();
          for (std::size_t i = 0; i < count; ++i) {
            if (data.get(i) == size * (size + 1) / 2.0) continue;
            fail(ErrorCode::kInternal, algorithm.name, ": element ", i, " of ", count,
                 ": expected ", size * (size + 1) / 2.0, ", got ", data.get(i));
          }
          internal::CallShape shape{.size = size, .rank = transport->rank(), .count = count};
          shape.element_bytes = 8;
          shape.segment_bytes = internal::kNetworkSegmentBytes;
          const internal::Schedule schedule = make_schedule(algorithm, shape);
          const std::uint64_t bytes =
              traffic_of(schedule).elements * 8 + internal::kEncodedHeaderBytes;
          const std::uint64_t messages =
              traffic_of(schedule).messages +
              (begins_with_send(schedule, (transport->rank() + 1) % size) ? 0 : 1);
          if (after.bytes_sent - before.bytes_sent != bytes ||
              after.messages_sent - before.messages_sent != messages) {
            fail(ErrorCode::kInternal, algorithm.name, ": sent ",
                 after.messages_sent - before.messages_sent, " messages of ",
                 after.bytes_sent - before.bytes_sent, " bytes, expected ", messages, " of ",
                 bytes);
          }
        }
      }
    }));
  }
}

// Size of two hellos, two proofs and one verdict.
constexpr std::uint64_t kHandshakeBytes =
    2 * (internal::kRankHelloBytes + internal::kProofBytes) + 1;

/// Exchanges messages of many lengths between the two ranks until the connection breaks.
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

/// Returns the time from the proxy's fault to the end of the last call, in seconds.
double seconds_until_told(const ChaosProxy& proxy, const std::array<CallsEnd, 2>& ends) {
  return seconds_between(proxy.last_event(), std::max(ends[0].at, ends[1].at));
}

/// Kind of fault. Each connection has one fault, within the first bytes or the first megabytes.
enum class Fault { kCut, kFlip, kHalfClose };

ChaosPlan plan_of(Fault fault, std::uint64_t seed) {
  // mean number of bytes before a fault
  constexpr std::uint64_t kDistances[] = {40, 500, 20'000, 1'500'000};
  ChaosPlan plan{.seed = seed, .most_events = 1, .spares = kHandshakeBytes};
  auto& every = fault == Fault::kCut    ? plan.cut_every
                : fault == Fault::kFlip ? plan.flip_every
                                        : plan.half_close_every;
  every = kDistances[seed % 4];
  return plan;
}

struct PeerGpus {
  std::vector<double> seconds;  // time until both ranks received an error, sorted
  int damaged = 0;              // number of errors that report damaged data
};

/// For each seed, connects a new pair of ranks and breaks the connection.
PeerGpus break_pairs(Fault fault, std::uint64_t num_seeds) {
  PeerGpus told;
  for (std::uint64_t seed = 1; seed <= num_seeds; ++seed) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, concat("seed ", seed));
    ProxiedRanks group(plan_of(fault, seed));
    const auto ends = exchange_until_it_breaks(group, 3'000'000);
    EXPECT_EQ(
        group.proxy().num_cuts() + group.proxy().num_flips() + group.proxy().num_half_closes(), 1);
    for (const int rank : {0, 1}) {
      const CallsEnd& end = ends[static_cast<std::size_t>(rank)];
      expect_loss_of(1 - rank, end, *group.rank(rank));
      const bool is_damaged = end.message.find("is damaged") != std::string::npos;
      told.damaged += is_damaged;
      EXPECT_TRUE(is_damaged || end.message.find("disconnected: ") != std::string::npos)
          << end.message;
    }
    told.seconds.push_back(seconds_until_told(group.proxy(), ends));
  }
  std::ranges::sort(told.seconds);
  return told;
}

/// A lost connection ends calls within a second on an idle machine; their deadline is one minute.
TEST(TcpChaos, ConnectionLossAtAnyByteEndsCallsOnBothRanks) {
  struct Case {
    const char* name;
    Fault fault;
    std::uint64_t num_seeds;
    int num_damaged;  // expected number of errors that report damaged data
  };
  for (const Case& each : {Case{"reset", Fault::kCut, 12, 0},
                           {"changed bit", Fault::kFlip, 16, 16},
                           {"closed on one side", Fault::kHalfClose, 8, 0}}) {
    SCOPED_TRACE(each.name);
    const PeerGpus told = break_pairs(each.fault, each.num_seeds);
    const double median = told.seconds[told.seconds.size() / 2];
    std::printf(
        "broken | %s | %zu times | both ranks notified after %.4f s (median), at most %.3f s\n",
        each.name, told.seconds.size(), median, told.seconds.back());
    EXPECT_LT(median, 15.0);
    EXPECT_EQ(told.damaged, each.num_damaged);
  }
}

TEST(TcpChaos, ConnectionLossBetweenCallsIsReportedByNextCall) {
  ProxiedRanks group;
  expect_on_ranks(2, [&](int rank) { exchange(*group.rank(rank), 10); });
  group.proxy().cut_all();
  Clock::system().sleep_for(100ms);
  const auto ends = exchange_until_it_breaks(group, 10);
  for (const int rank : {0, 1}) {
    expect_loss_of(1 - rank, ends[static_cast<std::size_t>(rank)], *group.rank(rank));
  }
}

// Messages that arrived completely before the connection was lost can still be received.
TEST(TcpChaos, MessagesThatArriveBeforeConnectionLossAreReceived) {
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

/// Sums over three ranks in a ring until the connection between ranks 1 and 2 breaks.
std::vector<std::string> errors_when_one_pair_breaks(bool is_cut) {
  ProxiedRanks group({.most_events = 1, .spares = std::uint64_t{1} << 40}, 3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    const auto communicator =
        make_communicator(group.rank(rank), {.algorithm = "ring", .timeout = 60s});
    for (int call = 0;; ++call) {
      std::vector<float> values(2'000, static_cast<float>(rank));
      communicator->all_reduce(ReduceOp::kSum, Elements(std::span(values)));
      if (std::ranges::count(values, 3.0f) != 2'000)
        fail(ErrorCode::kInternal, "all_reduce: expected the sum 3");
      if (rank != 0 || call != 5) continue;
      ChaosProxy& between_1_and_2 = group.store.proxy(1);  // only rank 2 connects through it
      is_cut ? between_1_and_2.cut_after(100) : between_1_and_2.flip_after(100);
    }
  });
  EXPECT_EQ(group.rank(0)->lost_peer(), std::nullopt);
  const auto lost = {group.rank(1)->lost_peer(), group.rank(2)->lost_peer()};
  EXPECT_TRUE(std::ranges::count(lost, 2) + std::ranges::count(lost, 1) >= 1);
  return errors;
}

TEST(TcpChaos, BrokenConnectionOfTwoRanksEndsCallsOnAllRanks) {
  for (const bool is_cut : {true, false}) {
    for (const std::string& error : errors_when_one_pair_breaks(is_cut)) {
      EXPECT_THAT(error, AnyOf(HasSubstr("rank 1 (127.0.0.1:"), HasSubstr("rank 2 (127.0.0.1:")));
      EXPECT_THAT(error, AnyOf(HasSubstr("disconnected: "), HasSubstr("is damaged")));
    }
  }
}

// Covers every message of the handshake except the last, whose sender does not wait for a reply.
TEST(TcpChaos, FailedHandshakesAreRetried) {
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

TEST(TcpChaos, AdvertisedAddressOverridesListenAddress) {
  // The listener is already closed, so this port is free again.
  const internal::Endpoint inside = internal::listen_at({"127.0.0.1", 0}).endpoint;
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
  InProcessStore none;
  EXPECT_INVALID(connect_by_tcp(0, 1, none, {.listen_at = "5000"}), "address to listen at",
                 "host:port", "'5000'");
}

TEST(TcpChaos, SlowAndTricklingConnectionsAreTolerated) {
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

}  // namespace tutti::tcp_transport_test

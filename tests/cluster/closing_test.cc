// Tests how transports close: departing ranks, lost packets, interrupted connection attempts, and
// message buffers.
// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <list>

#include "tests/cluster/proxied_ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::closing_test {
using namespace proxied_ranks;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

double seconds_since(TimePoint begin) { return seconds_between(begin, Clock::system().now()); }

// Slightly less than the 2 s for which a closing rank waits for an unresponsive peer. Load can only
// lengthen this wait.
constexpr double kStay = 1.9;

/// Returns true if at least one of ten calls to `leave` takes less than kStay seconds; several
/// calls are made because the machine may stall occasionally.
bool leaves_at_once(const std::function<double()>& leave) {
  for (int i = 0; i < 10; ++i) {
    if (leave() < kStay) return true;
  }
  return false;
}

/// Destroys `rank` and returns how long that took, in seconds.
double leave(std::shared_ptr<Transport>& rank) {
  const TimePoint begin = Clock::system().now();
  rank.reset();
  return seconds_since(begin);
}

void expect_end_of(int leaver, Transport& mine) {
  std::array<std::byte, 1> more{};
  EXPECT_ERROR(mine.recv(leaver, 2, {}, more)->wait(late()), kUnavailable,
               concat("tcp: rank ", leaver, " (127.0.0.1:"), "disconnected: ");
}

/// Case in which a rank sends `count` bytes and disconnects. The other rank reads them immediately
/// or late. A late read begins after the disconnection if the bytes fit into the socket buffer;
/// otherwise, it begins after 300 ms, and the sender waits until then.
struct Leaving {
  std::size_t count;
  int leaver;
  bool has_unread;  // true if the peer has sent bytes that rank `leaver` does not read
  bool is_asked_late;
};

double leave_after_sending(const Leaving& how) {
  DirectRanks pair;
  std::shared_ptr<Transport>&leaver = pair.rank(how.leaver), &reader = pair.rank(1 - how.leaver);
  const auto body = pattern_of(how.count, how.count + 1), unread = pattern_of(50'000, 3);
  std::vector<std::byte> got(how.count);
  if (how.has_unread) reader->send(how.leaver, 9, {}, unread)->wait(late());
  const auto read = [&] {
    try {
      reader->recv(how.leaver, 1, {}, got)->wait(late());
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  };
  const bool fits = how.count <= 100'000;
  std::unique_ptr<Thread> reads;
  if (!how.is_asked_late || !fits) {
    reads = Executor::system().start("reader", [&] {
      if (how.is_asked_late) Clock::system().sleep_for(300ms);
      read();
    });
  }
  leaver->send(1 - how.leaver, 1, {}, body)->wait(late());
  const double seconds = leave(leaver);
  reads ? reads->join() : read();
  EXPECT_TRUE(got == body);
  expect_end_of(how.leaver, *reader);
  return seconds;
}

TEST(TcpClosing, LastMessageArrivesAfterSenderDisconnects) {
  double slowest = 0;
  int num_cases = 0;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{100}, std::size_t{70'000}, std::size_t{16} << 20}) {
    for (const int leaver : {0, 1}) {
      for (const bool has_unread : {false, true}) {
        for (const bool is_asked_late : {false, true}) {
          const ::testing::ScopedTrace trace(
              __FILE__, __LINE__,
              concat(count, " bytes of rank ", leaver, has_unread ? ", unread bytes" : "",
                     is_asked_late ? ", read late" : ""));
          ++num_cases;
          slowest =
              std::max(slowest, leave_after_sending({count, leaver, has_unread, is_asked_late}));
        }
      }
    }
  }
  std::printf("closing | after the last message, %d times | slowest %.3f s\n", num_cases, slowest);
}

/// Returns the integral value of element `i`, which depends on the rank and the call.
float operand_of(int rank, int call, std::size_t i) {
  return static_cast<float>((i * 31 + static_cast<std::size_t>(call * 7 + rank * 1'013)) % 4'093);
}

void check_sum(Communicator& communicator, int call, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = operand_of(communicator.rank(), call, i);
  communicator.all_reduce(ReduceOp::kSum, Elements(std::span(values)));
  for (std::size_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int rank = 0; rank < communicator.size(); ++rank) expected += operand_of(rank, call, i);
    if (values[i] == expected) continue;
    fail(ErrorCode::kInternal, "call ", call, ", element ", i, ": expected ", expected, ", got ",
         values[i]);
  }
}

// The last call completes on all ranks, although each rank disconnects once it has its own result.
TEST(TcpClosing, ImmediateDisconnectKeepsLastAllReduceIntact) {
  double slowest = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    const std::size_t count = seed % 3 == 0 ? 1 + seed : 1'700 * seed;
    InProcessStore store;
    TimePoint begin;
    const std::string error = error_of_ranks(size, [&](int rank) {
      const auto communicator =
          make_communicator(connect_by_tcp(rank, size, store),
                            {.algorithm = seed % 5 == 0 ? "ring" : "canonical", .timeout = 60s});
      for (int call = 0; call < 3; ++call) check_sum(*communicator, call, count);
      if (rank == 0) begin = Clock::system().now();
    });
    slowest = std::max(slowest, seconds_since(begin));
    EXPECT_EQ(error, "") << "seed " << seed;
  }
  std::printf("closing | after the last all_reduce of 24 groups | slowest %.3f s\n", slowest);
}

/// Group in which packets from rank 0 no longer arrive, so rank 0's last data stays in its socket
/// buffer.
struct Silenced : DirectRanks {
  Silenced() {
    let_packets_vanish(end_of_rank[1]);
    rank(0)->send(1, 3, {}, pattern_of(100, 1))->wait(late());
  }
};

TEST(TcpClosing, WaitForUnresponsivePeerIsBounded) {
  Silenced group;
  EXPECT_GT(leave(group.rank(0)), kStay);
  EXPECT_TRUE(leaves_at_once([] {
    Silenced aborted;
    aborted.rank(0)->abort(Error(ErrorCode::kInternal, "enough"));
    return leave(aborted.rank(0));
  }));
}

TEST(TcpClosing, DoesNotWaitForDisconnectedPeer) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{32} << 20}) {
    EXPECT_TRUE(leaves_at_once([count] {
      ProxiedRanks group;
      const auto body = pattern_of(count, 1);
      const auto send = group.rank(1)->send(0, 1, {}, body);  // a large body is only partly sent
      group.store.end_proxy(0);
      std::array<std::byte, 1> byte{};
      EXPECT_THROW(group.rank(1)->recv(0, 2, {}, byte)->wait(late()), Error);
      return leave(group.rank(1));
    })) << count
        << " bytes";
  }
}

TEST(TcpClosing, EarlyDisconnectEndsCallsOfRemainingRanks) {
  InProcessStore store;
  const auto errors = errors_of_ranks(3, [&](int rank) {
    const auto communicator = make_communicator(connect_by_tcp(rank, 3, store),
                                                {.algorithm = "canonical", .timeout = 60s});
    check_sum(*communicator, 0, 1000);
    if (rank == 1) return;
    check_sum(*communicator, 1, 1000);
  });
  EXPECT_EQ(errors[1], "");
  for (const std::size_t rank : {0, 2}) {
    EXPECT_THAT(errors[rank], AllOf(HasSubstr("disconnected: "), HasSubstr("rank 1 (")));
  }
}

// All connections exist once the group has formed, so a rank notices a peer's death even without a
// connection attempt.
class DeathNotice : public ::testing::TestWithParam<ConnectOptions::Way> {
 protected:
  DeathNotice() : ranks_(connected_ranks(4, {.way = GetParam()})) { ranks_[3].reset(); }
  /// Runs an all_reduce on the ranks in `members`, which then leave the group. Returns an error per
  /// rank; "" for ranks without an error.
  std::vector<std::string> errors_of_sum(const std::vector<int>& members) {
    return errors_of_ranks(4, [&](int rank) {
      if (std::ranges::find(members, rank) == members.end()) return;
      const auto communicator =
          make_communicator(std::move(ranks_[static_cast<std::size_t>(rank)]), {.timeout = 60s});
      check_sum(*communicator, 0, 1000);
    });
  }
  std::vector<std::shared_ptr<Transport>> ranks_;
};

TEST_P(DeathNotice, ReachesEveryRankBeforeFirstMessage) {
  const TimePoint begin = Clock::system().now();
  const auto errors = errors_of_sum({0, 1, 2});
  for (const std::size_t rank : {0, 1, 2}) {
    EXPECT_THAT(errors[rank], AllOf(HasSubstr("rank 3 ("), HasSubstr("disconnected: "))) << rank;
  }
  EXPECT_LT(Clock::system().now() - begin, 30s);
}

TEST_P(DeathNotice, ReachesBusyRankAfterInformedRanksExited) {
  const TimePoint begin = Clock::system().now();
  const auto errors = errors_of_sum({0, 2});
  EXPECT_THAT(errors[0], HasSubstr("rank 3 ("));
  EXPECT_THAT(errors[2], HasSubstr("rank 3 ("));
  EXPECT_THAT(errors_of_sum({1})[1], HasSubstr("rank 3 ("));
  EXPECT_LT(Clock::system().now() - begin, 30s);
}

std::string name_of(const ::testing::TestParamInfo<ConnectOptions::Way>& info) {
  return info.param == ConnectOptions::Way::kTcp            ? "tcp"
         : info.param == ConnectOptions::Way::kSharedMemory ? "shm"
                                                            : "any";
}
constexpr ConnectOptions::Way kWays[] = {
    ConnectOptions::Way::kTcp, ConnectOptions::Way::kSharedMemory, ConnectOptions::Way::kAuto};
INSTANTIATE_TEST_SUITE_P(Transports, DeathNotice, ::testing::ValuesIn(kWays, kWays + 2), name_of);

using Bytes = std::vector<std::byte>;

// Message size in bytes; exceeds the socket buffer, so part of it is written while the peer reads.
constexpr std::size_t kLong = std::size_t{32} << 20;
constexpr std::byte kOther{0xA5};

TEST(SendBuffer, MayBeReusedAfterWaitEvenBeforeReceive) {
  DirectRanks ranks;
  const Bytes original = pattern_of(16'000, 7);
  Bytes memory = original, got(original.size());
  ranks.rank(0)->send(1, 5, {}, memory)->wait(late());  // now buffered by the kernel
  std::ranges::fill(memory, kOther);
  ranks.rank(1)->recv(0, 5, {}, got)->wait(late());
  EXPECT_TRUE(got == original);
}

TEST(SendBuffer, MayBeReusedAfterTestReportsCompletion) {
  DirectRanks ranks;
  const Bytes original = pattern_of(kLong, 8);
  Bytes memory = original, got(kLong);
  const auto reads =
      Executor::system().start("rank-1", [&] { ranks.rank(1)->recv(0, 5, {}, got)->wait(late()); });
  const auto send = ranks.rank(0)->send(1, 5, {}, memory);
  for (const TimePoint end = late(); !send->test();) ASSERT_LT(Clock::system().now(), end);
  std::ranges::fill(memory, kOther);
  reads->join();
  EXPECT_TRUE(got == original);
}

TEST(SendBuffer, MayBeFreedAfterSendHandleIsDropped) {
  DirectRanks ranks;
  const Bytes original = pattern_of(kLong, 9);
  auto memory = std::make_unique<Bytes>(original);
  (void)ranks.rank(0)->send(1, 5, {}, *memory);
  memory.reset();
  const auto drives = Executor::system().start("rank-0", [&] {
    std::array<std::byte, 1> word{};
    ranks.rank(0)->recv(1, 6, {}, word)->wait(late());
  });
  Bytes got(original.size());
  ranks.rank(1)->recv(0, 5, {}, got)->wait(late());
  EXPECT_TRUE(got == original);
  const std::array<std::byte, 1> word{};
  ranks.rank(1)->send(0, 6, {}, word)->wait(late());
  drives->join();
}

// The peer keeps reading while it waits for another message; only its reads free buffer space.
TEST(SendBuffer, MayBeFreedAfterAbortDuringLargeSend) {
  DirectRanks ranks;
  auto memory = std::make_unique<Bytes>(pattern_of(std::size_t{8} << 20, 16));
  const auto send = ranks.rank(0)->send(1, 5, {}, *memory);  // rank 1 never receives this
  const auto waits = Executor::system().start("rank-1", [&] {
    std::array<std::byte, 1> word{};
    EXPECT_THAT(thrown::error_of([&] { ranks.rank(1)->recv(0, 6, {}, word)->wait(late()); }),
                HasSubstr("rank 0: the disk is full"));
  });
  ranks.rank(0)->abort(Error(ErrorCode::kAborted, "rank 0: the disk is full"));
  memory.reset();  // part of the message may still be unsent
  waits->join();   // rank 0 still exists, so it was the abort that ended the wait
  EXPECT_ERROR(send->wait(in(1s)), kAborted, "the disk is full");
}

// The receiver's memory is freed in the middle of the body; the next message still arrives
// complete.
TEST(SendBuffer, ReceiveCanBeCancelledDuringLargeMessage) {
  DirectRanks ranks;
  const Bytes first = pattern_of(kLong, 12), second = pattern_of(1'000'000, 13);
  const auto sends = Executor::system().start("rank-0", [&] {
    const auto one = ranks.rank(0)->send(1, 5, {}, first);
    Clock::system().sleep_for(50ms);  // time to receive part of the message
    const auto two = ranks.rank(0)->send(1, 6, {}, second);
    one->wait(late());
    two->wait(late());
  });
  {
    Bytes memory(first.size());
    const auto leaves = ranks.rank(1)->recv(0, 5, {}, memory);
    EXPECT_THROW(leaves->wait(in(10ms)), Error);
  }
  Bytes got(second.size());
  ranks.rank(1)->recv(0, 6, {}, got)->wait(late());
  EXPECT_TRUE(got == second);
  sends->join();
}

// Each rank sends memory that the peer's message then overwrites, as in an in-place all_reduce.
TEST(SendBuffer, MayBeReusedForReceiveAfterSend) {
  constexpr std::size_t kInPlace = std::size_t{700} << 10;
  DirectRanks ranks;
  const Bytes originals[] = {pattern_of(kInPlace, 14), pattern_of(kInPlace, 99)};
  Bytes memories[] = {originals[0], originals[1]};
  expect_on_ranks(2, [&](int rank) {
    const auto& own = ranks.rank(rank);
    for (int round = 0; round < 50; ++round) {
      Bytes& memory = memories[rank];
      own->send(1 - rank, 5, {}, memory)->wait(late());
      own->recv(1 - rank, 5, {}, memory)->wait(late());
      const int from = round % 2 == 0 ? 1 - rank : rank;
      if (memory != originals[from]) {
        fail(ErrorCode::kInternal, "round ", round, ": expected the bytes of rank ", from);
      }
    }
  });
}

// Rank 0 sends rank 1 more than the buffers hold, then waits for rank 2, which sends only after
// rank 1 has received everything. So rank 0's send must continue during that wait, as soon as rank
// 1 frees space.
TEST(SendBuffer, LargeSendProgressesWhileRankWaitsForAnotherPeer) {
  InProcessStore store;
  expect_on_ranks(3, [&](int rank) {
    const auto own = connect_by_tcp(rank, 3, store);
    Bytes word(1), body(std::size_t{16} << 20);
    for (int round = 0; round < 20; ++round) {
      if (rank == 0) {
        const auto sent = own->send(1, 1, {}, body);
        own->recv(2, 2, {}, word)->wait(late());
        sent->wait(late());
      } else if (rank == 1) {
        own->recv(0, 1, {}, body)->wait(late());
        own->send(2, 3, {}, word)->wait(late());
      } else {
        own->recv(1, 3, {}, word)->wait(late());
        own->send(0, 2, {}, word)->wait(late());
      }
    }
  });
}

/// Case that defines which packets are dropped, and what the ranks do meanwhile.
struct Silence {
  const char* name;
  bool to_zero, to_one;
  std::size_t count;          // bytes per exchange; 0: both ranks only wait
  std::uint32_t longest = 0;  // largest segment that is let through, in bytes; 0: none
};

constexpr Silence kSilences[] = {
    {"to rank 0, both wait", true, false, 0},
    {"to rank 1, both send", false, true, 10},
    {"both ways, both wait", true, true, 0},
    {"both ways, both send", true, true, 300'000},
    {"to rank 1, segments of over 1000 bytes", false, true, 300'000, 1000},
};

void expect_that_both_are_told(const Silence& silence) {
  DirectRanks group;
  if (silence.to_zero) let_packets_vanish(group.end_of_rank[0], silence.longest);
  if (silence.to_one) let_packets_vanish(group.end_of_rank[1], silence.longest);
  const TimePoint begin = Clock::system().now();
  std::array<CallsEnd, 2> ends;
  expect_on_ranks(2, [&](int r) {
    std::array<std::byte, 1> byte{};
    ends[static_cast<std::size_t>(r)] = end_of([&](std::uint64_t round) {
      if (silence.count == 0) group.rank(r)->recv(1 - r, 9, {}, byte)->wait(late());
      if (silence.count > 0) exchange(*group.rank(r), silence.count, round);
    });
  });
  std::printf("half-open | %s | rank 0 notified after %.2f s, rank 1 after %.2f s (goal: 5 s)\n",
              silence.name, seconds_between(begin, ends[0].at), seconds_between(begin, ends[1].at));
  for (const int rank : {0, 1}) {
    const CallsEnd& end = ends[static_cast<std::size_t>(rank)];
    expect_loss_of(1 - rank, end, *group.rank(rank));
    EXPECT_NE(end.message.find("disconnected: "), std::string::npos) << end.message;
    EXPECT_LT(seconds_between(begin, end.at), 20) << silence.name;
  }
}

// Runs the cases concurrently, because each lasts as long as the system's TCP timeout.
TEST(TcpHalfOpen, PacketLossEndsCallsOnBothRanks) {
  std::list<std::unique_ptr<Thread>> threads;
  for (const Silence& silence : kSilences) {
    threads.push_back(
        Executor::system().start("silence", [&silence] { expect_that_both_are_told(silence); }));
  }
  for (const auto& thread : threads) thread->join();
}

// TCP resends the lost packets, some of them late.
TEST(TcpHalfOpen, TwoSecondsOfSilenceAreTolerated) {
  DirectRanks group;
  for (const int end : group.end_of_rank) let_packets_vanish(end);
  const auto heals = Executor::system().start("healing", [&] {
    Clock::system().sleep_for(2s);
    for (const int end : group.end_of_rank) let_packets_arrive(end);
  });
  expect_on_ranks(2, [&](int rank) { exchange(*group.rank(rank), 100'000, 1); });
  heals->join();
  EXPECT_EQ(group.rank(0)->lost_peer(), std::nullopt);
}

/// Expects connections to survive when rank 0 has sent rank 1 `count` bytes and rank 1 reads
/// nothing for 8 s.
void expect_patience(std::size_t count) {
  DirectRanks group;
  const auto body = pattern_of(count, 5);
  expect_on_ranks(2, [&](int r) {
    std::vector<std::byte> answer(1), got(count);
    if (r == 0) {
      const auto send = group.rank(0)->send(1, 3, {}, body);
      group.rank(0)->recv(1, 4, {}, answer)->wait(late());
      send->wait(late());
      return;
    }
    Clock::system().sleep_for(8s);
    group.rank(1)->recv(0, 3, {}, got)->wait(late());
    if (got != body) fail(ErrorCode::kInternal, "rank 1: received bytes differ from those sent");
    group.rank(1)->send(0, 4, {}, answer)->wait(late());
  });
}

// The pause exceeds the timeout for silent connections, but rank 1's kernel still acknowledges
// probes and data.
TEST(TcpHalfOpen, LongComputationKeepsConnections) {
  std::list<std::unique_ptr<Thread>> threads;
  for (const std::size_t count : {std::size_t{0}, std::size_t{1000}, std::size_t{32} << 20}) {
    threads.push_back(Executor::system().start("busy", [count] { expect_patience(count); }));
  }
  for (const auto& thread : threads) thread->join();
}

const Error kReason(ErrorCode::kUnavailable, "worker 1 (pid 4711) died");

/// Expects rank `rank` of two to stop connecting as soon as the interruption is raised, long before
/// its timeout of 60 s. `before`, if given, runs just before the interruption.
void expect_interruption(int rank, ConnectOptions::Way way, KeyValueStore& store,
                         const std::function<void()>& before = nullptr) {
  const auto interruption = std::make_shared<Interruption>();
  const TimePoint begin = Clock::system().now();
  const auto other = Executor::system().start("alarm", [&] {
    Clock::system().sleep_for(100ms);
    if (before) before();
    interruption->raise(kReason);
    interruption->raise(Error(ErrorCode::kInternal, "the second one does not count"));
  });
  EXPECT_ERROR((void)connect_ranks(rank, 2, store,
                                   {.way = way, .timeout = 60s, .interruption = interruption}),
               kUnavailable, "worker 1 (pid 4711) died");
  EXPECT_GE(Clock::system().now() - begin, 100ms);
}

class ConnectInterruption : public ::testing::TestWithParam<ConnectOptions::Way> {
 protected:
  void expect_that_it_ends(int rank) { expect_interruption(rank, GetParam(), store); }
  InProcessStore store;
};

/// Rank 1 never joins.
TEST_P(ConnectInterruption, EndsWaitOfRank0ForHigherRank) { expect_that_it_ends(0); }

/// Rank 0 never publishes its address.
TEST_P(ConnectInterruption, EndsWaitOfHigherRankForAddress) { expect_that_it_ends(1); }

/// Rank 0 listens but never replies.
TEST_P(ConnectInterruption, EndsWaitOfHigherRankForReply) {
  const internal::Listener far = internal::listen_at({"127.0.0.1", 0});
  const internal::Listener near = internal::listen_locally();
  const auto own = connect_ranks(0, 1, store, {.way = ConnectOptions::Way::kTcp});
  const auto announced = internal::parse_announcement(store.get("ranks/0").value()).value();
  store.set("ranks/0", internal::to_text({7, announced.machine, far.endpoint, near.endpoint}));
  expect_that_it_ends(1);
}

INSTANTIATE_TEST_SUITE_P(Transports, ConnectInterruption, ::testing::ValuesIn(kWays), name_of);

/// A stopped rank keeps its connections open, but never reports that they are complete.
TEST(Interruption, EndsWaitForUnresponsiveRank) {
  InProcessStore store;
  store.set("ranks/1", internal::to_text({.run = 815,
                                          .machine = "elsewhere",
                                          .endpoint = {"127.0.0.1", 9},
                                          .group_size = 2,
                                          .build = internal::make_build("", {})}));
  internal::FileDescriptor socket;
  const auto peer = Executor::system().start("rank-1", [&] {
    const auto zero = internal::parse_announcement(store.wait("ranks/0", late())).value();
    socket = proxied_ranks::connect_to(zero.endpoint);
    const auto handshake = proxied_ranks::shake_hands(socket, {1, 815}, {});
    EXPECT_EQ(handshake.state(), internal::Handshake::State::kDone) << handshake.reason();
    store.set("is_connected", "");
  });
  expect_interruption(0, ConnectOptions::Way::kTcp, store,
                      [&] { (void)store.wait("is_connected", late()); });
  peer->join();
}

TEST(Interruption, EveryCheckAfterRaiseThrowsReason) {
  Interruption interruption;
  interruption.check();
  interruption.raise(kReason);
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR(interruption.check(), kUnavailable, "worker 1");
  }
}

}  // namespace tutti::closing_test

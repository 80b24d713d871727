// The end of a transport, and the memory of its messages.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "tests/cluster/proxied_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tests/support/vanishing_packets.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace closing_test {
using namespace proxied_ranks;
using namespace std::chrono_literals;

double seconds_since(TimePoint begin) { return seconds_between(begin, Clock::system().now()); }

// A rank lingers for two seconds: on a machine however busy no time is shorter than that.
constexpr double kStay = 1.9;

/// Whether one of so many left before that, for the machine may stand still now and then.
bool leaves_at_once(const std::function<double()>& leave) {
  for (int i = 0; i < 10; ++i) {
    if (leave() < kStay) return true;
  }
  return false;
}

/// In seconds.
double leave(std::shared_ptr<Transport>& rank) {
  const TimePoint begin = Clock::system().now();
  rank.reset();
  return seconds_since(begin);
}

void expect_end_of(int leaver, Transport& mine) {
  std::array<std::byte, 1> more{};
  testing::expect_error(ErrorCode::kUnavailable,
                        {concat("tcp: rank ", leaver, " (127.0.0.1:"), "is gone: "},
                        [&] { mine.recv(leaver, 2, {}, more)->wait(in(60s)); });
}

/// Two ranks of this process, without a proxy.
struct DirectPair {
  DirectPair() {
    EXPECT_EQ(error_of_ranks(2,
                             [&](int r) {
                               rank(r) = connect_by_tcp(r, 2, store);
                               exchange(*rank(r), 1);
                             }),
              "");
  }
  std::shared_ptr<Transport>& rank(int r) { return ranks[static_cast<std::size_t>(r)]; }
  InProcessStore store;
  std::array<std::shared_ptr<Transport>, 2> ranks;
};

/// A rank sends that much and leaves. The other one asks for it at once, or late: what does not fit
/// into the system's memory while the sender is there, the rest when it is gone.
struct Leaving {
  std::size_t count;
  int leaver;
  bool has_unread;  // bytes that the other one has sent, and the leaver does not look at
  bool is_asked_late;
};

double leave_after_sending(const Leaving& how) {
  DirectPair pair;
  std::shared_ptr<Transport>&leaver = pair.rank(how.leaver), &reader = pair.rank(1 - how.leaver);
  const auto body = pattern_of(how.count, how.count + 1), unread = pattern_of(50'000, 3);
  std::vector<std::byte> got(how.count);
  if (how.has_unread) reader->send(how.leaver, 9, {}, unread)->wait(in(60s));
  const auto read = [&] {
    try {
      reader->recv(how.leaver, 1, {}, got)->wait(in(60s));
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
  leaver->send(1 - how.leaver, 1, {}, body)->wait(in(60s));
  const double seconds = leave(leaver);
  reads ? reads->join() : read();
  EXPECT_TRUE(got == body);
  expect_end_of(how.leaver, *reader);
  return seconds;
}

TEST(TcpClosing, TheLastMessageArrivesWhenItsSenderLeavesRightAfterIt) {
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
                     is_asked_late ? ", asked for late" : ""));
          ++num_cases;
          slowest =
              std::max(slowest, leave_after_sending({count, leaver, has_unread, is_asked_late}));
        }
      }
    }
  }
  std::printf("leaving | %d times after the last message | slowest %.3f s\n", num_cases, slowest);
}

/// Whole numbers, other ones in each call.
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

// The last call ends on all ranks though each of them leaves at once when it has its own result.
TEST(TcpClosing, RanksThatLeaveRightAfterTheirLastSumTakeNobodysResult) {
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
  std::printf("leaving | 24 groups after their last sum | slowest %.3f s\n", slowest);
}

/// Nothing of what rank 0 says arrives any more; its last words stay with its own system.
struct Silenced : DirectPair {
  Silenced() {
    const auto announced = internal::parse_announcement(store.get("ranks/0").value()).value();
    testing::let_packets_vanish(testing::end_of_connection(announced.endpoint.port, false));
    rank(0)->send(1, 3, {}, pattern_of(100, 1))->wait(in(60s));
  }
};

TEST(TcpClosing, ARankLingersForAPeerThatDoesNotAnswerAndNotForLong) {
  Silenced group;
  EXPECT_GT(leave(group.rank(0)), kStay);
  EXPECT_TRUE(leaves_at_once([] {
    Silenced aborted;
    aborted.rank(0)->abort(Error(ErrorCode::kInternal, "enough"));
    return leave(aborted.rank(0));
  }));
}

TEST(TcpClosing, ARankDoesNotStayForAPeerThatIsGone) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{32} << 20}) {
    EXPECT_TRUE(leaves_at_once([count] {
      ProxiedRanks group;
      const auto body = pattern_of(count, 1);
      const auto send = group.rank(1)->send(0, 1, {}, body);  // much of it is not on its way yet
      group.store.end_proxy(0);
      std::array<std::byte, 1> byte{};
      EXPECT_THROW(group.rank(1)->recv(0, 2, {}, byte)->wait(in(60s)), Error);
      return leave(group.rank(1));
    })) << count
        << " bytes";
  }
}

TEST(TcpClosing, ARankThatLeavesEarlyEndsTheCallsOfTheOthersAtOnce) {
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
    EXPECT_NE(errors[rank].find("is gone: "), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find("rank 1 ("), std::string::npos) << errors[rank];
  }
}

using Bytes = std::vector<std::byte>;

// More than the system keeps for a socket, so a part of it is written while the peer reads.
constexpr std::size_t kLong = std::size_t{32} << 20;
constexpr std::byte kOther{0xA5};

TimePoint by(Duration duration) { return deadline_after(Clock::system().now(), duration); }

Bytes counted(std::size_t count, unsigned first) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((first + i + i / 251) % 251);
  }
  return bytes;
}

/// Two ranks of this process, connected over TCP.
struct Two {
  Two() {
    const auto lower =
        Executor::system().start("rank-0", [&] { zero = connect_by_tcp(0, 2, store); });
    one = connect_by_tcp(1, 2, store);
    lower->join();
  }
  InProcessStore store;
  std::shared_ptr<Transport> zero, one;
};

TEST(MessageMemory, MayChangeAfterTheWaitAlthoughNobodyHasReceived) {
  Two ranks;
  const Bytes original = counted(16'000, 7);
  Bytes memory = original, got(original.size());
  ranks.zero->send(1, 5, {}, memory)->wait(by(60s));  // the system has it
  std::ranges::fill(memory, kOther);
  ranks.one->recv(0, 5, {}, got)->wait(by(60s));
  EXPECT_TRUE(got == original);
}

TEST(MessageMemory, MayChangeOnceATestHasSeenTheEndOfALongSend) {
  Two ranks;
  const Bytes original = counted(kLong, 8);
  Bytes memory = original, got(kLong);
  const auto reads =
      Executor::system().start("rank-1", [&] { ranks.one->recv(0, 5, {}, got)->wait(by(60s)); });
  const auto send = ranks.zero->send(1, 5, {}, memory);
  for (const TimePoint end = by(60s); !send->test();) ASSERT_LT(Clock::system().now(), end);
  std::ranges::fill(memory, kOther);
  reads->join();
  EXPECT_TRUE(got == original);
}

TEST(MessageMemory, ASendThatIsDroppedArrivesWhole) {
  Two ranks;
  const Bytes original = counted(kLong, 9);
  auto memory = std::make_unique<Bytes>(original);
  (void)ranks.zero->send(1, 5, {}, *memory);
  memory.reset();
  const auto drives = Executor::system().start("rank-0", [&] {
    std::array<std::byte, 1> word{};
    ranks.zero->recv(1, 6, {}, word)->wait(by(60s));
  });
  Bytes got(original.size());
  ranks.one->recv(0, 5, {}, got)->wait(by(60s));
  EXPECT_TRUE(got == original);
  const std::array<std::byte, 1> word{};
  ranks.one->send(0, 6, {}, word)->wait(by(60s));
  drives->join();
}

// The peer reads on, for it waits for something else; nothing but its reading makes room.
TEST(MessageMemory, AnAbortReturnsItAndIsHeardBehindALongMessage) {
  Two ranks;
  auto memory = std::make_unique<Bytes>(counted(std::size_t{8} << 20, 16));
  const auto send = ranks.zero->send(1, 5, {}, *memory);  // nobody receives it
  std::string heard;
  const auto waits = Executor::system().start("rank-1", [&] {
    std::array<std::byte, 1> word{};
    try {
      ranks.one->recv(0, 6, {}, word)->wait(by(60s));
    } catch (const Error& error) {
      heard = error.message();
    }
  });
  ranks.zero->abort(Error(ErrorCode::kAborted, "rank 0: the disk is full"));
  memory.reset();  // though a part of it may be still to be written
  waits->join();   // rank 0 is still there: its end tells nothing
  EXPECT_NE(heard.find("rank 0: the disk is full"), std::string::npos) << heard;
  testing::expect_error(ErrorCode::kAborted, {"the disk is full"}, [&] { send->wait(by(1s)); });
}

// Its memory goes away in the middle of the body; the next message comes whole.
TEST(MessageMemory, AReceiverMayLeaveInTheMiddle) {
  Two ranks;
  const Bytes first = counted(kLong, 12), second = counted(1'000'000, 13);
  const auto sends = Executor::system().start("rank-0", [&] {
    const auto one = ranks.zero->send(1, 5, {}, first);
    Clock::system().sleep_for(50ms);  // a part of it is on its way
    const auto two = ranks.zero->send(1, 6, {}, second);
    one->wait(by(60s));
    two->wait(by(60s));
  });
  {
    Bytes memory(first.size());
    const auto leaves = ranks.one->recv(0, 5, {}, memory);
    EXPECT_THROW(leaves->wait(by(10ms)), Error);
  }
  Bytes got(second.size());
  ranks.one->recv(0, 6, {}, got)->wait(by(60s));
  EXPECT_TRUE(got == second);
  sends->join();
}

// Both send what the other's message then overwrites, as an all_reduce in place does.
TEST(MessageMemory, ARankMayReceiveWhereItHasSentFrom) {
  constexpr std::size_t kInPlace = std::size_t{700} << 10;
  Two ranks;
  const Bytes originals[] = {counted(kInPlace, 14), counted(kInPlace, 99)};
  Bytes memories[] = {originals[0], originals[1]};
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             const auto& own = rank == 0 ? ranks.zero : ranks.one;
                             for (int round = 0; round < 50; ++round) {
                               Bytes& memory = memories[rank];
                               own->send(1 - rank, 5, {}, memory)->wait(by(60s));
                               own->recv(1 - rank, 5, {}, memory)->wait(by(60s));
                               const int from = round % 2 == 0 ? 1 - rank : rank;
                               if (memory != originals[from]) {
                                 fail(ErrorCode::kInternal, "other bytes in round ", round);
                               }
                             }
                           }),
            "");
}

// Rank 0 sends rank 1 more than there is room for, and waits for rank 2, which speaks only when
// rank 1 has it all: what makes room at rank 1 must let rank 0 send on.
TEST(MessageMemory, ALongSendGoesOnWhileItsRankWaitsForAnother) {
  InProcessStore store;
  EXPECT_EQ(error_of_ranks(3,
                           [&](int rank) {
                             const auto own = connect_by_tcp(rank, 3, store);
                             Bytes word(1), body(std::size_t{16} << 20);
                             for (int round = 0; round < 20; ++round) {
                               if (rank == 0) {
                                 const auto sent = own->send(1, 1, {}, body);
                                 own->recv(2, 2, {}, word)->wait(by(60s));
                                 sent->wait(by(60s));
                               } else if (rank == 1) {
                                 own->recv(0, 1, {}, body)->wait(by(60s));
                                 own->send(2, 3, {}, word)->wait(by(60s));
                               } else {
                                 own->recv(1, 3, {}, word)->wait(by(60s));
                                 own->send(0, 2, {}, word)->wait(by(60s));
                               }
                             }
                           }),
            "");
}

}  // namespace closing_test
}  // namespace tutti

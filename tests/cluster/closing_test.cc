// The end of a transport: its last messages arrive, and nobody waits for long.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>

#include "tests/cluster/proxied_ranks.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/vanishing_packets.h"
#include "tutti/cross_device_ops/communicator.h"

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
  const testing::HangWatchdog watchdog("last messages", 110s);
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
  const testing::HangWatchdog watchdog("leaving after a sum", 110s);
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
  const testing::HangWatchdog watchdog("lingering", 60s);
  Silenced group;
  EXPECT_GT(leave(group.rank(0)), kStay);
  EXPECT_TRUE(leaves_at_once([] {
    Silenced aborted;
    aborted.rank(0)->abort(Error(ErrorCode::kInternal, "enough"));
    return leave(aborted.rank(0));
  }));
}

TEST(TcpClosing, ARankDoesNotStayForAPeerThatIsGone) {
  const testing::HangWatchdog watchdog("leaving nobody", 110s);
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
  const testing::HangWatchdog watchdog("leaving early", 110s);
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

}  // namespace closing_test
}  // namespace tutti

// The end of a transport: what is cut or damaged while its rank leaves still arrives.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

#include "tests/support/chaos_proxy.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/net/rendezvous.h"
#include "tutti/cluster/net/tcp_transport.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/in_process/in_process_store.h"

namespace tutti {
namespace closing_test {

using testing::ChaosPlan;
using testing::ChaosProxy;
using namespace std::chrono_literals;

TimePoint in(Duration duration) { return deadline_after(Clock::system().now(), duration); }

double seconds_since(TimePoint begin) { return seconds_between(begin, Clock::system().now()); }

/// Every rank is reached through a proxy of its own.
class ProxiedRanks final : public KeyValueStore {
 public:
  explicit ProxiedRanks(const ChaosPlan& plan) : plan_(plan) {}
  void set(std::string_view key, std::string_view value) override {
    internal::Announcement announced = internal::parse_announcement(value).value();
    const int rank = std::atoi(std::string(key.substr(key.find('/') + 1)).c_str());
    ChaosPlan plan = plan_;
    plan.seed = plan.seed * 31 + static_cast<std::uint64_t>(rank);
    auto proxy = std::make_unique<ChaosProxy>(announced.endpoint, plan);
    announced.endpoint = proxy->endpoint();
    {
      MutexLock lock(mutex_);
      proxies_[rank] = std::move(proxy);
    }
    store_.set(key, internal::to_text(announced));
  }
  std::optional<std::string> get(std::string_view key) override { return store_.get(key); }
  std::string wait(std::string_view key, TimePoint deadline) override {
    return store_.wait(key, deadline);
  }
  ChaosProxy& proxy(int rank) {
    MutexLock lock(mutex_);
    return *proxies_.at(rank);
  }
  /// As if the rank's process had died.
  void end_proxy(int rank) {
    MutexLock lock(mutex_);
    proxies_.erase(rank);
  }

 private:
  const ChaosPlan plan_;
  InProcessStore store_;
  Mutex mutex_;
  std::map<int, std::unique_ptr<ChaosProxy>> proxies_ TUTTI_GUARDED_BY(mutex_);
};

/// All threads of a group come together; the last one does something first.
class MeetingPoint {
 public:
  explicit MeetingPoint(int size) : size_(size) {}
  void meet(const std::function<void()>& last_does = [] {}) {
    MutexLock lock(mutex_);
    const int round = round_;
    if (++come_ == size_) {
      last_does();
      come_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    const bool all =
        changed_.wait_for(mutex_, 60s, [&]() TUTTI_REQUIRES(mutex_) { return round_ != round; });
    if (!all) fail(ErrorCode::kDeadlineExceeded, "not all threads came");
  }

 private:
  const int size_;
  Mutex mutex_;
  CondVar changed_;
  int come_ TUTTI_GUARDED_BY(mutex_) = 0, round_ TUTTI_GUARDED_BY(mutex_) = 0;
};

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

/// What a seed says.
struct Ending {
  explicit Ending(std::uint64_t seed) : seed(seed) {}
  std::uint64_t draw(std::uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  }
  /// Where in so many bytes of the last call, or shortly behind it.
  std::uint64_t place(std::uint64_t bytes) {
    const std::uint64_t near = draw(2) == 0 ? 300 : 5'000;
    return bytes - std::min(bytes, draw(near)) + (draw(3) == 0 ? draw(200) : 0);
  }
  const std::uint64_t seed;
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  const int size = 2 + static_cast<int>(draw(4));
  const int num_connections = draw(4) == 0 ? 2 : 1;
  const std::size_t count = draw(3) == 0 ? 1 + draw(60) : 1 + draw(40'000);
  const bool damages = draw(2) == 0;
  const int most_faults = 1 + static_cast<int>(draw(2));
};

struct Outcome {
  std::string error;
  double seconds = 0;  // from the last call to the end of the last transport
  int faults = 0;
};

/// Ranks that leave right after their last call, while the network does what the seed says.
Outcome leave_in_chaos(Ending ending) {
  ChaosPlan plan{
      .seed = ending.seed, .most_events = ending.most_faults, .spares = std::uint64_t{1} << 40};
  (ending.damages ? plan.flip_every : plan.cut_every) = 300;  // after the first one
  ProxiedRanks store(plan);
  MeetingPoint meeting(ending.size);
  std::vector<std::uint64_t> passed(static_cast<std::size_t>(ending.size));
  TimePoint begin;
  const auto look_at_proxies = [&](const std::function<void(int, ChaosProxy&)>& look) {
    for (int rank = 0; rank + 1 < ending.size; ++rank) look(rank, store.proxy(rank));
  };
  Outcome outcome;
  outcome.error = error_of_ranks(ending.size, [&](int rank) {
    const auto communicator = make_communicator(
        tcp_transport(rank, ending.size, store,
                      {.patience = 90s, .tcp_connections = ending.num_connections}),
        {.algorithm = "canonical", .timeout = 60s});
    check_sum(*communicator, 0, ending.count);
    meeting.meet([&] {
      look_at_proxies([&](int r, ChaosProxy& proxy) {
        passed[static_cast<std::size_t>(r)] = proxy.num_passed();
      });
    });
    check_sum(*communicator, 1, ending.count);
    meeting.meet([&] {
      look_at_proxies([&](int r, ChaosProxy& proxy) {
        const std::uint64_t before = passed[static_cast<std::size_t>(r)];
        const std::uint64_t place = ending.place(proxy.num_passed() - before);
        if (ending.damages) {
          proxy.flip_after(place);
        } else {
          proxy.cut_after(place);
        }
      });
      begin = Clock::system().now();
    });
    check_sum(*communicator, 2, ending.count);
  });
  outcome.seconds = seconds_since(begin);
  look_at_proxies(
      [&](int, ChaosProxy& proxy) { outcome.faults += proxy.num_cuts() + proxy.num_flips(); });
  return outcome;
}

/// TUTTI_CLOSING_SEEDS="1 500" tries all of these instead.
std::pair<std::uint64_t, std::uint64_t> seeds_to_try() {
  const char* const text = std::getenv("TUTTI_CLOSING_SEEDS");
  unsigned long first = 1, last = 12;
  if (text != nullptr) (void)std::sscanf(text, "%lu %lu", &first, &last);
  return {first, last};
}

TEST(TcpClosing, WhatIsCutOrDamagedWhileRanksLeaveStillArrives) {
  const auto [first, last] = seeds_to_try();
  int faults = 0;
  double slowest = 0, sum = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const testing::HangWatchdog watchdog("leaving", 110s);
    const Outcome outcome = leave_in_chaos(Ending(seed));
    EXPECT_EQ(outcome.error, "") << "seed " << seed;
    faults += outcome.faults;
    slowest = std::max(slowest, outcome.seconds);
    sum += outcome.seconds;
  }
  const auto seeds = static_cast<double>(last - first + 1);
  std::printf("leaving | %.0f seeds | %d faults | %.3f s each, slowest %.2f s\n", seeds, faults,
              sum / seeds, slowest);
  EXPECT_GE(faults, static_cast<int>(seeds));
}

/// Two ranks whose connections go through proxies.
struct Pair {
  explicit Pair(const TcpOptions& options = {}) : store({.most_events = 9, .spares = 1u << 30}) {
    EXPECT_EQ(error_of_ranks(2,
                             [&](int rank) {
                               ranks[static_cast<std::size_t>(rank)] =
                                   tcp_transport(rank, 2, store, options);
                             }),
              "");
  }
  /// To the other rank. What was sent has ended; nobody has looked for it there.
  void send(int rank, std::size_t count) {
    const std::vector<std::byte> body(count, std::byte(rank + 5));
    ranks[static_cast<std::size_t>(rank)]->send(1 - rank, 1, {}, body)->wait(in(60s));
  }
  void expect_from_other(int rank, std::size_t count) {
    std::vector<std::byte> got(count);
    ranks[static_cast<std::size_t>(rank)]->recv(1 - rank, 1, {}, got)->wait(in(60s));
    EXPECT_TRUE(got == std::vector<std::byte>(count, std::byte(1 - rank + 5)));
  }
  /// In seconds.
  double leave(int rank) {
    const TimePoint begin = Clock::system().now();
    ranks[static_cast<std::size_t>(rank)].reset();
    return seconds_since(begin);
  }

  ProxiedRanks store;
  std::array<std::shared_ptr<Transport>, 2> ranks;
};

// The other rank asks for the bytes when their sender is gone.
TEST(TcpClosing, ARankThatComputesHasTheLastBytesBeforeTheirSenderIsGone) {
  const testing::HangWatchdog watchdog("leaving one that computes", 110s);
  double slowest = 0;
  for (const int num_connections : {1, 3}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{100}, std::size_t{700'000}}) {
      for (const int leaver : {0, 1}) {
        for (const char* const fault : {"none", "cut", "flip", "late cut"}) {
          Pair pair({.tcp_connections = num_connections});
          ChaosProxy& proxy = pair.store.proxy(0);
          if (fault == std::string("cut")) proxy.cut_after(count / 2 + 30);
          if (fault == std::string("flip")) proxy.flip_after(count / 2 + 30);
          if (fault == std::string("late cut")) proxy.cut_after(count + 100);
          pair.send(leaver, count);
          slowest = std::max(slowest, pair.leave(leaver));  // without knocking: up to 1.5
          pair.expect_from_other(1 - leaver, count);
          std::byte more{};
          testing::expect_error(ErrorCode::kUnavailable, {"is gone: it closed the connection"},
                                [&] {
                                  pair.ranks[static_cast<std::size_t>(1 - leaver)]
                                      ->recv(leaver, 2, {}, std::span(&more, 1))
                                      ->wait(in(60s));
                                });
        }
      }
    }
  }
  std::printf("leaving | 48 times one that computes | slowest %.3f s\n", slowest);
}

/// Nothing of what a rank says arrives any more, and the connection does not tell it so.
void leave_silence(Pair& pair) {
  pair.send(0, 100);
  pair.store.proxy(0).swallow_for_good();
}

void end(const Pair& pair) {
  for (const auto& left : pair.ranks) {
    if (left) left->abort(Error(ErrorCode::kInternal, "enough"));
  }
}

// A rank lingers for two seconds: on a machine however busy no time is shorter than that.
constexpr double kStay = 1.9;

/// Whether one of so many left before that, for the machine may stand still now and then.
bool leaves_at_once(const std::function<double()>& leave) {
  for (int i = 0; i < 10; ++i) {
    if (leave() < kStay) return true;
  }
  return false;
}

TEST(TcpClosing, NobodyStaysForAPeerThatIsGoneOrWasToldOfAnAbort) {
  const testing::HangWatchdog watchdog("leaving nobody", 110s);
  EXPECT_TRUE(leaves_at_once([] {
    Pair aborted;
    leave_silence(aborted);
    aborted.ranks[0]->abort(Error(ErrorCode::kInternal, "enough"));
    const double seconds = aborted.leave(0);
    end(aborted);
    return seconds;
  }));
  EXPECT_TRUE(leaves_at_once([] {
    Pair dead;
    dead.send(1, 100);
    dead.store.end_proxy(0);
    const double seconds = dead.leave(1);
    end(dead);
    return seconds;
  }));
  Pair silent;
  leave_silence(silent);
  EXPECT_GT(silent.leave(0), kStay);
  end(silent);
}

TEST(TcpClosing, ARankThatLeavesEarlyEndsTheCallsOfTheOthersAtOnce) {
  const testing::HangWatchdog watchdog("leaving early", 110s);
  ProxiedRanks store({});
  const auto errors = errors_of_ranks(3, [&](int rank) {
    const auto communicator = make_communicator(tcp_transport(rank, 3, store, {.patience = 90s}),
                                                {.algorithm = "canonical", .timeout = 60s});
    check_sum(*communicator, 0, 1000);
    if (rank == 1) return;
    check_sum(*communicator, 1, 1000);
  });
  EXPECT_EQ(errors[1], "");
  for (const std::size_t rank : {0, 2}) {
    EXPECT_NE(errors[rank].find("is gone: it closed the connection"), std::string::npos)
        << errors[rank];
    EXPECT_NE(errors[rank].find("rank 1 ("), std::string::npos) << errors[rank];
  }
}

}  // namespace closing_test
}  // namespace tutti

// A rank that accepts among strangers, wrong secrets and recordings, with real sockets.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/acceptor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <list>

#include "tests/cluster/acceptor_visitor.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace acceptor_test {

using namespace acceptor_visitor;
using namespace std::chrono_literals;
using internal::Acceptor;
using internal::FileDescriptor;
using testing::expect_error;

constexpr std::uint64_t kNonce = 4711, kPeerNonce = 815;

bool comes_true(const std::function<bool()>& condition) {
  const TimePoint end = deadline_after(Clock::system().now(), 60s);
  while (!condition()) {
    if (Clock::system().now() > end) return false;
    Clock::system().sleep_for(5ms);
  }
  return true;
}

/// Rank 0 of a group of two. A thread of its own serves those who come.
class Serving {
 public:
  const JobSecret secret = JobSecret::generate();
  internal::Endpoint endpoint;

  Serving() {
    std::vector<internal::Listener> listeners;
    listeners.push_back(internal::listen_at({"127.0.0.1", 0}));
    endpoint = listeners.back().endpoint;
    Acceptor::Callbacks callbacks;
    callbacks.decide = [this](const PeerHello& hello, const std::string& refusal) {
      if (!refusal.empty()) {
        MutexLock lock(mutex_);
        final_refusals_.push_back(refusal);
      }
      return internal::is_rank(hello, 1, kPeerNonce) ? "" : "this is another run";
    };
    callbacks.arrived = [this](int peer, FileDescriptor socket, bool is_local) {
      MutexLock lock(mutex_);
      arrivals_.push_back({peer, std::move(socket), is_local});
    };
    acceptor_.emplace("tcp: rank 0 of 2", hello_of(0, kNonce, "job"), secret, std::move(listeners),
                      std::move(callbacks));
    thread_ = Executor::system().start("rank-0", [this] { serve(); });
  }
  ~Serving() {
    const std::uint64_t one = 1;
    (void)!::write(stop_event_.get(), &one, sizeof(one));
    thread_->join();
  }
  PeerHello peer() const { return hello_of(1, kPeerNonce, "job"); }
  struct Arrival {
    int rank = 0;
    FileDescriptor socket;
    bool is_local = false;
  };
  /// Waits for it.
  std::optional<Arrival> arrival() {
    MutexLock lock(mutex_);
    (void)changed_.wait_for(mutex_, 60s,
                            [&]() TUTTI_REQUIRES(mutex_) { return !arrivals_.empty(); });
    if (arrivals_.empty()) return std::nullopt;
    Arrival first = std::move(arrivals_.front());
    arrivals_.pop_front();
    return first;
  }
  bool has_arrivals() {
    MutexLock lock(mutex_);
    return !arrivals_.empty();
  }
  /// Waits until the last refusal holds these words.
  bool refuses_with(const std::string& words) {
    return comes_true([&] { return last_refusal().find(words) != std::string::npos; });
  }
  std::string last_refusal() {
    MutexLock lock(mutex_);
    return last_refusal_;
  }
  std::vector<std::string> final_refusals() {
    MutexLock lock(mutex_);
    return final_refusals_;
  }

 private:
  void serve() {
    pollfd stop{stop_event_.get(), POLLIN, 0};
    while (stop.revents == 0) {
      acceptor_->serve(stop, deadline_after(Clock::system().now(), 60s), nullptr);
      MutexLock lock(mutex_);
      last_refusal_ = acceptor_->last_refusal();
      changed_.notify_all();
    }
  }

  FileDescriptor stop_event_ = internal::make_wake_event();
  Mutex mutex_;
  CondVar changed_;
  std::list<Arrival> arrivals_ TUTTI_GUARDED_BY(mutex_);
  std::string last_refusal_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::string> final_refusals_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Acceptor> acceptor_;  // the thread's
  std::unique_ptr<Thread> thread_;
};

std::size_t num_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(Acceptor, APeerThatProvesItselfComesInAndItsNextBytesStayInItsSocket) {
  const testing::HangWatchdog watchdog("arrival", 60s);
  Serving rank;
  const auto socket = connect_to(rank.endpoint);
  Handshake handshake(Handshake::Side::kClient, rank.peer(), rank.secret);
  say(socket, handshake.bytes_to_send());
  while (handshake.peer() == std::nullopt) ASSERT_TRUE(hear(socket, handshake));
  EXPECT_TRUE(internal::is_rank(*handshake.peer(), 0, kNonce));
  EXPECT_FALSE(rank.has_arrivals());
  auto words = handshake.bytes_to_send();  // the proof, and what does not wait for the welcome
  words.push_back(std::byte{7});
  say(socket, words);
  const auto arrival = rank.arrival();
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->rank, 1);
  EXPECT_FALSE(arrival->is_local);
  std::array<std::byte, 2> next{};
  std::size_t count = 0;
  EXPECT_EQ(internal::read_now(arrival->socket, next, count), internal::ByteFlow::kOpen);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(next[0], std::byte{7});
  while (handshake.state() == Handshake::State::kRunning) ASSERT_TRUE(hear(socket, handshake));
  EXPECT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  EXPECT_FALSE(rank.has_arrivals());
  EXPECT_EQ(rank.last_refusal(), "");
}

TEST(Acceptor, G15_S4_06_OtherSecretsJobsVersionsAndGroupsAreRefusedWithTheReason) {
  const testing::HangWatchdog watchdog("refusals", 100s);
  Serving rank;
  struct Case {
    const char* reason;
    PeerHello hello;
    JobSecret secret;
  };
  std::vector<Case> cases{
      {"does not know this job's secret", rank.peer(), JobSecret::generate()},
      {"only one side has a job secret", rank.peer(), {}},
      {"two jobs met", hello_of(1, kPeerNonce, "other job"), rank.secret},
      {"the versions do not fit", rank.peer(), rank.secret},
      {"groups of different size met", rank.peer(), rank.secret},
      {"results would differ in bits", rank.peer(), rank.secret},
      {"this is another run", hello_of(1, kPeerNonce + 1, "job"), rank.secret},
  };
  cases[3].hello.oldest_version = cases[3].hello.newest_version = kNewestWireVersion + 1;
  cases[4].hello.group_size = 3;
  cases[5].hello.numerics = "other numerics";
  for (const Case& each : cases) {
    const auto socket = connect_to(rank.endpoint);
    const Handshake handshake = shake_hands(socket, each.hello, each.secret);
    EXPECT_NE(handshake.state(), Handshake::State::kDone) << each.reason;
    // A client that does not know the secret finds that out first, and leaves; here it says
    // something all the same.
    say(socket, std::string(32, '?'));
    EXPECT_TRUE(gets_closed(socket)) << each.reason;
    EXPECT_TRUE(rank.refuses_with(each.reason)) << each.reason << ": " << rank.last_refusal();
    EXPECT_NE(handshake.reason().find(each.reason), std::string::npos) << handshake.reason();
  }
  EXPECT_FALSE(rank.has_arrivals());
  // Whom trying again does not help: the rank's owner is told.
  const auto final_refusals = rank.final_refusals();
  ASSERT_EQ(final_refusals.size(), 2u);
  EXPECT_NE(final_refusals[0].find("groups of different size met"), std::string::npos);
  EXPECT_NE(final_refusals[1].find("results would differ"), std::string::npos);
}

TEST(Acceptor, APeerThatLeavesWithoutAProofIsNoMereStranger) {
  const testing::HangWatchdog watchdog("left", 60s);
  Serving rank;
  {
    const auto socket = connect_to(rank.endpoint);
    (void)shake_hands(socket, rank.peer(), JobSecret::generate());
  }
  EXPECT_TRUE(rank.refuses_with("it died, or has another secret")) << rank.last_refusal();
  EXPECT_NE(rank.last_refusal().find("127.0.0.1: rank 1 (tutti "), std::string::npos)
      << rank.last_refusal();
}

TEST(Acceptor, G15_RecordingsAndReflectionsAreRefused) {
  const testing::HangWatchdog watchdog("replay", 60s);
  Serving rank;
  // What a peer says, word by word.
  std::vector<std::byte> recording;
  const auto socket = connect_to(rank.endpoint);
  Handshake handshake(Handshake::Side::kClient, rank.peer(), rank.secret);
  while (handshake.state() == Handshake::State::kRunning) {
    const auto words = handshake.bytes_to_send();
    recording.insert(recording.end(), words.begin(), words.end());
    say(socket, words);
    ASSERT_TRUE(hear(socket, handshake));
  }
  ASSERT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  ASSERT_TRUE(rank.arrival());
  const auto replay = connect_to(rank.endpoint);
  say(replay, recording);
  EXPECT_TRUE(gets_closed(replay));
  EXPECT_TRUE(rank.refuses_with("does not know this job's secret")) << rank.last_refusal();
  // The rank's own words, told back to it.
  const auto mirror = connect_to(rank.endpoint);
  PeerHello own = rank.peer();
  own.has_secret = true;
  say(mirror, encode(own));
  std::vector<std::byte> heard;
  ASSERT_TRUE(comes_true([&] {
    (void)is_closed(mirror, &heard);
    return heard.size() >= kPeerHelloBytes + 32;
  }));
  say(mirror, std::span(heard).last(32));
  EXPECT_TRUE(gets_closed(mirror));
  EXPECT_FALSE(rank.has_arrivals());
}

TEST(Acceptor, G15_StrangersAndSilentAndSlowOnesAreShownOut) {
  const testing::HangWatchdog watchdog("strangers", 100s);
  Serving rank;
  const std::size_t before = num_descriptors();
  const std::vector<std::string> words{"",
                                       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                       std::string("\x16\x03\x01\x02\x00\x01", 6),
                                       std::string(5000, '\xff'),
                                       "\x93tutti\r\n" + std::string(248, '\xff'),
                                       "\x93tutti"};
  std::list<FileDescriptor> crowd;
  for (std::size_t i = 0; i < 400; ++i) {
    crowd.push_back(connect_to(rank.endpoint));
    say(crowd.back(), words[i % words.size()]);
  }
  // A peer comes in all the same.
  const auto socket = connect_to(rank.endpoint);
  const Handshake handshake = shake_hands(socket, rank.peer(), rank.secret);
  ASSERT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  EXPECT_TRUE(rank.arrival());
  // One says its hello so slowly that it would take 25 s.
  const auto slow = connect_to(rank.endpoint);
  const auto hello = encode(rank.peer());
  int turns = 0;
  bool is_slow_one_gone = false;
  const TimePoint begin = Clock::system().now();
  EXPECT_TRUE(comes_true([&] {
    std::erase_if(crowd, [](const FileDescriptor& each) { return is_closed(each); });
    if (turns++ % 20 == 0 && turns < 20 * 250) {
      say(slow, std::span(hello).subspan(static_cast<std::size_t>(turns) / 20, 1));
    }
    is_slow_one_gone = is_slow_one_gone || is_closed(slow);
    return crowd.empty() && is_slow_one_gone;
  })) << crowd.size();
  RecordProperty("milliseconds",
                 static_cast<int>(1e3 * seconds_between(begin, Clock::system().now())));
  EXPECT_TRUE(comes_true([&] { return num_descriptors() <= before + 2; })) << num_descriptors();
}

TEST(Acceptor, TheOldestOfTooManyGoFirst) {
  const testing::HangWatchdog watchdog("too many", 60s);
  Serving rank;
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_to(rank.endpoint));
  EXPECT_TRUE(comes_true([&] { return is_closed(silent[43]); }));
  EXPECT_TRUE(is_closed(silent.front()));
}

// More than one address may open at once.
TEST(Acceptor, PeersThatProveThemselvesDoNotCountAgainstTheirAddress) {
  const testing::HangWatchdog watchdog("many peers", 100s);
  Serving rank;
  for (int i = 0; i < 700; ++i) {
    const auto socket = connect_to(rank.endpoint);
    const Handshake handshake = shake_hands(socket, rank.peer(), rank.secret);
    ASSERT_EQ(handshake.state(), Handshake::State::kDone) << i << ": " << handshake.reason();
    ASSERT_TRUE(rank.arrival()) << i;
  }
}

TEST(AddressLimit, GivesBackWithTimeAndToPeersThatProveThemselves) {
  internal::AddressLimit limit(3, 2);
  TimePoint now = Clock::system().now();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.allows("a", now)) << i;
  EXPECT_FALSE(limit.allows("a", now));
  EXPECT_TRUE(limit.allows("b", now));
  limit.give_back("a");
  EXPECT_TRUE(limit.allows("a", now));
  EXPECT_FALSE(limit.allows("a", now));
  now += 500ms;
  EXPECT_TRUE(limit.allows("a", now));
  EXPECT_FALSE(limit.allows("a", now));
  now += 1h;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.allows("a", now)) << i;
  EXPECT_FALSE(limit.allows("a", now));
}

TEST(AddressLimit, RemembersABoundedNumberOfAddresses) {
  internal::AddressLimit limit(2, 1);
  const TimePoint now = Clock::system().now();
  for (int i = 0; i < 5000; ++i) EXPECT_TRUE(limit.allows(concat("10.0.0.", i), now));
  EXPECT_EQ(limit.num_addresses(), internal::AddressLimit::kMostAddresses);
  EXPECT_TRUE(limit.allows("last", now + 1h));
  EXPECT_EQ(limit.num_addresses(), 1u);
}

TEST(TcpSecrets, RanksOfOneJobMeetAndOthersAreNamedOnBothSides) {
  const testing::HangWatchdog watchdog("secrets", 60s);
  InProcessStore store;
  const JobSecret secret = JobSecret::generate();
  std::array<std::shared_ptr<Transport>, 2> ranks;
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             ranks[static_cast<std::size_t>(rank)] = connect_by_tcp(
                                 rank, 2, store, {.secret = secret, .job_id = "job"});
                           }),
            "");
  std::array<Error, 2> errors{Error(ErrorCode::kOk, ""), Error(ErrorCode::kOk, "")};
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             try {
                               connect_by_tcp(rank, 2, store,
                                              {.timeout = rank == 0 ? Duration(4s) : Duration(2s),
                                               .key_prefix = "other",
                                               .secret = JobSecret::generate()});
                             } catch (const Error& error) {
                               errors[static_cast<std::size_t>(rank)] = error;
                             }
                           }),
            "");
  EXPECT_EQ(errors[0].code(), ErrorCode::kDeadlineExceeded);
  EXPECT_NE(errors[0].message().find("rank 1 did not come"), std::string::npos);
  EXPECT_NE(errors[0].message().find("it died, or has another secret"), std::string::npos)
      << errors[0].message();
  EXPECT_EQ(errors[1].code(), ErrorCode::kDeadlineExceeded);
  EXPECT_NE(errors[1].message().find("does not know this job's secret"), std::string::npos)
      << errors[1].message();
}

TEST(TcpSecrets, AnAddressThatOtherMachinesReachNeedsOne) {
  InProcessStore store;
  expect_error(
      ErrorCode::kInvalidArgument,
      {"other machines reach '192.0.2.7'", "TUTTI_JOB_SECRET_FILE", "allow_insecure_network"},
      [&] { connect_by_tcp(0, 2, store, {.address = "192.0.2.7"}); });
  expect_error(ErrorCode::kInvalidArgument, {"'0.0.0.0' means every interface"},
               [&] { connect_by_tcp(0, 2, store, {.address = "0.0.0.0"}); });
  // With one it is tried.
  expect_error(ErrorCode::kUnavailable, {"192.0.2.7", "an address of this machine"}, [&] {
    connect_by_tcp(0, 2, store, {.address = "192.0.2.7", .secret = JobSecret::generate()});
  });
}

}  // namespace acceptor_test
}  // namespace tutti

// A rank that accepts among strangers, wrong secrets and recordings, with real sockets.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <list>

#include "cluster/net/connect_all.h"
#include "cluster/net/handshake.h"
#include "cluster/net/socket.h"
#include "tests/cluster/acceptor_visitor.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace acceptor_test {
using namespace acceptor_visitor;
using namespace std::chrono_literals;
using internal::Announcement;
using internal::FileDescriptor;
using internal::Handshake;
using testing::expect_error;

constexpr internal::RankHello kPeer{1, 815};

bool comes_true(const std::function<bool()>& condition) {
  const TimePoint end = deadline_after(Clock::system().now(), 60s);
  while (!condition()) {
    if (Clock::system().now() > end) return false;
    Clock::system().sleep_for(5ms);
  }
  return true;
}

/// What the log says while it lives.
class Log {
 public:
  Log() {
    previous_ = set_log_sink([this](LogLevel, std::string_view line) {
      MutexLock lock(mutex_);
      text_ += concat(line, "\n");
    });
  }
  ~Log() { set_log_sink(previous_); }
  std::string text() {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  LogSink previous_;
  Mutex mutex_;
  std::string text_ TUTTI_GUARDED_BY(mutex_);
};

/// Rank 0 of a group of two, on a thread of its own. The store knows a rank 1, which is whom the
/// test makes of it.
class Serving {
 public:
  const JobSecret secret = JobSecret::generate();
  Announcement own;

  /// `change`: what is different about the rank 1 that the store has.
  explicit Serving(const std::function<void(Announcement& announced)>& change = nullptr) {
    Announcement announced{.run = kPeer.run,
                           .machine = "elsewhere",
                           .endpoint = {"127.0.0.1", 9},
                           .group_size = 2,
                           .build = internal::make_build("job", secret)};
    if (change) change(announced);
    store_.set("ranks/1", internal::to_text(announced));
    thread_ = Executor::system().start("rank-0", [this] { serve(); });
    const TimePoint end = deadline_after(Clock::system().now(), 60s);
    own = internal::parse_announcement(store_.wait("ranks/0", end)).value();
  }
  ~Serving() {
    interruption_->raise(Error(ErrorCode::kAborted, "the test ends"));
    thread_->join();
  }
  const internal::Endpoint& endpoint() const { return own.endpoint; }
  bool has_ended() const { return ended_.is_set(); }
  /// Waits until rank 1 has said that it has all its connections; what belongs to it then.
  FileDescriptor arrival() {
    EXPECT_TRUE(ended_.wait_until(deadline_after(Clock::system().now(), 60s)));
    if (connections_.by_rank.empty()) return FileDescriptor();
    EXPECT_FALSE(connections_.by_rank[1].is_local);
    return std::move(connections_.by_rank[1].socket);
  }
  /// Waits until it has given up; why.
  std::string error() {
    EXPECT_TRUE(ended_.wait_until(deadline_after(Clock::system().now(), 60s)));
    return error_;
  }
  /// Waits until the log holds these words.
  bool refuses_with(const std::string& words) {
    return comes_true([&] { return log.text().find(words) != std::string::npos; });
  }
  Log log;

 private:
  void serve() {
    try {
      connections_ = internal::connect_all(0, 2, store_,
                                           {.way = ConnectOptions::Way::kTcp,
                                            .timeout = 120s,
                                            .secret = secret,
                                            .job_id = "job",
                                            .interruption = interruption_},
                                           FileDescriptor());
    } catch (const Error& error) {
      error_ = error.message();
    }
    ended_.set();
  }

  InProcessStore store_;
  const std::shared_ptr<Interruption> interruption_ = std::make_shared<Interruption>();
  internal::Connections connections_;  // the thread's, until it has ended
  std::string error_;                  // the same
  Event ended_;
  std::unique_ptr<Thread> thread_;
};

std::size_t num_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(Acceptor, APeerThatProvesItselfComesInAndItsNextBytesStayInItsSocket) {
  Serving rank;
  const auto socket = connect_to(rank.endpoint());
  Handshake handshake(Handshake::Side::kClient, kPeer, rank.secret);
  say(socket, handshake.bytes_to_send());
  while (handshake.peer() == std::nullopt) ASSERT_TRUE(hear(socket, handshake));
  EXPECT_EQ(handshake.peer(), (internal::RankHello{0, rank.own.run}));
  EXPECT_FALSE(rank.has_ended());
  // The proof, and what does not wait for the welcome: that it has all its connections, and the
  // first byte of its first message.
  auto words = handshake.bytes_to_send();
  words.push_back(std::byte{1});
  words.push_back(std::byte{7});
  say(socket, words);
  const FileDescriptor arrival = rank.arrival();
  ASSERT_TRUE(arrival.is_open()) << rank.error();
  std::array<std::byte, 2> next{};
  std::size_t count = 0;
  EXPECT_EQ(internal::read_now(arrival, next, count), internal::ByteFlow::kOpen);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(next[0], std::byte{7});
  while (handshake.state() == Handshake::State::kRunning) ASSERT_TRUE(hear(socket, handshake));
  EXPECT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  EXPECT_EQ(rank.log.text(), "");
}

TEST(Acceptor, RefusesOtherJobsGroupsAndNumericsWithReason) {
  struct Case {
    const char* reason;
    std::function<void(Announcement& announced)> change;
    bool is_final = false;  // trying again does not help: the rank gives up and says so
  };
  const std::vector<Case> cases{
      {"two jobs met", [](Announcement& other) { other.build.set_job_id("other job"); }},
      {"groups of different size met", [](Announcement& other) { other.group_size = 3; }, true},
      {"results would differ in bits",
       [](Announcement& other) { other.build.set_numerics("other numerics"); }, true},
      {"this is not the rank 1 that the store has", [](Announcement& other) { ++other.run; }},
  };
  for (const Case& each : cases) {
    Serving rank(each.change);
    const auto socket = connect_to(rank.endpoint());
    const Handshake handshake = shake_hands(socket, kPeer, rank.secret);
    EXPECT_EQ(handshake.state(), Handshake::State::kRefused) << each.reason;
    EXPECT_TRUE(gets_closed(socket)) << each.reason;
    EXPECT_TRUE(rank.refuses_with(each.reason)) << each.reason << ": " << rank.log.text();
    EXPECT_EQ(rank.has_ended() || each.is_final, each.is_final) << each.reason;
    if (!each.is_final) continue;
    EXPECT_NE(rank.error().find(each.reason), std::string::npos) << rank.error();
  }
}

TEST(Acceptor, RefusesOtherSecretsWithReason) {
  for (const JobSecret& secret : {JobSecret::generate(), JobSecret()}) {
    Serving rank;
    const auto socket = connect_to(rank.endpoint());
    const Handshake handshake = shake_hands(socket, kPeer, secret);
    EXPECT_EQ(handshake.state(), Handshake::State::kRefused);
    EXPECT_NE(handshake.reason().find("does not know this job's secret"), std::string::npos);
    // A client that does not know the secret finds that out first, and leaves; here it says
    // something all the same.
    say(socket, std::string(32, '?'));
    EXPECT_TRUE(gets_closed(socket));
    EXPECT_TRUE(rank.refuses_with("rank 1 does not know this job's secret")) << rank.log.text();
    EXPECT_FALSE(rank.has_ended());
  }
}

TEST(Acceptor, APeerThatLeavesWithoutAProofIsNoMereStranger) {
  Serving rank;
  {
    const auto socket = connect_to(rank.endpoint());
    (void)shake_hands(socket, kPeer, JobSecret::generate());
  }
  EXPECT_TRUE(rank.refuses_with("it died, or has another secret")) << rank.log.text();
  EXPECT_NE(rank.log.text().find("127.0.0.1: rank 1 left"), std::string::npos) << rank.log.text();
}

TEST(Acceptor, RefusesReplayAndReflection) {
  Serving rank;
  // What a peer says, word by word.
  std::vector<std::byte> recording;
  const auto socket = connect_to(rank.endpoint());
  Handshake handshake(Handshake::Side::kClient, kPeer, rank.secret);
  while (handshake.state() == Handshake::State::kRunning) {
    const auto words = handshake.bytes_to_send();
    recording.insert(recording.end(), words.begin(), words.end());
    say(socket, words);
    ASSERT_TRUE(hear(socket, handshake));
  }
  ASSERT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  const auto replay = connect_to(rank.endpoint());
  say(replay, recording);
  EXPECT_TRUE(gets_closed(replay));
  EXPECT_TRUE(rank.refuses_with("does not know this job's secret")) << rank.log.text();
  // The rank's own words, told back to it.
  const auto mirror = connect_to(rank.endpoint());
  say(mirror, std::span(recording).first(internal::kRankHelloBytes));
  std::vector<std::byte> heard;
  ASSERT_TRUE(comes_true([&] {
    (void)is_closed(mirror, &heard);
    return heard.size() >= internal::kRankHelloBytes + 32;
  }));
  say(mirror, std::span(heard).last(32));
  EXPECT_TRUE(gets_closed(mirror));
  EXPECT_FALSE(rank.has_ended());
}

TEST(Acceptor, ClosesUnknownSilentAndSlowConnections) {
  Serving rank;
  const std::size_t before = num_descriptors();
  const std::vector<std::string> words{"",
                                       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                       std::string("\x16\x03\x01\x02\x00\x01", 6),
                                       std::string(5000, '\xff'),
                                       "\x93tutti3\n" + std::string(248, '\xff'),
                                       "\x93tutti"};
  std::list<FileDescriptor> crowd;
  for (std::size_t i = 0; i < 400; ++i) {
    crowd.push_back(connect_to(rank.endpoint()));
    say(crowd.back(), words[i % words.size()]);
  }
  // A peer comes in all the same.
  const auto socket = connect_to(rank.endpoint());
  const Handshake handshake = shake_hands(socket, kPeer, rank.secret);
  ASSERT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  // One says its hello so slowly that it would take 17 s.
  const auto slow = connect_to(rank.endpoint());
  const auto hello = Handshake(Handshake::Side::kClient, kPeer, rank.secret).bytes_to_send();
  int turns = 0;
  bool is_slow_one_gone = false;
  const TimePoint begin = Clock::system().now();
  EXPECT_TRUE(comes_true([&] {
    std::erase_if(crowd, [](const FileDescriptor& each) { return is_closed(each); });
    if (turns++ % 100 == 0 && turns < 100 * 35) {
      say(slow, std::span(hello).subspan(static_cast<std::size_t>(turns) / 100, 1));
    }
    is_slow_one_gone = is_slow_one_gone || is_closed(slow);
    return crowd.empty() && is_slow_one_gone;
  })) << crowd.size();
  RecordProperty("milliseconds",
                 static_cast<int>(1e3 * seconds_between(begin, Clock::system().now())));
  EXPECT_TRUE(comes_true([&] { return num_descriptors() <= before + 3; })) << num_descriptors();
}

TEST(Acceptor, TheOldestOfTooManyGoFirst) {
  Serving rank;
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_to(rank.endpoint()));
  EXPECT_TRUE(comes_true([&] { return is_closed(silent[43]); }));
  EXPECT_TRUE(is_closed(silent.front()));
}

// More than one address may open at once.
TEST(Acceptor, PeersThatProveThemselvesDoNotCountAgainstTheirAddress) {
  Serving rank;
  for (int i = 0; i < 700; ++i) {
    const auto socket = connect_to(rank.endpoint());
    const Handshake handshake = shake_hands(socket, kPeer, rank.secret);
    ASSERT_EQ(handshake.state(), Handshake::State::kDone) << i << ": " << handshake.reason();
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

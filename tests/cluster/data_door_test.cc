// The doors of ranks among strangers, wrong secrets, recordings and damage, with real sockets.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/acceptor.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <list>

#include "tests/cluster/door_visitor.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/net/tcp_transport.h"
#include "tutti/cross_device_ops/in_process/in_process_store.h"
#include "tutti/tensor/numerics.h"

namespace tutti {
namespace data_door_test {

using namespace door_visitor;
using namespace std::chrono_literals;
using internal::Door;
using internal::FileDescriptor;
using testing::expect_error;
using Side = Handshake::Side;

constexpr std::uint64_t kNonce = 4711, kPeerNonce = 815;

/// The door of rank 0 of a group of two, and what its peers need.
struct House {
  JobSecret secret = JobSecret::generate();
  internal::Listener listener = internal::listen_at({"127.0.0.1", 0});
  internal::Endpoint endpoint = listener.endpoint;
  std::unique_ptr<Door> door;

  House() {
    std::vector<internal::Listener> listeners;
    listeners.push_back(std::move(listener));
    door = std::make_unique<Door>(
        "tcp: rank 0 of 2",
        internal::RankIdentity{0, kNonce, "job", secret, numerics_fingerprint()},
        std::move(listeners));
  }
  PeerHello peer() const { return hello_of(1, kPeerNonce, "job"); }
  std::array<std::byte, internal::kSealedResumeBytes> opening(const Digest256& key,
                                                              std::uint64_t received = 77) const {
    return internal::sealed(
        internal::encode(internal::Resume{{1, 0, 2, kPeerNonce, kNonce}, received}), key);
  }
  /// Waits for it.
  std::optional<Door::Arrival> arrival() {
    pollfd bell{door->bell().get(), POLLIN, 0};
    (void)internal::poll_until(std::span(&bell, 1), deadline_after(Clock::system().now(), 60s));
    return door->take();
  }
};

bool comes_true(const std::function<bool()>& condition) {
  const TimePoint end = deadline_after(Clock::system().now(), 60s);
  while (!condition()) {
    if (Clock::system().now() > end) return false;
    Clock::system().sleep_for(5ms);
  }
  return true;
}

std::size_t num_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(DataDoor, APeerThatProvesItselfComesInWithItsMessage) {
  const testing::HangWatchdog watchdog("door", 60s);
  House house;
  const auto socket = knock(house.endpoint);
  const Handshake handshake = shake_hands(socket, house.peer(), house.secret);
  ASSERT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  EXPECT_TRUE(internal::is_rank(*handshake.peer(), 0, kNonce));
  EXPECT_FALSE(house.door->has_arrivals());
  say(socket, house.opening(handshake.session_key(Side::kClient)));
  const auto arrival = house.arrival();
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->opening.hello.from, 1);
  EXPECT_EQ(arrival->opening.received, 77u);
  EXPECT_EQ(arrival->key, handshake.session_key(Side::kServer));
  EXPECT_FALSE(house.door->has_arrivals());
  EXPECT_EQ(house.door->last_refusal(), "");
}

TEST(DataDoor, G15_S4_06_OtherSecretsJobsVersionsAndPurposesAreRefusedWithTheReason) {
  const testing::HangWatchdog watchdog("refusals", 60s);
  House house;
  struct Case {
    const char* reason;
    PeerHello hello;
    JobSecret secret;
  };
  std::vector<Case> cases{
      {"does not know this job's secret", house.peer(), JobSecret::generate()},
      {"only one side has a job secret", house.peer(), {}},
      {"two jobs met", hello_of(1, kPeerNonce, "other job"), house.secret},
      {"the versions do not fit", house.peer(), house.secret},
      {"a connection for", make_hello(ConnectionPurpose::kControl, "rank", 1), house.secret},
      {"results would differ in bits", house.peer(), house.secret},
  };
  cases[3].hello.oldest_version = cases[3].hello.newest_version = kNewestWireVersion + 1;
  cases[5].hello.numerics = "other numerics";
  for (const Case& each : cases) {
    const auto socket = knock(house.endpoint);
    const Handshake handshake = shake_hands(socket, each.hello, each.secret);
    EXPECT_NE(handshake.state(), Handshake::State::kDone) << each.reason;
    say(socket,
        house.opening(handshake.peer() ? handshake.session_key(Side::kClient) : Digest256{}));
    EXPECT_TRUE(gets_closed(socket)) << each.reason;
    // Who does not know the secret finds out first, and leaves; here it tries all the same.
    EXPECT_NE(house.door->last_refusal().find(each.reason), std::string::npos)
        << house.door->last_refusal();
    EXPECT_NE(handshake.reason().find(each.reason), std::string::npos) << handshake.reason();
  }
  EXPECT_FALSE(house.door->has_arrivals());
}

TEST(DataDoor, G15_RecordingsAndReflectionsAreRefused) {
  const testing::HangWatchdog watchdog("replay", 60s);
  House house;
  // What a peer says, word by word.
  std::vector<std::byte> recording;
  const auto socket = knock(house.endpoint);
  Handshake handshake(Side::kClient, house.peer(), house.secret);
  while (handshake.state() == Handshake::State::kRunning) {
    const auto words = handshake.bytes_to_send();
    recording.insert(recording.end(), words.begin(), words.end());
    say(socket, words);
    pollfd ready{socket.get(), POLLIN, 0};
    (void)internal::poll_until(std::span(&ready, 1), deadline_after(Clock::system().now(), 60s));
    std::array<std::byte, 2048> bytes{};
    std::size_t count = 0;
    (void)internal::read_now(socket, bytes, count);
    (void)handshake.take(std::span<const std::byte>(bytes).first(count));
  }
  const auto opening = house.opening(handshake.session_key(Side::kClient));
  say(socket, opening);
  recording.insert(recording.end(), opening.begin(), opening.end());
  ASSERT_TRUE(house.arrival());
  const auto replay = knock(house.endpoint);
  say(replay, recording);
  EXPECT_TRUE(gets_closed(replay));
  EXPECT_NE(house.door->last_refusal().find("does not know this job's secret"), std::string::npos);
  // The door's own words, told back to it.
  const auto mirror = knock(house.endpoint);
  std::vector<std::byte> heard;
  say(mirror, encode([&] {
        PeerHello own = house.peer();
        own.has_secret = true;
        return own;
      }()));
  pollfd ready{mirror.get(), POLLIN, 0};
  (void)internal::poll_until(std::span(&ready, 1), deadline_after(Clock::system().now(), 60s));
  (void)is_closed(mirror, &heard);
  ASSERT_GE(heard.size(), 32u);
  say(mirror, std::span(heard).last(32));
  EXPECT_TRUE(gets_closed(mirror));
  EXPECT_FALSE(house.door->has_arrivals());
}

TEST(DataDoor, WhatFollowsTheHandshakeIsSealed) {
  const testing::HangWatchdog watchdog("seals", 60s);
  House house;
  for (int i = 0; i < 3; ++i) {
    const auto socket = knock(house.endpoint);
    const Handshake handshake = shake_hands(socket, house.peer(), house.secret);
    const Digest256 key = handshake.session_key(Side::kClient);
    auto opening = house.opening(key);
    if (i == 0) opening[45] ^= std::byte{1};
    if (i == 1) opening = house.opening(handshake.session_key(Side::kServer));
    if (i == 2) {  // a rank that speaks in another's name
      opening = internal::sealed(
          internal::encode(internal::Resume{{2, 0, 3, kPeerNonce, kNonce}, 0}), key);
    }
    say(socket, opening);
    EXPECT_TRUE(gets_closed(socket)) << i;
  }
  EXPECT_FALSE(house.door->has_arrivals());
  EXPECT_NE(house.door->last_refusal().find("says that it is rank 2"), std::string::npos);
}

TEST(DataDoor, G15_StrangersAreShownOutAlthoughTheRankDoesNotLook) {
  const testing::HangWatchdog watchdog("strangers", 100s);
  House house;
  const std::size_t before = num_descriptors();
  const std::vector<std::string> words{"",
                                       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                       std::string("\x16\x03\x01\x02\x00\x01", 6),
                                       std::string(5000, '\xff'),
                                       "\x93tutti\r\n" + std::string(248, '\xff'),
                                       "\x93tutti"};
  std::list<FileDescriptor> crowd;
  for (std::size_t i = 0; i < 400; ++i) {
    crowd.push_back(knock(house.endpoint));
    say(crowd.back(), words[i % words.size()]);
  }
  // A peer comes in all the same.
  const auto socket = knock(house.endpoint);
  const Handshake handshake = shake_hands(socket, house.peer(), house.secret);
  ASSERT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  say(socket, house.opening(handshake.session_key(Side::kClient)));
  EXPECT_TRUE(house.arrival());
  const TimePoint begin = Clock::system().now();
  EXPECT_TRUE(comes_true([&] {
    std::erase_if(crowd, [](const FileDescriptor& each) { return is_closed(each); });
    return crowd.empty();
  })) << crowd.size();
  RecordProperty("milliseconds",
                 static_cast<int>(1e3 * seconds_between(begin, Clock::system().now())));
  EXPECT_TRUE(comes_true([&] { return num_descriptors() <= before + 2; })) << num_descriptors();
}

TEST(DataDoor, TheOldestOfTooManyGoFirst) {
  const testing::HangWatchdog watchdog("too many", 60s);
  House house;
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(knock(house.endpoint));
  EXPECT_TRUE(comes_true([&] { return is_closed(silent[43]); }));
  EXPECT_TRUE(is_closed(silent.front()));
}

TEST(AddressLimit, GivesBackWithTimeAndToThoseWhoProveThemselves) {
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
                             ranks[static_cast<std::size_t>(rank)] =
                                 tcp_transport(rank, 2, store, {.secret = secret, .job_id = "job"});
                           }),
            "");
  std::array<Error, 2> errors{Error(ErrorCode::kOk, ""), Error(ErrorCode::kOk, "")};
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             try {
                               tcp_transport(rank, 2, store,
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
      [&] { tcp_transport(0, 2, store, {.address = "192.0.2.7"}); });
  expect_error(ErrorCode::kInvalidArgument, {"'0.0.0.0' means every interface"},
               [&] { tcp_transport(0, 2, store, {.address = "0.0.0.0"}); });
  // With one it is tried.
  expect_error(ErrorCode::kUnavailable, {"192.0.2.7", "an address of this machine"}, [&] {
    tcp_transport(0, 2, store, {.address = "192.0.2.7", .secret = JobSecret::generate()});
  });
}

}  // namespace data_door_test
}  // namespace tutti

// Tests HMAC against published vectors, handshakes, and acceptors on real sockets against foreign
// clients, wrong secrets and replays.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <list>

#include "cluster/net/connect_all.h"
#include "tests/cluster/proxied_ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tests/support/warnings.h"
#include "tutti/core/executor.h"

namespace tutti::handshake_test {

using namespace proxied_ranks;
using namespace internal;
using namespace std::chrono_literals;
using testing::comes_true;
using ::testing::HasSubstr;
using testing::late;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<int>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<int>(byte) & 15];
  }
  return text;
}

TEST(HmacSha256, MatchesRfc4231ForAnyChunking) {
  const std::string expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
  EXPECT_EQ(hex(hmac_sha256(bytes_of("Jefe"), {bytes_of("what do ya want for nothing?")})),
            expected);
  EXPECT_EQ(hex(hmac_sha256(bytes_of("Jefe"), {bytes_of("what do ya "), bytes_of(""),
                                               bytes_of("want for nothing?")})),
            expected);
}

constexpr RankHello kClient{2, 815}, kServer{0, 4711};

struct Ends {
  Handshake client;
  Handshake server;
};

Ends ends_of(const JobSecret& of_client, const JobSecret& of_server) {
  return {Handshake(Handshake::Side::kClient, kClient, of_client),
          Handshake(Handshake::Side::kServer, kServer, of_server)};
}

/// Transfers at most `piece` bytes at a time in both directions until both sides have sent
/// everything. The server accepts an authenticated client if `accepts` is true.
void run(Ends& ends, bool accepts = true, std::size_t piece = 1000) {
  const auto carry = [piece](Handshake& from, Handshake& to) {
    const auto bytes = from.bytes_to_send();
    for (std::size_t i = 0; i < bytes.size(); i += piece) {
      to.take(std::span(bytes).subspan(i, std::min(piece, bytes.size() - i)));
    }
    return !bytes.empty();
  };
  bool moved = true;
  while (moved) {
    moved = carry(ends.client, ends.server);
    if (ends.server.is_proven() && ends.server.state() == Handshake::State::kRunning) {
      ends.server.decide(accepts);
    }
    moved = carry(ends.server, ends.client) || moved;
  }
}

TEST(Handshake, SucceedsForAnyChunkingOfBytes) {
  const JobSecret secret = JobSecret::generate();
  for (const std::size_t piece : {1, 7, 68, 1000}) {
    Ends ends = ends_of(secret, secret);
    run(ends, true, piece);
    ASSERT_EQ(ends.client.state(), Handshake::State::kDone) << ends.client.reason();
    ASSERT_EQ(ends.server.state(), Handshake::State::kDone) << ends.server.reason();
    EXPECT_EQ(ends.server.peer(), kClient);
    EXPECT_EQ(ends.client.peer(), kServer);
  }
}

TEST(Handshake, DoesNotConsumeBytesAfterLastMessage) {
  const JobSecret secret = JobSecret::generate();
  Ends ends = ends_of(secret, secret);
  EXPECT_EQ(ends.server.num_awaited(), kRankHelloBytes);
  ends.server.take(ends.client.bytes_to_send());
  EXPECT_EQ(ends.server.num_awaited(), 32u);
  ends.client.take(ends.server.bytes_to_send());
  auto proof = ends.client.bytes_to_send();
  proof.resize(proof.size() + 5);
  EXPECT_EQ(ends.server.take(proof), 32u);
  ASSERT_TRUE(ends.server.is_proven());
  ends.server.decide(true);
  auto welcome = ends.server.bytes_to_send();
  const std::size_t count = welcome.size();
  EXPECT_EQ(ends.client.num_awaited(), count);
  welcome.resize(count + 5);
  EXPECT_EQ(ends.client.take(welcome), count);
  EXPECT_EQ(ends.client.state(), Handshake::State::kDone);
}

TEST(Handshake, SucceedsWhenNeitherSideHasSecret) {
  Ends ends = ends_of({}, {});
  run(ends);
  EXPECT_EQ(ends.client.state(), Handshake::State::kDone);
  EXPECT_EQ(ends.server.state(), Handshake::State::kDone);
}

TEST(Handshake, DifferentSecretsAreRefusedOnBothSides) {
  Ends ends = ends_of(JobSecret::generate(), JobSecret::generate());
  run(ends);
  EXPECT_EQ(ends.client.state(), Handshake::State::kRefused);
  EXPECT_THAT(ends.client.reason(), HasSubstr("does not know this job's secret"));
  EXPECT_NE(ends.server.state(), Handshake::State::kDone);
}

TEST(Handshake, RefusesClientWithInvalidProof) {
  // The client ignores the server's proof and replies with an invalid proof.
  Handshake server(Handshake::Side::kServer, kServer, JobSecret::generate());
  server.take(Handshake(Handshake::Side::kClient, kClient, {}).bytes_to_send());
  EXPECT_EQ(server.bytes_to_send().size(), kRankHelloBytes + 32);
  server.take(std::vector<std::byte>(32));
  EXPECT_EQ(server.state(), Handshake::State::kRefused);
  EXPECT_THAT(server.reason(), HasSubstr("rank 2 does not know this job's secret"));
  EXPECT_THAT(server.reason(), HasSubstr("TUTTI_JOB_SECRET_FILE"));
}

TEST(Handshake, RefusesReplayedAndReflectedMessages) {
  const JobSecret secret = JobSecret::generate();
  Ends ends = ends_of(secret, secret);
  const auto hello = ends.client.bytes_to_send();
  ends.server.take(hello);
  const auto answer = ends.server.bytes_to_send();
  ends.client.take(answer);
  const auto proof = ends.client.bytes_to_send();
  // Replays the same bytes on another connection to the same server.
  Handshake again(Handshake::Side::kServer, kServer, secret);
  again.take(hello);
  (void)again.bytes_to_send();
  again.take(proof);
  EXPECT_EQ(again.state(), Handshake::State::kRefused);
  // Reflects the server's own bytes back to it.
  Handshake mirror(Handshake::Side::kServer, kServer, secret);
  mirror.take(hello);
  const auto own = mirror.bytes_to_send();
  mirror.take(std::span(own).subspan(kRankHelloBytes, 32));
  EXPECT_EQ(mirror.state(), Handshake::State::kRefused);
}

TEST(Handshake, RefusesRankThatDiffersFromRankInStore) {
  Ends ends = ends_of({}, {});
  run(ends, false);
  for (const Handshake& end : {ends.client, ends.server}) {
    EXPECT_EQ(end.state(), Handshake::State::kRefused);
    EXPECT_TRUE(end.is_proven());
    EXPECT_EQ(end.reason(), "the store does not list this process as rank 2");
  }
}

void expect_reason(const Announcement& other, const std::string& reason) {
  const Announcement mine{.group_size = 3, .build = make_build("job-1", {})};
  EXPECT_THAT(misfit_of(mine, 0, other, 2), HasSubstr(reason));
  EXPECT_EQ(misfit_of(mine, 0, other, 2).empty(), misfit_of(other, 2, mine, 0).empty());
}

TEST(Announcement, MismatchErrorNamesBothSides) {
  const Announcement same{.group_size = 3, .build = make_build("job-1", {})};
  EXPECT_EQ(misfit_of(same, 0, same, 2), "");
  Announcement other = same;
  other.build.set_version("tutti 9.0.0");
  other.build.set_oldest_protocol(7);
  other.build.set_newest_protocol(9);
  expect_reason(other, concat("the versions are incompatible: rank 0 has ", same.build.version(),
                              " with protocol versions 3 to 3, rank 2 has tutti 9.0.0 with "
                              "protocol versions 7 to 9; install one version of tutti on all "
                              "machines"));
  other = same;
  other.build.set_numerics("kernels 0, abacus");
  expect_reason(other,
                concat("their results would not be bit-identical: rank 0 has numerics '",
                       same.build.numerics(), "', rank 2 has 'kernels 0, abacus'; run one build"));
  other = {.group_size = 3, .build = make_build("job-2", {})};
  expect_reason(other, "two jobs met: rank 0 has the job id 'job-1', rank 2 has 'job-2'; give");
  other = same;
  other.build.set_layout(~same.build.layout());
  expect_reason(other, "memory layouts of numbers differ");
  other = {.group_size = 4, .build = same.build};
  expect_reason(other,
                "group sizes differ: rank 0 has 3 ranks, rank 2 has 4; give all "
                "ranks the same size");
  const JobSecret secret = JobSecret::generate();
  other = {.group_size = 3, .build = make_build("job-1", secret)};
  expect_reason(other,
                "only one side has a job secret: rank 0 has none, rank 2 has one; set "
                "TUTTI_JOB_SECRET_FILE for all processes, or for none");
  const Announcement with_another{.group_size = 3,
                                  .build = make_build("job-1", JobSecret::generate())};
  EXPECT_THAT(misfit_of(other, 0, with_another, 2), HasSubstr("does not know this job's secret"));
  EXPECT_EQ(misfit_of(other, 0, other, 2), "");
}

TEST(Handshake, UnknownProtocolIsDetectedAtFirstByte) {
  for (const std::string_view words :
       {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "SSH-2.0-OpenSSH", "\x93tutti2"}) {
    Handshake server(Handshake::Side::kServer, kServer, {});
    server.take(bytes_of(words));
    EXPECT_EQ(server.state(), Handshake::State::kStranger) << words;
    EXPECT_TRUE(server.bytes_to_send().empty());
    Handshake client(Handshake::Side::kClient, kClient, {});
    client.take(bytes_of(words));
    EXPECT_EQ(client.state(), Handshake::State::kStranger) << words;
    EXPECT_EQ(client.reason(), "the process that answered is not a rank of this version of tutti");
  }
}

std::string secret_path(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/tutti_secret_" + name;
  std::filesystem::remove(path);
  return path;
}

TEST(JobSecret, FileIsReadableOnlyByOwnerAndRoundTrips) {
  const std::string path = secret_path("new");
  write_job_secret_file(path);
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0600));
  EXPECT_EQ(JobSecret::from_file(path).bytes().size(), 32u);
  EXPECT_ERROR(write_job_secret_file(path), kAlreadyExists, path);
  EXPECT_FALSE(JobSecret().is_set());
  EXPECT_TRUE(JobSecret::generate().is_set());
}

TEST(JobSecret, RefusesPubliclyReadableAndTooShortFiles) {
  const std::string path = secret_path("bad");
  EXPECT_ERROR((void)JobSecret::from_file(path), kNotFound, path);
  std::ofstream(path) << "short";
  ::chmod(path.c_str(), 0644);
  EXPECT_INVALID((void)JobSecret::from_file(path),
                 "other users may read '" + path + "'; expected mode 0600; run: chmod 600 " + path);
  ::chmod(path.c_str(), 0600);
  EXPECT_INVALID((void)JobSecret::from_file(path), path, "expected 32 to 4096 bytes",
                 "got 5; try: head -c");
  EXPECT_INVALID((void)JobSecret::from_file(::testing::TempDir()), "is not a regular file");
}

TEST(Exposure, NetworkAddressRequiresSecretButLoopbackDoesNot) {
  for (const char* host : {"127.0.0.1", "127.3.2.1", "::1", "localhost"})
    check_exposure("x", host, {});
  for (const char* host : {"10.0.0.2", "host.example", "127.evil.example"}) {
    EXPECT_INVALID(check_exposure("server", host, {}), "server: other machines reach '",
                   "neither a secret nor TLS; try: head -c 32", "TUTTI_JOB_SECRET_FILE",
                   "allow_insecure_network");
    check_exposure("server", host, {.has_secret = true});
    check_exposure("server", host, {.has_tls = true});
    check_exposure("server", host, {.allow_insecure_network = true});
  }
  for (const char* host : {"0.0.0.0", "::", ""}) {
    EXPECT_INVALID(check_exposure("server", host, {.has_secret = true}), "every interface",
                   "allow_any_address");
    check_exposure("server", host, {.has_secret = true, .allow_any_address = true});
  }
}

constexpr RankHello kPeer{1, 815};

/// Rank 0 of a group of two, on a separate thread. The store also announces rank 1, whose role the
/// test plays.
class Serving {
 public:
  const JobSecret secret = JobSecret::generate();
  Announcement own;

  /// `change`, if given, modifies rank 1's announcement in the store.
  explicit Serving(const std::function<void(Announcement& announced)>& change = nullptr) {
    Announcement announced{.run = kPeer.run,
                           .machine = "elsewhere",
                           .endpoint = {"127.0.0.1", 9},
                           .group_size = 2,
                           .build = make_build("job", secret)};
    if (change) change(announced);
    store_.set("ranks/1", to_text(announced));
    thread_ = Executor::system().start("rank-0", [this] { serve(); });
    const TimePoint end = late();
    own = parse_announcement(store_.wait("ranks/0", end)).value();
  }
  ~Serving() {
    interruption_->raise(Error(ErrorCode::kAborted, "the test ends"));
    thread_->join();
  }
  const Endpoint& endpoint() const { return own.endpoint; }
  bool has_ended() const { return ended_.is_set(); }
  /// Waits until rank 0 has accepted rank 1, then returns the socket between them.
  FileDescriptor arrival() {
    EXPECT_TRUE(ended_.wait_until(late()));
    if (peers_.empty()) return FileDescriptor();
    EXPECT_FALSE(peers_[1].is_local);
    return std::move(peers_[1].socket);
  }
  /// Waits until rank 0 has failed, then returns its error.
  std::string error() {
    EXPECT_TRUE(ended_.wait_until(late()));
    return error_;
  }
  /// Waits until the log contains `words`; returns false if they never appear.
  bool refuses_with(const std::string& words) {
    return comes_true([&] { return log.text().find(words) != std::string::npos; });
  }
  thrown::LogLines log;

 private:
  void serve() {
    try {
      peers_ = connect_all(0, 2, store_,
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
  std::vector<ConnectedPeer> peers_;  // written by thread_ until ended_ is set
  std::string error_;                 // written by thread_ until ended_ is set
  Event ended_;
  std::unique_ptr<Thread> thread_;
};

TEST(Acceptor, AcceptedPeerKeepsUnreadBytesInSocket) {
  Serving rank;
  const auto socket = connect_to(rank.endpoint());
  Handshake handshake(Handshake::Side::kClient, kPeer, rank.secret);
  say(socket, handshake.bytes_to_send());
  while (handshake.peer() == std::nullopt) ASSERT_TRUE(hear(socket, handshake));
  EXPECT_EQ(handshake.peer(), (RankHello{0, rank.own.run}));
  EXPECT_FALSE(rank.has_ended());
  // Sends the proof, the report that all connections exist, and the first byte of a message without
  // waiting for rank 0's decision.
  auto words = handshake.bytes_to_send();
  words.push_back(std::byte{1});
  words.push_back(std::byte{7});
  say(socket, words);
  const FileDescriptor arrival = rank.arrival();
  ASSERT_TRUE(arrival.is_open()) << rank.error();
  std::array<std::byte, 2> next{};
  std::size_t count = 0;
  EXPECT_EQ(read_now(arrival, next, count), ByteFlow::kOpen);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(next[0], std::byte{7});
  while (handshake.state() == Handshake::State::kRunning) ASSERT_TRUE(hear(socket, handshake));
  EXPECT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  EXPECT_EQ(rank.log.text(), "");
}

TEST(Acceptor, RefusesMismatchedPeersWithReason) {
  struct Case {
    const char* reason;
    std::function<void(Announcement& announced)> change;
    bool is_final = false;  // if true, rank 0 fails, because a retry cannot succeed
  };
  const std::vector<Case> cases{
      {"two jobs met", [](Announcement& other) { other.build.set_job_id("other job"); }},
      {"group sizes differ", [](Announcement& other) { other.group_size = 3; }, true},
      {"results would not be bit-identical",
       [](Announcement& other) { other.build.set_numerics("other numerics"); }, true},
      {"the store does not list this process as rank 1", [](Announcement& other) { ++other.run; }},
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
    EXPECT_THAT(rank.error(), HasSubstr(each.reason));
  }
}

TEST(Acceptor, RefusesPeersWithoutJobSecretWithReason) {
  for (const JobSecret& secret : {JobSecret::generate(), JobSecret()}) {
    Serving rank;
    const auto socket = connect_to(rank.endpoint());
    const Handshake handshake = shake_hands(socket, kPeer, secret);
    EXPECT_EQ(handshake.state(), Handshake::State::kRefused);
    EXPECT_THAT(handshake.reason(), HasSubstr("does not know this job's secret"));
    // A real client would disconnect after this mismatch; this client sends a proof nevertheless.
    say(socket, std::string(32, '?'));
    EXPECT_TRUE(gets_closed(socket));
    EXPECT_TRUE(rank.refuses_with("rank 1 does not know this job's secret")) << rank.log.text();
    EXPECT_FALSE(rank.has_ended());
  }
}

TEST(Acceptor, DisconnectBeforeProofIsLoggedWithRank) {
  Serving rank;
  {
    const auto socket = connect_to(rank.endpoint());
    (void)shake_hands(socket, kPeer, JobSecret::generate());
  }
  EXPECT_TRUE(rank.refuses_with("it died, or has another secret")) << rank.log.text();
  EXPECT_THAT(rank.log.text(), HasSubstr("127.0.0.1: rank 1 disconnected"));
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
  // A genuine peer can still connect.
  const auto socket = connect_to(rank.endpoint());
  const Handshake handshake = shake_hands(socket, kPeer, rank.secret);
  ASSERT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  // This client sends its hello so slowly that the server times out first.
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

TEST(Acceptor, ClosesOldestConnectionsAboveLimit) {
  Serving rank;
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_to(rank.endpoint()));
  EXPECT_TRUE(comes_true([&] { return is_closed(silent[43]); }));
  EXPECT_TRUE(is_closed(silent.front()));
}

// Opens more connections than one address may open in this time without authentication.
TEST(Acceptor, AuthenticatedPeersDoNotCountTowardsAddressLimit) {
  Serving rank;
  for (int i = 0; i < 700; ++i) {
    const auto socket = connect_to(rank.endpoint());
    const Handshake handshake = shake_hands(socket, kPeer, rank.secret);
    ASSERT_EQ(handshake.state(), Handshake::State::kDone) << i << ": " << handshake.reason();
  }
}

TEST(AddressLimit, IsReplenishedByTimeAndAuthentication) {
  AddressLimit limit(3, 2);
  TimePoint now = Clock::system().now();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.allows("a", now)) << i;
  EXPECT_FALSE(limit.allows("a", now));
  EXPECT_TRUE(limit.allows("b", now));
  limit.release("a");
  EXPECT_TRUE(limit.allows("a", now));
  EXPECT_FALSE(limit.allows("a", now));
  now += 500ms;
  EXPECT_TRUE(limit.allows("a", now));
  EXPECT_FALSE(limit.allows("a", now));
  now += 1h;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.allows("a", now)) << i;
  EXPECT_FALSE(limit.allows("a", now));
}

TEST(AddressLimit, TracksBoundedNumberOfAddresses) {
  AddressLimit limit(2, 1);
  const TimePoint now = Clock::system().now();
  for (int i = 0; i < 5000; ++i) EXPECT_TRUE(limit.allows(concat("10.0.0.", i), now));
  EXPECT_EQ(limit.num_addresses(), AddressLimit::kMostAddresses);
  EXPECT_TRUE(limit.allows("last", now + 1h));
  EXPECT_EQ(limit.num_addresses(), 1u);
}

TEST(TcpSecrets, MismatchIsReportedOnBothSides) {
  InProcessStore store;
  const auto ranks = connected_ranks(
      2, store,
      {.way = ConnectOptions::Way::kTcp, .secret = JobSecret::generate(), .job_id = "job"});
  expect_on_ranks(2, [&](int rank) {
    const std::string reason =
        rank == 0 ? "it died, or has another secret" : "does not know this job's secret";
    EXPECT_ERROR(connect_by_tcp(rank, 2, store,
                                {.timeout = rank == 0 ? Duration(4s) : Duration(2s),
                                 .key_prefix = "other",
                                 .secret = JobSecret::generate()}),
                 kDeadlineExceeded, reason, rank == 0 ? "rank 1 did not connect" : "");
  });
}

TEST(TcpSecrets, AreRequiredForNetworkAddresses) {
  InProcessStore store;
  EXPECT_INVALID(connect_by_tcp(0, 2, store, {.address = "192.0.2.7"}),
                 "other machines reach '192.0.2.7'", "TUTTI_JOB_SECRET_FILE",
                 "allow_insecure_network");
  EXPECT_INVALID(connect_by_tcp(0, 2, store, {.address = "0.0.0.0"}),
                 "'0.0.0.0' means every interface");
  // With a secret, the check passes, and rank 0 tries to listen on the address.
  EXPECT_ERROR(
      connect_by_tcp(0, 2, store, {.address = "192.0.2.7", .secret = JobSecret::generate()}),
      kUnavailable, "192.0.2.7", "an address of this machine");
}

}  // namespace tutti::handshake_test

// Proofs by a published vector; who gets through a handshake and who does not.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace handshake_test {

using testing::expect_error;
using ::testing::HasSubstr;

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

TEST(HmacSha256, GivesAnExampleOfRfc4231InHoweverManyParts) {
  const std::string expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
  EXPECT_EQ(hex(hmac_sha256(bytes_of("Jefe"), {bytes_of("what do ya want for nothing?")})),
            expected);
  EXPECT_EQ(hex(hmac_sha256(bytes_of("Jefe"), {bytes_of("what do ya "), bytes_of(""),
                                               bytes_of("want for nothing?")})),
            expected);
}

PeerHello hello_of(std::string job, int index) {
  PeerHello hello = make_hello(std::move(job), index);
  hello.job_id = "job-1";
  return hello;
}

TEST(PeerHello, IsReadAsItWasWritten) {
  PeerHello hello = hello_of("worker", 7);
  hello.incarnation = 3;
  hello.group_size = 0x80000001u;
  hello.has_secret = true;
  EXPECT_EQ(decode_peer_hello(encode(hello)), hello);
  EXPECT_NE(make_hello("worker", 1).nonce, make_hello("worker", 1).nonce);
}

TEST(PeerHello, RefusesWhatIsNone) {
  const PeerHelloBytes good = encode(hello_of("worker", 0));
  ASSERT_TRUE(decode_peer_hello(good));
  for (const std::size_t place : {0, 7, 12, 13, 15, 19, 48, 55, 64 + 3}) {
    // Magic, flags, index, what is kept free, name.
    PeerHelloBytes bad = good;
    bad[place] = std::byte{0xff};
    EXPECT_FALSE(decode_peer_hello(bad)) << place;
  }
  EXPECT_FALSE(may_become_hello(bytes_of("GET / HTTP/1.1")));
  EXPECT_FALSE(may_become_hello(bytes_of("\x16\x03\x01")));
  EXPECT_TRUE(may_become_hello(std::span(good).first(5)));
}

struct Ends {
  Handshake client;
  Handshake server;
};

Ends ends_of(const PeerHello& client, const PeerHello& server, const JobSecret& of_client,
             const JobSecret& of_server) {
  return {Handshake(Handshake::Side::kClient, client, of_client),
          Handshake(Handshake::Side::kServer, server, of_server)};
}

/// Carries bytes between the two, `piece` at a time, until nothing moves.
void run(Ends& ends, const std::string& refusal = "", std::size_t piece = 1000) {
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
      ends.server.decide(refusal);
    }
    moved = carry(ends.server, ends.client) || moved;
  }
}

TEST(Handshake, LetsPeersOfOneJobInHoweverTheBytesCome) {
  const JobSecret secret = JobSecret::generate();
  for (const std::size_t piece : {1, 7, 288, 1000}) {
    Ends ends = ends_of(hello_of("worker", 2), hello_of("chief", 0), secret, secret);
    run(ends, "", piece);
    ASSERT_EQ(ends.client.state(), Handshake::State::kDone) << ends.client.reason();
    ASSERT_EQ(ends.server.state(), Handshake::State::kDone) << ends.server.reason();
    EXPECT_EQ(ends.server.peer()->index, 2);
    EXPECT_EQ(ends.client.peer()->job, "chief");
  }
}

TEST(Handshake, WhatLiesBehindItsLastMessageIsNotTaken) {
  const JobSecret secret = JobSecret::generate();
  Ends ends = ends_of(hello_of("worker", 2), hello_of("chief", 0), secret, secret);
  EXPECT_EQ(ends.server.num_awaited(), kPeerHelloBytes);
  ends.server.take(ends.client.bytes_to_send());
  EXPECT_EQ(ends.server.num_awaited(), 32u);
  ends.client.take(ends.server.bytes_to_send());
  auto proof = ends.client.bytes_to_send();
  proof.resize(proof.size() + 5);
  EXPECT_EQ(ends.server.take(proof), 32u);
  ASSERT_TRUE(ends.server.is_proven());
  ends.server.decide("");
  auto welcome = ends.server.bytes_to_send();
  const std::size_t count = welcome.size();
  EXPECT_EQ(ends.client.num_awaited(), count);
  welcome.resize(count + 5);
  EXPECT_EQ(ends.client.take(welcome), count);
  EXPECT_EQ(ends.client.state(), Handshake::State::kDone);
}

TEST(Handshake, WorksWithoutSecretsWhenNeitherHasOne) {
  Ends ends = ends_of(hello_of("worker", 2), hello_of("chief", 0), {}, {});
  run(ends);
  EXPECT_EQ(ends.client.state(), Handshake::State::kDone);
  EXPECT_EQ(ends.server.state(), Handshake::State::kDone);
}

TEST(Handshake, RefusesAnotherSecretAtBothEnds) {
  Ends ends = ends_of(hello_of("worker", 2), hello_of("chief", 0), JobSecret::generate(),
                      JobSecret::generate());
  run(ends);
  EXPECT_EQ(ends.client.state(), Handshake::State::kRefused);
  EXPECT_THAT(ends.client.reason(), HasSubstr("does not know this job's secret"));
  EXPECT_NE(ends.server.state(), Handshake::State::kDone);
}

TEST(Handshake, RefusesAClientThatCannotProveItself) {
  // A client that ignores the server's proof and sends a wrong one of its own.
  Handshake server(Handshake::Side::kServer, hello_of("chief", 0), JobSecret::generate());
  PeerHello hello = hello_of("worker", 2);
  hello.has_secret = true;
  server.take(encode(hello));
  EXPECT_EQ(server.bytes_to_send().size(), kPeerHelloBytes + 32);
  server.take(std::vector<std::byte>(32));
  EXPECT_EQ(server.state(), Handshake::State::kRefused);
  EXPECT_THAT(server.reason(), HasSubstr("worker 2 (tutti "));
  EXPECT_THAT(server.reason(), HasSubstr("TUTTI_JOB_SECRET_FILE"));
}

TEST(Handshake, ARecordingAndAReflectionProveNothing) {
  const JobSecret secret = JobSecret::generate();
  Ends ends = ends_of(hello_of("worker", 2), hello_of("chief", 0), secret, secret);
  const auto hello = ends.client.bytes_to_send();
  ends.server.take(hello);
  const auto answer = ends.server.bytes_to_send();
  ends.client.take(answer);
  const auto proof = ends.client.bytes_to_send();
  // The same bytes again, to another connection of the same server.
  Handshake again(Handshake::Side::kServer, hello_of("chief", 0), secret);
  again.take(hello);
  (void)again.bytes_to_send();
  again.take(proof);
  EXPECT_EQ(again.state(), Handshake::State::kRefused);
  // A server's own words sent back to it.
  Handshake mirror(Handshake::Side::kServer, hello_of("chief", 0), secret);
  mirror.take(hello);
  const auto own = mirror.bytes_to_send();
  mirror.take(std::span(own).subspan(kPeerHelloBytes, 32));
  EXPECT_EQ(mirror.state(), Handshake::State::kRefused);
}

void expect_refusal(const PeerHello& client, const PeerHello& server, const std::string& message) {
  const JobSecret secret = JobSecret::generate();
  Ends ends = ends_of(client, server, secret, secret);
  run(ends);
  EXPECT_EQ(ends.client.state(), Handshake::State::kRefused);
  EXPECT_EQ(ends.server.state(), Handshake::State::kRefused);
  EXPECT_THAT(ends.server.reason() + "\n" + ends.client.reason(), HasSubstr(message));
}

TEST(Handshake, G13_NamesBothSidesWhenTheyDoNotFit) {
  PeerHello newer = hello_of("worker", 2);
  newer.build = "tutti 9.0.0";
  newer.oldest_version = 7;
  newer.newest_version = 9;
  expect_refusal(newer, hello_of("chief", 0),
                 "the versions do not fit: chief 0 has tutti 0.2.0 with wire versions 2 to 2, "
                 "worker 2 has tutti 9.0.0 with wire versions 7 to 9; install one version of tutti "
                 "on all machines");
  PeerHello other = hello_of("worker", 2);
  other.numerics = "kernels 0, abacus";
  PeerHello chief = hello_of("chief", 0);
  chief.numerics = "kernels 1, oneDNN 2.6.3, avx2";
  expect_refusal(other, chief,
                 "their results would differ in bits: chief 0 has numerics 'kernels 1, oneDNN "
                 "2.6.3, avx2', worker 2 has 'kernels 0, abacus'; run one build");
  PeerHello other_job = hello_of("worker", 2);
  other_job.job_id = "job-2";
  expect_refusal(
      other_job, hello_of("chief", 0),
      "two jobs met: chief 0 has the job id 'job-1', worker 2 has 'job-2'; give each job");
  PeerHello big_endian = hello_of("worker", 2);
  big_endian.layout ^= 0xff;
  expect_refusal(big_endian, hello_of("chief", 0), "numbers lie differently in memory");
  PeerHello of_four = hello_of("worker", 2), of_three = hello_of("chief", 0);
  of_four.group_size = 4;
  of_three.group_size = 3;
  expect_refusal(of_four, of_three,
                 "groups of different size met: chief 0 has 3 ranks, worker 2 has 4; give all "
                 "ranks one size");
}

TEST(Handshake, G13_TheClientKnowsWhenTryingAgainIsOfNoUse) {
  const JobSecret secret = JobSecret::generate();
  const auto is_final = [](const PeerHello& client, const JobSecret& own, const JobSecret& theirs) {
    Ends ends = ends_of(client, hello_of("chief", 0), own, theirs);
    run(ends);
    return ends.client.is_final();
  };
  PeerHello other = hello_of("worker", 2);
  EXPECT_FALSE(is_final(other, secret, secret));  // nothing is refused
  other.group_size = 1;
  EXPECT_TRUE(is_final(other, secret, secret));
  EXPECT_FALSE(is_final(other, secret, JobSecret::generate()));  // who said so?
  other.job_id = "an earlier job, whose address is still in the store; this is a long text";
  EXPECT_FALSE(is_final(other, secret, secret));
}

TEST(Handshake, SaysWhenOneSideAloneHasASecret) {
  Ends ends = ends_of(hello_of("worker", 2), hello_of("chief", 0), {}, JobSecret::generate());
  run(ends);
  EXPECT_EQ(ends.client.state(), Handshake::State::kRefused);
  EXPECT_EQ(ends.client.reason(),
            "only one side has a job secret: chief 0 has one, worker 2 has none; set "
            "TUTTI_JOB_SECRET_FILE for all processes, or for none");
  EXPECT_EQ(ends.server.reason(), ends.client.reason());
}

TEST(Handshake, PassesTheServersOwnReasonOn) {
  const JobSecret secret = JobSecret::generate();
  Ends ends = ends_of(hello_of("worker", 9), hello_of("chief", 0), secret, secret);
  run(ends, "worker 9 is no task of this job");
  EXPECT_EQ(ends.client.state(), Handshake::State::kRefused);
  EXPECT_EQ(ends.client.reason(), "worker 9 is no task of this job");
}

TEST(Handshake, LongReasonsArriveWhole) {
  const PeerHello a = [] {
    PeerHello h = hello_of("worker", 1);
    h.numerics = std::string(95, 'x');
    return h;
  }();
  PeerHello b = a;
  b.numerics = std::string(95, 'y');
  const std::string reason = incompatibility(a, b).value();
  Ends ends = ends_of(hello_of("worker", 9), hello_of("chief", 0), {}, {});
  run(ends, reason);
  EXPECT_EQ(ends.client.reason(), reason);
}

TEST(Handshake, StrangersAreSeenAtTheirFirstByte) {
  for (const std::string_view words :
       {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "SSH-2.0-OpenSSH", "\x93tuttix"}) {
    Handshake server(Handshake::Side::kServer, hello_of("chief", 0), {});
    server.take(bytes_of(words));
    EXPECT_EQ(server.state(), Handshake::State::kStranger) << words;
    EXPECT_TRUE(server.bytes_to_send().empty());
    Handshake client(Handshake::Side::kClient, hello_of("worker", 1), {});
    client.take(bytes_of(words));
    EXPECT_EQ(client.state(), Handshake::State::kStranger) << words;
    EXPECT_EQ(client.reason(), "what answered is no tutti process");
  }
}

std::string secret_path(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/tutti_secret_" + name;
  std::filesystem::remove(path);
  return path;
}

TEST(JobSecret, IsWrittenForItsOwnerAloneAndReadBack) {
  const std::string path = secret_path("new");
  write_job_secret_file(path);
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0600));
  EXPECT_EQ(JobSecret::from_file(path).bytes().size(), 32u);
  expect_error(ErrorCode::kAlreadyExists, {path}, [&] { write_job_secret_file(path); });
  EXPECT_FALSE(JobSecret().is_set());
  EXPECT_TRUE(JobSecret::generate().is_set());
}

TEST(JobSecret, RefusesFilesThatOthersReadOrThatAreTooShort) {
  const std::string path = secret_path("bad");
  expect_error(ErrorCode::kNotFound, {path}, [&] { (void)JobSecret::from_file(path); });
  std::ofstream(path) << "short";
  ::chmod(path.c_str(), 0644);
  expect_error(ErrorCode::kInvalidArgument,
               {"others may read '" + path + "'; expected mode 0600; run: chmod 600 " + path},
               [&] { (void)JobSecret::from_file(path); });
  ::chmod(path.c_str(), 0600);
  expect_error(ErrorCode::kInvalidArgument,
               {path, "expected 32 to 4096 bytes, got 5; try: head -c"},
               [&] { (void)JobSecret::from_file(path); });
  expect_error(ErrorCode::kInvalidArgument, {"is no file"},
               [&] { (void)JobSecret::from_file(::testing::TempDir()); });
}

TEST(Exposure, LoopbackIsFreeAndTheNetworkNeedsASecret) {
  for (const char* host : {"127.0.0.1", "127.3.2.1", "::1", "localhost"})
    check_exposure("x", host, {});
  for (const char* host : {"10.0.0.2", "host.example", "127.evil.example"}) {
    expect_error(ErrorCode::kInvalidArgument,
                 {"server: other machines reach '", "neither a secret nor TLS; try: head -c 32",
                  "TUTTI_JOB_SECRET_FILE", "allow_insecure_network"},
                 [&] { check_exposure("server", host, {}); });
    check_exposure("server", host, {.has_secret = true});
    check_exposure("server", host, {.has_tls = true});
    check_exposure("server", host, {.allow_insecure_network = true});
  }
  for (const char* host : {"0.0.0.0", "::", ""}) {
    expect_error(ErrorCode::kInvalidArgument, {"every interface", "allow_any_address"},
                 [&] { check_exposure("server", host, {.has_secret = true}); });
    check_exposure("server", host, {.has_secret = true, .allow_any_address = true});
  }
}

}  // namespace handshake_test
}  // namespace tutti

// Proofs by a published vector; who gets through a handshake and who does not.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/tensor_matchers.h"
#include "tutti/core/error.h"

namespace tutti {
namespace handshake_test {

using namespace internal;
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

constexpr RankHello kClient{2, 815}, kServer{0, 4711};

struct Ends {
  Handshake client;
  Handshake server;
};

Ends ends_of(const JobSecret& of_client, const JobSecret& of_server) {
  return {Handshake(Handshake::Side::kClient, kClient, of_client),
          Handshake(Handshake::Side::kServer, kServer, of_server)};
}

/// Carries bytes between the two, `piece` at a time, until nothing moves.
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

TEST(Handshake, LetsPeersOfOneJobInHoweverTheBytesCome) {
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

TEST(Handshake, WhatLiesBehindItsLastMessageIsNotTaken) {
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

TEST(Handshake, WorksWithoutSecretsWhenNeitherHasOne) {
  Ends ends = ends_of({}, {});
  run(ends);
  EXPECT_EQ(ends.client.state(), Handshake::State::kDone);
  EXPECT_EQ(ends.server.state(), Handshake::State::kDone);
}

TEST(Handshake, RefusesAnotherSecretAtBothEnds) {
  Ends ends = ends_of(JobSecret::generate(), JobSecret::generate());
  run(ends);
  EXPECT_EQ(ends.client.state(), Handshake::State::kRefused);
  EXPECT_THAT(ends.client.reason(), HasSubstr("does not know this job's secret"));
  EXPECT_NE(ends.server.state(), Handshake::State::kDone);
}

TEST(Handshake, RefusesAClientThatCannotProveItself) {
  // A client that ignores the server's proof and sends a wrong one of its own.
  Handshake server(Handshake::Side::kServer, kServer, JobSecret::generate());
  server.take(Handshake(Handshake::Side::kClient, kClient, {}).bytes_to_send());
  EXPECT_EQ(server.bytes_to_send().size(), kRankHelloBytes + 32);
  server.take(std::vector<std::byte>(32));
  EXPECT_EQ(server.state(), Handshake::State::kRefused);
  EXPECT_THAT(server.reason(), HasSubstr("rank 2 does not know this job's secret"));
  EXPECT_THAT(server.reason(), HasSubstr("TUTTI_JOB_SECRET_FILE"));
}

TEST(Handshake, ARecordingAndAReflectionProveNothing) {
  const JobSecret secret = JobSecret::generate();
  Ends ends = ends_of(secret, secret);
  const auto hello = ends.client.bytes_to_send();
  ends.server.take(hello);
  const auto answer = ends.server.bytes_to_send();
  ends.client.take(answer);
  const auto proof = ends.client.bytes_to_send();
  // The same bytes again, to another connection of the same server.
  Handshake again(Handshake::Side::kServer, kServer, secret);
  again.take(hello);
  (void)again.bytes_to_send();
  again.take(proof);
  EXPECT_EQ(again.state(), Handshake::State::kRefused);
  // A server's own words sent back to it.
  Handshake mirror(Handshake::Side::kServer, kServer, secret);
  mirror.take(hello);
  const auto own = mirror.bytes_to_send();
  mirror.take(std::span(own).subspan(kRankHelloBytes, 32));
  EXPECT_EQ(mirror.state(), Handshake::State::kRefused);
}

TEST(Handshake, TheServerRefusesARankThatItsStoreHasNot) {
  Ends ends = ends_of({}, {});
  run(ends, false);
  for (const Handshake& end : {ends.client, ends.server}) {
    EXPECT_EQ(end.state(), Handshake::State::kRefused);
    EXPECT_TRUE(end.is_proven());
    EXPECT_EQ(end.reason(), "this is not the rank 2 that the store has");
  }
}

void expect_reason(const Announcement& other, const std::string& reason) {
  const Announcement mine{.group_size = 3, .build = make_build("job-1", {})};
  EXPECT_THAT(misfit_of(mine, 0, other, 2), HasSubstr(reason));
  EXPECT_EQ(misfit_of(mine, 0, other, 2).empty(), misfit_of(other, 2, mine, 0).empty());
}

TEST(Announcement, MismatchNamesBothSides) {
  const Announcement same{.group_size = 3, .build = make_build("job-1", {})};
  EXPECT_EQ(misfit_of(same, 0, same, 2), "");
  Announcement other = same;
  other.build.set_version("tutti 9.0.0");
  other.build.set_oldest_protocol(7);
  other.build.set_newest_protocol(9);
  expect_reason(other, concat("the versions do not fit: rank 0 has ", same.build.version(),
                              " with protocol versions 3 to 3, rank 2 has tutti 9.0.0 with "
                              "protocol versions 7 to 9; install one version of tutti on all "
                              "machines"));
  other = same;
  other.build.set_numerics("kernels 0, abacus");
  expect_reason(other,
                concat("their results would differ in bits: rank 0 has numerics '",
                       same.build.numerics(), "', rank 2 has 'kernels 0, abacus'; run one build"));
  other = {.group_size = 3, .build = make_build("job-2", {})};
  expect_reason(other, "two jobs met: rank 0 has the job id 'job-1', rank 2 has 'job-2'; give");
  other = same;
  other.build.set_layout(~same.build.layout());
  expect_reason(other, "numbers lie differently in memory");
  other = {.group_size = 4, .build = same.build};
  expect_reason(other,
                "groups of different size met: rank 0 has 3 ranks, rank 2 has 4; give all "
                "ranks one size");
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

TEST(Announcement, LongJobIdsAreComparedWhole) {
  const std::string id(5000, 'x');
  const Announcement mine{.build = make_build(id, {})}, same{.build = make_build(id, {})};
  EXPECT_EQ(misfit_of(mine, 0, same, 1), "");
  EXPECT_LT(mine.build.job_id().size(), 100u);
  expect_reason({.group_size = 3, .build = make_build(id + "y", {})}, "two jobs met");
}

TEST(Handshake, StrangersAreSeenAtTheirFirstByte) {
  for (const std::string_view words :
       {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "SSH-2.0-OpenSSH", "\x93tutti2"}) {
    Handshake server(Handshake::Side::kServer, kServer, {});
    server.take(bytes_of(words));
    EXPECT_EQ(server.state(), Handshake::State::kStranger) << words;
    EXPECT_TRUE(server.bytes_to_send().empty());
    Handshake client(Handshake::Side::kClient, kClient, {});
    client.take(bytes_of(words));
    EXPECT_EQ(client.state(), Handshake::State::kStranger) << words;
    EXPECT_EQ(client.reason(), "what answered is no tutti process of this version");
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

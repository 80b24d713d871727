// Digests by their published vectors; who gets through a handshake and who does not.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/net/seal.h"

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

std::string sha256(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hex(hash.digest());
}

std::string hmac(std::string_view key, std::string_view text) {
  HmacSha256 hash(bytes_of(key));
  hash.update(text);
  return hex(hash.digest());
}

TEST(Sha256, GivesTheExamplesOfFips180) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesWereCut) {
  const std::string text(300, 'x');
  for (const std::size_t piece : {1, 55, 56, 63, 64, 65, 127}) {
    Sha256 hash;
    for (std::size_t i = 0; i < text.size(); i += piece) hash.update(text.substr(i, piece));
    EXPECT_EQ(hex(hash.digest()), sha256(text)) << piece;
  }
}

TEST(HmacSha256, GivesTheExamplesOfRfc4231) {
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(
      hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(ConstantTimeCompare, SeesEveryDifference) {
  const std::string text = "sixteen bytes...";
  EXPECT_TRUE(equal_in_constant_time(bytes_of(text), bytes_of(text)));
  EXPECT_FALSE(equal_in_constant_time(bytes_of(text), bytes_of("sixteen bytes..")));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(equal_in_constant_time(bytes_of(text), bytes_of(other))) << i;
  }
}

PeerHello hello_of(std::string job, int index) {
  PeerHello hello = make_hello(ConnectionPurpose::kControl, std::move(job), index);
  hello.job_id = "job-1";
  return hello;
}

TEST(PeerHello, IsReadAsItWasWritten) {
  PeerHello hello = hello_of("worker", 7);
  hello.incarnation = 3;
  hello.features = 0x8000000000000001u;
  hello.has_secret = true;
  EXPECT_EQ(decode_peer_hello(encode(hello)), hello);
  EXPECT_NE(make_hello(ConnectionPurpose::kData, "worker", 1).nonce,
            make_hello(ConnectionPurpose::kData, "worker", 1).nonce);
}

TEST(PeerHello, RefusesWhatIsNone) {
  const PeerHelloBytes good = encode(hello_of("worker", 0));
  ASSERT_TRUE(decode_peer_hello(good));
  for (const std::size_t place : {0, 7, 12, 13, 14, 19, 20, 64 + 3}) {  // magic, kinds, index, name
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
    using Side = Handshake::Side;
    EXPECT_EQ(ends.client.session_key(Side::kClient), ends.server.session_key(Side::kClient));
    EXPECT_EQ(ends.client.session_key(Side::kServer), ends.server.session_key(Side::kServer));
    EXPECT_NE(ends.client.session_key(Side::kClient), ends.client.session_key(Side::kServer));
  }
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
                 "the versions do not fit: chief 0 has tutti 0.1.0 with wire versions 1 to 1, "
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
  PeerHello data = hello_of("worker", 2);
  data.purpose = ConnectionPurpose::kData;
  expect_refusal(data, hello_of("chief", 0), "check the addresses");
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
  other.features = 1;
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

TEST(FrameSeals, AreOfTheFramesInTheirOrder) {
  const Digest256 key{std::byte{1}};
  FrameSeals sender(key), receiver(key), reordered(key), damaged(key);
  const SealBytes first = sender.next(bytes_of("a")), second = sender.next(bytes_of("b"));
  EXPECT_TRUE(receiver.is_next(bytes_of("a"), first));
  EXPECT_TRUE(receiver.is_next(bytes_of("b"), second));
  EXPECT_FALSE(reordered.is_next(bytes_of("b"), second));
  EXPECT_FALSE(damaged.is_next(bytes_of("c"), first));
  EXPECT_FALSE(FrameSeals(Digest256{}).is_next(bytes_of("a"), first));
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

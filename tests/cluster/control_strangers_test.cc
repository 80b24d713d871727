// The control plane among strangers, with certificates, and on connections that break.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>

#include "cluster/grpc/grpc_server.h"
#include "cluster/grpc/job_authority.h"
#include "cluster/net/socket.h"
#include "tests/cluster/control_job.h"
#include "tests/cluster/tls_files.h"
#include "tests/support/chaos_proxy.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace control_strangers_test {
using namespace control_job;
using internal::FileDescriptor;
using testing::expect_error;

internal::Endpoint place_of(const ControlServer& server) {
  return internal::parse_endpoint(server.target().substr(server.target().rfind('/') + 1)).value();
}

void say(const FileDescriptor& socket, std::string_view words) {
  std::size_t count = 0;
  (void)internal::write_now(socket, std::as_bytes(std::span(words)), count);
}

bool is_closed(const FileDescriptor& socket) {
  std::array<std::byte, 4096> bytes{};
  std::size_t count = 1;
  while (count > 0) {
    if (internal::read_now(socket, bytes, count) == internal::ByteFlow::kClosed) return true;
  }
  return false;
}

std::size_t num_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(ControlStrangers, HundredsOfUnknownConnectionsDisturbNoMember) {
  auto options = server_options();
  options.tls = testing::make_certificate("strangers");
  const auto server = ControlServer::start(options);
  const auto member = join(*server, 0, {.tls = options.tls});
  const std::size_t before = num_descriptors();
  std::list<FileDescriptor> crowd;
  const std::vector<std::string> words{"",
                                       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                       std::string("\x16\x03\x01\x02\x00\x01", 6),
                                       "SSH-2.0-x\r\n",
                                       std::string(5000, '\xff')};
  for (int i = 0; i < 400; ++i) {
    crowd.push_back(internal::start_connecting(place_of(*server)));
    say(crowd.back(), words[static_cast<std::size_t>(i) % words.size()]);
    if (i % 50 == 0) member->set("k", concat(i));  // works on
  }
  EXPECT_EQ(member->get("k"), "350");
  const auto late = join(*server, 1, {.tls = options.tls});
  // What is no TLS is dropped at once; the silent and the slow after 5 s.
  const TimePoint begin = Clock::system().now();
  EXPECT_TRUE(comes_true([&] {
    std::erase_if(crowd, [](const FileDescriptor& socket) { return is_closed(socket); });
    return crowd.empty();
  })) << crowd.size()
      << " still there";
  std::printf("strangers: all of 400 closed after %.1f s\n",
              seconds_between(begin, Clock::system().now()));
  EXPECT_EQ(late->get("k"), "350");
  EXPECT_TRUE(comes_true([&] { return num_descriptors() <= before + 4; })) << num_descriptors();
  for (const Verdict& verdict : member->verdicts()) EXPECT_EQ(verdict.kind, VerdictKind::kJoined);
}

TEST(ControlStrangers, AtALoopbackAddressThereIsNoPortAndOnlyThisUserComesIn) {
  const auto server = ControlServer::start(server_options());
  const std::filesystem::path path = internal::local_socket_path(place_of(*server));
  EXPECT_TRUE(std::filesystem::is_socket(path));
  for (const auto& folder : {path.parent_path(), path.parent_path().parent_path()}) {
    EXPECT_EQ(std::filesystem::status(folder).permissions(), std::filesystem::perms::owner_all);
  }
  const auto opened = internal::connect_until(place_of(*server), after(5s));
  EXPECT_FALSE(opened.socket.is_open());
  EXPECT_TRUE(opened.is_nobody_there) << opened.reason;
}

// A process that was killed leaves its socket behind; the next server at the address takes it over,
// and one that lives is not robbed of its own.
TEST(ControlStrangers, ASocketOfADeadProcessIsTakenOver) {
  std::string target;
  std::filesystem::path path, kept;
  {
    const auto server = ControlServer::start(server_options());
    target = server->target();
    path = internal::local_socket_path(place_of(*server));
    kept = path.string() + ".kept";
    std::filesystem::create_hard_link(path, kept);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  std::filesystem::rename(kept, path);
  expect_error(ErrorCode::kDeadlineExceeded, {"Connection refused"},
               [&] { (void)connect_control(target, {}, {.timeout = 2s}); });
  auto options = server_options();
  options.address = target.substr(target.rfind('/') + 1);
  const auto server = ControlServer::start(options);
  join(*server, 0)->set("k", "v");
}

TEST(ControlConnection, MemberReconnectsAfterResetsAndDamage) {
  auto options = server_options();
  options.tls = testing::make_certificate("resets");
  options.health.unreachable_after = 20s;  // a busy machine takes seconds to connect again
  const auto server = ControlServer::start(options);
  testing::ChaosPlan plan;
  plan.cut_every = 20'000;
  plan.flip_every = 30'000;
  plan.most_events = 6;
  testing::ChaosProxy proxy(place_of(*server), plan);
  try {
    const auto member = connect_control(concat("grpc://", proxy.endpoint().to_string()),
                                        {"worker", 0, ""}, {.tls = options.tls, .timeout = 60s});
    const auto other = join(*server, 1, {.tls = options.tls});
    // How many bytes pass depends on how they are grouped: the faults are counted, not the changes.
    const auto num_faults = [&] { return proxy.num_cuts() + proxy.num_flips(); };
    for (int i = 0; i < 300 || (num_faults() < 3 && i < 10'000); ++i) {
      // Each is done exactly once, whatever happens to the connection.
      EXPECT_TRUE(member->compare_and_set(concat("k/", i), std::nullopt, "mine")) << i;
    }
    for (const Verdict& verdict : other->verdicts()) {
      EXPECT_EQ(verdict.kind, VerdictKind::kJoined) << verdict.message;
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  EXPECT_GE(proxy.num_cuts() + proxy.num_flips(), 3);
}

// As a damaged length does: one end waits for what never comes, and no end of it is told.
TEST(ControlConnection, MemberInServerProcessReconnectsAfterPacketLoss) {
  auto options = server_options();
  options.tls = testing::make_certificate("vanished");
  const auto server = ControlServer::start(options);
  testing::ChaosProxy proxy(place_of(*server), {});
  const auto member = connect_control(concat("grpc://", proxy.endpoint().to_string()),
                                      {"worker", 0, ""}, {.tls = options.tls, .timeout = 60s});
  member->set("k", "before");
  proxy.swallow();
  EXPECT_EQ(member->get("k"), "before");
  EXPECT_TRUE(member->compare_and_set("k", "before", "after"));
  for (const Verdict& verdict : member->verdicts()) EXPECT_EQ(verdict.kind, VerdictKind::kJoined);
}

TEST(ControlTls, MembersWithTheAuthoritysCertificateComeInAndOthersDoNot) {
  auto options = server_options();
  options.tls = testing::make_certificate("job");
  const auto server = ControlServer::start(options);
  const auto member = join(*server, 0, {.tls = options.tls});
  member->set("k", "v");
  EXPECT_EQ(member->get("k"), "v");
  ControlOptions stranger{.timeout = 500ms};
  expect_error(ErrorCode::kDeadlineExceeded, {"worker 1 did not reach the control server at"}, [&] {
    (void)connect_control(server->target(), {"worker", 1, ""}, stranger);
  });
  stranger.tls = testing::make_certificate("other");
  stranger.timeout = 60s;
  expect_error(ErrorCode::kFailedPrecondition,
               {"worker 1 cannot join at 127.0.0.1:", "the TLS handshake fails"}, [&] {
                 (void)connect_control(server->target(), {"worker", 1, ""}, stranger);
               });
}

// The address 0.0.0.0 is no loopback address, and reaches this machine.
TEST(ControlTls, OneSecretInTheEnvironmentIsAllThatANetworkNeeds) {
  auto options = server_options();
  options.address = "0.0.0.0:0";
  options.allow_any_address = true;
  options.secret = JobSecret::generate();
  const auto server = ControlServer::start(options);
  EXPECT_THAT(server->target(), ::testing::StartsWith("grpc://0.0.0.0:"));
  const auto far = join(*server, 0, {.secret = options.secret});
  far->set("k", "v");
  // Processes of this machine may come by its loopback address, too.
  const std::string port = server->target().substr(server->target().rfind(':'));
  const auto near =
      connect_control("grpc://127.0.0.1" + port, {"worker", 1, ""}, {.secret = options.secret});
  EXPECT_EQ(near->get("k"), "v");
  expect_error(ErrorCode::kFailedPrecondition,
               {"the TLS handshake fails", "expected a server that knows this job's secret"},
               [&] { join(*server, 2, {.secret = JobSecret::generate()}); });
}

std::string text_file(const std::string& name, const std::string& text) {
  const std::string path = concat(::testing::TempDir(), "/tutti_authority_", name, "_", ::getpid());
  std::ofstream(path) << text;
  return path;
}

bool openssl_verifies(const internal::TlsIdentity& shown, const internal::TlsIdentity& known) {
  const std::string certificate = text_file("certificate", shown.certificate);
  const std::string authority = text_file("authority", known.authorities);
  return std::system(concat("openssl verify -x509_strict -purpose sslserver -CAfile ", authority,
                            " ", certificate, " > /dev/null 2>&1")
                         .c_str()) == 0;
}

TEST(JobAuthority, ProcessesWithOneSecretHaveOneAuthority) {
  const JobSecret secret = JobSecret::generate();
  const auto a = internal::derive_identity(secret), b = internal::derive_identity(secret);
  EXPECT_NE(a.certificate, b.certificate);
  EXPECT_NE(a.private_key, b.private_key);
  EXPECT_TRUE(openssl_verifies(a, b));
  EXPECT_TRUE(openssl_verifies(b, a));
  const auto other = internal::derive_identity(JobSecret::generate());
  EXPECT_FALSE(openssl_verifies(a, other));
  EXPECT_FALSE(openssl_verifies(other, a));
}

}  // namespace control_strangers_test
}  // namespace tutti

// Certificates on both sides, from files and derived from the job's secret.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "cluster/grpc/job_authority.h"
#include "tests/cluster/control_job.h"
#include "tests/cluster/tls_files.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace control_tls_test {

using namespace control_job;
using testing::expect_error;

TEST(ControlTls, MembersWithTheAuthoritysCertificateComeInAndOthersDoNot) {
  const testing::HangWatchdog watchdog("tls", std::chrono::seconds(60));
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
  const testing::HangWatchdog watchdog("derived", std::chrono::seconds(60));
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

}  // namespace control_tls_test
}  // namespace tutti

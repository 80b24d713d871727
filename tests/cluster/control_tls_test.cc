// The wire grpc with certificates on both sides; the wire tcp has none.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/cluster/control_job.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace control_tls_test {

using namespace control_job;
using testing::expect_error;

/// A new key and a certificate that is its own authority.
TlsFiles make_certificate(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/tutti_tls_" + name;
  std::filesystem::create_directories(folder);
  const TlsFiles files{folder + "/cert.pem", folder + "/key.pem", folder + "/cert.pem"};
  const std::string command =
      concat("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 ",
             "-subj /CN=tutti -addext subjectAltName=IP:127.0.0.1 -keyout ", files.private_key,
             " -out ", files.certificate, " 2> ", folder, "/log");
  EXPECT_EQ(std::system(command.c_str()), 0) << std::ifstream(folder + "/log").rdbuf();
  return files;
}

TEST(ControlTls, MembersWithTheAuthoritysCertificateComeInAndOthersDoNot) {
  const testing::HangWatchdog watchdog("tls", std::chrono::seconds(60));
  auto options = server_options("grpc");
  options.tls = make_certificate("job");
  const auto server = ControlServer::start(options);
  const auto member = join(*server, 0, {.tls = options.tls});
  member->set("k", "v");
  EXPECT_EQ(member->get("k"), "v");
  ControlOptions stranger{.timeout = 500ms};
  expect_error(ErrorCode::kDeadlineExceeded, {"worker 1 did not reach the control server at"}, [&] {
    (void)connect_control(server->target(), {"worker", 1, ""}, stranger);
  });
  stranger.tls = make_certificate("other");
  expect_error(ErrorCode::kDeadlineExceeded, {"worker 1 did not reach the control server at"}, [&] {
    (void)connect_control(server->target(), {"worker", 1, ""}, stranger);
  });
}

TEST(ControlTls, TheWireTcpRefusesCertificates) {
  auto options = server_options("tcp");
  options.tls = {"cert.pem", "key.pem", "cert.pem"};
  expect_error(ErrorCode::kUnimplemented, {"the wire tcp has no TLS; use the wire grpc"},
               [&] { (void)ControlServer::start(options); });
  expect_error(ErrorCode::kUnimplemented, {"the wire tcp has no TLS; use a grpc:// target"},
               [&] { (void)connect_control("tcp://127.0.0.1:1", {}, {.tls = options.tls}); });
}

}  // namespace control_tls_test
}  // namespace tutti

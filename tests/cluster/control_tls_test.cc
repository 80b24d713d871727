// The wire grpc with certificates on both sides; the wire tcp has none.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

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
  auto options = server_options("grpc");
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

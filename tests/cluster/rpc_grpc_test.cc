// The wire grpc against the suite of every wire, its messages, and certificates on both sides.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/cluster/rpc_suite.h"

namespace tutti::rpc_suite {

struct Grpc {
  static constexpr RpcWire kWire = RpcWire::kGrpc;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, RpcSuite, Grpc);

namespace {

/// A new key and a certificate that is its own authority.
TlsFiles make_rpc_certificate(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/tutti_rpc_tls_" + name;
  std::filesystem::create_directories(folder);
  const TlsFiles files{folder + "/cert.pem", folder + "/key.pem", folder + "/cert.pem"};
  const std::string command =
      concat("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 ",
             "-subj /CN=tutti -addext subjectAltName=IP:127.0.0.1 -keyout ", files.private_key,
             " -out ", files.certificate, " 2> ", folder, "/log");
  EXPECT_EQ(std::system(command.c_str()), 0) << std::ifstream(folder + "/log").rdbuf();
  return files;
}

TEST(RpcGrpc, IsTheDefault) { EXPECT_EQ(default_rpc_wire(), RpcWire::kGrpc); }

TEST(RpcGrpc, WithCertificatesThoseOfTheAuthorityComeIn) {
  const testing::HangWatchdog watchdog("rpc tls", std::chrono::seconds(60));
  Handler handler;
  auto options = server_options(RpcWire::kGrpc);
  options.tls = make_rpc_certificate("job");
  const auto server = RpcServer::start(options, handler);
  auto asking = client_options();
  asking.tls = options.tls;
  const auto client = RpcClient::connect(server->target(), asking);
  const Packet request = packet("sealed", pattern(3 << 20, 5));
  EXPECT_EQ(all_of(client->call(request, late())), all_of(request));
  auto stranger = client_options();
  stranger.connect_timeout = 500ms;
  expect_error(ErrorCode::kDeadlineExceeded, {"worker 0 did not reach ps 1 ("},
               [&] { (void)RpcClient::connect(server->target(), stranger); });
  stranger.tls = make_rpc_certificate("other");
  expect_error(ErrorCode::kDeadlineExceeded, {"worker 0 did not reach ps 1 ("},
               [&] { (void)RpcClient::connect(server->target(), stranger); });
}

TEST(RpcGrpc, ATakenPortIsAnError) {
  Handler handler;
  auto options = server_options(RpcWire::kGrpc);
  const auto server = RpcServer::start(options, handler);
  options.address = server->target().substr(7);
  expect_error(ErrorCode::kUnavailable, {"grpc: listening at " + options.address + " failed"},
               [&] { (void)RpcServer::start(options, handler); });
}

}  // namespace
}  // namespace tutti::rpc_suite

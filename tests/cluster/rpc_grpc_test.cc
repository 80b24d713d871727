// The wire grpc against the suite of every wire, its messages, and certificates on both sides.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/rpc_suite.h"
#include "tests/cluster/tls_files.h"

namespace tutti::rpc_suite {

struct Grpc {
  static constexpr RpcWire kWire = RpcWire::kGrpc;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, RpcSuite, Grpc);

namespace {

TEST(RpcGrpc, IsTheDefault) { EXPECT_EQ(default_rpc_wire(), RpcWire::kGrpc); }

TEST(RpcGrpc, WithCertificatesThoseOfTheAuthorityComeIn) {
  const testing::HangWatchdog watchdog("rpc tls", std::chrono::seconds(60));
  Handler handler;
  auto options = server_options(RpcWire::kGrpc);
  options.tls = testing::make_certificate("rpc_job");
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
  stranger.tls = testing::make_certificate("rpc_other");
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

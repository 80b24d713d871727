// The wires of the library against the suite of every wire, and what is special about each.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tests/cluster/rpc_suite.h"

namespace tutti::rpc_suite {

struct InProcess {
  static constexpr RpcWire kWire = RpcWire::kInProcess;
};
INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, RpcSuite, InProcess);

TEST(RpcWires, OtherMachinesNeedASecret) {
  Handler handler;
  auto options = server_options(RpcWire::kGrpc);
  options.address = "192.0.2.1:0";  // of no machine: refused before it is tried
  expect_error(ErrorCode::kInvalidArgument, {"RpcServer: other machines reach '192.0.2.1'"},
               [&] { (void)RpcServer::start(options, handler); });
  options.secret = JobSecret::generate();
  expect_error(ErrorCode::kUnavailable, {"192.0.2.1"},
               [&] { (void)RpcServer::start(options, handler); });
  options.address = "127.0.0.1";
  expect_error(ErrorCode::kInvalidArgument, {"the address '127.0.0.1'", "expected host:port"},
               [&] { (void)RpcServer::start(options, handler); });
}

TEST(RpcWires, InAProcessNothingIsCopied) {
  std::vector<const std::byte*> seen;
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    for (const SharedBytes& piece : call->request().payload) seen.push_back(piece.bytes.data());
    Handler::echo(call);
  });
  const auto server = RpcServer::start(server_options(RpcWire::kInProcess), handler);
  const auto client = RpcClient::connect(server->target(), client_options());
  const Packet request = {{}, {shared(pattern(100, 1)), shared(pattern(7, 2))}};
  const Packet answer = client->call(request, late());
  ASSERT_EQ(answer.payload.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(seen[i], request.payload[i].bytes.data());
    EXPECT_EQ(answer.payload[i].bytes.data(), request.payload[i].bytes.data());
  }
}

TEST(RpcWires, NamesOfServersInAProcessAreUnique) {
  Handler handler;
  auto options = server_options(RpcWire::kInProcess);
  options.address = "embedded ps";
  const auto server = RpcServer::start(options, handler);
  EXPECT_EQ(server->target(), "inproc://embedded ps");
  expect_error(ErrorCode::kUnavailable, {"the name 'embedded ps' is taken"},
               [&] { (void)RpcServer::start(options, handler); });
  options.address.clear();
  const auto one = RpcServer::start(options, handler), two = RpcServer::start(options, handler);
  EXPECT_NE(one->target(), two->target());
}

TEST(RpcWires, HaveNames) {
  for (const RpcWire wire : {RpcWire::kGrpc, RpcWire::kInProcess}) {
    EXPECT_EQ(parse_rpc_wire(to_string(wire)), wire);
  }
  expect_error(ErrorCode::kInvalidArgument, {"'udp'", "grpc or inproc"},
               [] { (void)parse_rpc_wire("udp"); });
}

}  // namespace tutti::rpc_suite

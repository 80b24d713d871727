// Tests jobs over IPv6: workers, the control plane, and calls between tasks.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <array>

#include "cluster/worker_group.h"
#include "tests/cluster/control_job.h"
#include "tests/cluster/rpc_kit.h"
#include "tests/support/ranks.h"
#include "tools/launch/job_plan.h"
#include "tutti/cluster/resolvers/tf_config_resolver.h"

namespace tutti::ipv6_test {
using namespace std::chrono_literals;

/// Expects three workers on ::1, which read their cluster from TF_CONFIG, to compute the sum of 1,
/// 2 and 4.
void expect_sum(const WorkerGroupOptions& options) {
  const std::vector<int> ports = launch::free_ports(3);
  std::vector<std::string> addresses;
  for (const int port : ports) addresses.push_back(concat("\"[::1]:", port, "\""));
  std::array<float, 3> sums{};
  expect_on_ranks(3, [&](int rank) {
    const auto resolver = TfConfigResolver::from_text(
        concat(R"({"cluster": {"worker": [)", join(addresses),
               R"(]}, "task": {"type": "worker", "index": )", rank, "}}"));
    const auto workers = WorkerGroup::join(resolver, options);
    const auto communicator = workers->make_communicator();
    float& sum = sums[static_cast<std::size_t>(rank)];
    sum = static_cast<float>(1 << rank);
    communicator->all_reduce(ReduceOp::kSum, Elements(std::span(&sum, 1)));
    communicator->barrier();
  });
  EXPECT_THAT(sums, ::testing::Each(7.0f));
}

TEST(Ipv6, WorkersFromTfConfigConnectOverEveryTransport) {
  expect_sum({.way = ConnectOptions::Way::kTcp});
  expect_sum({.way = ConnectOptions::Way::kAuto});
  expect_sum({.way = ConnectOptions::Way::kTcp, .listen_at = "[0:0:0:0:0:0:0:1]:0"});
}

// The address :: is not a loopback address, but this machine can be reached through it over TCP and
// TLS.
TEST(Ipv6, ServerOnAnyAddressIsReachableAtEveryAddress) {
  auto options = control_job::server_options();
  options.address = "[::]:0";
  options.allow_any_address = true;
  options.secret = JobSecret::generate();
  const auto server = ControlServer::start(options);
  const std::string port = server->target().substr(server->target().rfind(':'));
  EXPECT_EQ(server->target(), "grpc://[::]" + port);
  std::vector<std::unique_ptr<ControlClient>> members;
  for (const char* host : {"[::]", "[::1]", "127.0.0.1"}) {
    const MemberTask task{"worker", static_cast<int>(members.size()), ""};
    members.push_back(connect_control(concat("grpc://", host, port), task,
                                      {.secret = options.secret, .timeout = 60s}));
  }
  members[0]->set("k", "v");
  for (const auto& member : members) EXPECT_EQ(member->get("k"), "v");
}

TEST(Ipv6, CallCarriesCallerAddress) {
  std::string caller;
  rpc_suite::Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    caller = call->peer().address;
    rpc_suite::Handler::echo(call);
  });
  auto server_options = rpc_suite::server_options();
  server_options.address = "[::1]:0";
  server_options.tls = control_job::make_certificate("ipv6");  // forces TCP even within one machine
  const auto server = rpc_suite::start_server(server_options, handler);
  auto options = rpc_suite::client_options();
  options.tls = server_options.tls;
  const auto client = RpcClient::connect(server->target(), RpcMethod::kApply, options);
  const Packet reply = client->call(rpc_suite::packet("x"), rpc_suite::late());
  EXPECT_EQ(rpc_suite::text_of(reply.head), "x");
  EXPECT_THAT(caller, ::testing::MatchesRegex("\\[::1\\]:[0-9]+"));
}

}  // namespace tutti::ipv6_test

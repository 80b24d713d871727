// Tests calls over connections that break or fall silent.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <vector>

#include "cluster/net/socket.h"
#include "tests/cluster/control_job.h"
#include "tests/cluster/rpc_kit.h"
#include "tests/support/chaos_proxy.h"

namespace tutti::rpc_suite {
namespace {

using testing::ChaosPlan;
using testing::ChaosProxy;

class RpcFaults : public ::testing::Test {
 protected:
  static internal::Endpoint endpoint_of(const RpcServer& server) {
    return *internal::parse_endpoint(server.target().substr(server.target().find("://") + 3));
  }
  static std::string target_of(const ChaosProxy& proxy) {
    return concat("grpc://", proxy.endpoint().to_string());
  }
  /// Uses certificates, which force calls through TCP, where they can be broken.
  RpcServerOptions tcp_server_options() const {
    auto options = server_options();
    options.tls = tls_;
    return options;
  }
  std::unique_ptr<RpcClient> connect(const std::string& target, int index = 0) const {
    auto options = client_options(index);
    options.tls = tls_;
    return RpcClient::connect(target, RpcMethod::kApply, options);
  }
  const TlsFiles tls_ = control_job::make_certificate("rpc_faults");
};

/// Each call is answered correctly or ends with kUnavailable, and so are later calls.
TEST_F(RpcFaults, DamagedConnectionAnswersRightlyOrBreaks) {
  Handler handler;
  const auto server = start_server(tcp_server_options(), handler);
  int num_broken = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    ChaosPlan plan;
    plan.seed = seed;
    plan.flip_every = seed % 3 == 0 ? 2 << 20 : 0;
    plan.cut_every = seed % 3 == 1 ? 2 << 20 : 0;
    plan.half_close_every = seed % 3 == 2 ? 2 << 20 : 0;
    plan.most_events = 1;
    plan.spares = 100000;
    const ChaosProxy proxy(endpoint_of(*server), plan);
    const auto client = connect(target_of(proxy));
    std::vector<std::shared_ptr<RpcReply>> replies;
    const auto size_of = [](unsigned i) { return std::size_t{i} * 7919 % 300000; };
    for (unsigned i = 0; i < 60; ++i) {
      replies.push_back(client->start(packet(std::to_string(i), pattern(size_of(i), i))));
    }
    bool has_broken = false;
    for (unsigned i = 0; i < 60; ++i) {
      try {
        const Packet answer = replies[i]->wait(late());
        EXPECT_EQ(text_of(answer.head), std::to_string(i));
        EXPECT_TRUE(all_of(answer) == pattern(size_of(i), i)) << i;
        EXPECT_FALSE(has_broken) << i;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
        has_broken = true;
      }
    }
    EXPECT_EQ(client->why_broken().has_value(), has_broken);
    num_broken += has_broken;
  }
  EXPECT_GE(num_broken, 4);
}

TEST_F(RpcFaults, ConnectionCutWithinARequestBringsNoCall) {
  std::atomic<int> num_calls{0};
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    ++num_calls;
    Handler::echo(call);
  });
  const auto server = start_server(tcp_server_options(), handler);
  ChaosPlan plan;
  plan.cut_every = 1;
  plan.most_events = 1;
  plan.spares = 20 << 20;
  const ChaosProxy proxy(endpoint_of(*server), plan);
  const auto client = connect(target_of(proxy), 4);
  EXPECT_ERROR((void)client->call(packet("large", pattern(32 << 20, 1)), late()), kUnavailable,
               "worker 4", "the connection broke");
  EXPECT_TRUE(comes_true([&] { return handler.left().size() == 1; }));
  EXPECT_EQ(handler.left().front().task.to_string(), "worker 4");
  EXPECT_EQ(num_calls, 0);
}

/// Keep-alive, not a call, detects that no data passes.
TEST_F(RpcFaults, SilentConnectionBreaksWithinSeconds) {
  Handler handler;
  const auto server = start_server(tcp_server_options(), handler);
  ChaosProxy proxy(endpoint_of(*server), {});
  const auto client = connect(target_of(proxy));
  (void)client->call(packet("before"), late());
  const TimePoint begin = Clock::system().now();
  proxy.swallow();
  EXPECT_ERROR((void)client->call(packet("asked"), late()), kUnavailable, "ps 1");
  EXPECT_GE(Clock::system().now() - begin, 1s);
  EXPECT_TRUE(comes_true([&] { return handler.left().size() == 1; }));
}

TEST_F(RpcFaults, AnswersMayKeepTheCallsThatTheyAreMadeFrom) {
  Handler handler([](const std::shared_ptr<RpcCall>& call) {
    Packet answer{call->request().head, {}};
    for (const SharedBytes& piece : call->request().payload) {
      answer.payload.push_back({piece.bytes, call});
    }
    call->reply(std::move(answer));
  });
  const auto server = start_server(tcp_server_options(), handler);
  const auto client = connect(server->target());
  std::vector<std::shared_ptr<RpcReply>> replies;
  for (unsigned i = 0; i < 20; ++i) {
    replies.push_back(client->start(packet(std::to_string(i), pattern(300000, i))));
  }
  for (unsigned i = 0; i < 20; ++i) {
    EXPECT_TRUE(all_of(replies[i]->wait(late())) == pattern(300000, i)) << i;
  }
}

}  // namespace
}  // namespace tutti::rpc_suite

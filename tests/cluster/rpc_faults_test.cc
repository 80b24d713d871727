// Calls over connections that break, servers that are asked too much, and strangers.
// SPDX-License-Identifier: Apache-2.0
#include <list>
#include <map>

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
  /// With certificates, so that calls go through TCP, where they can be broken.
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
/// Counts how often each request came, and in which order.
class Counts {
 public:
  void note(const std::string& head) {
    MutexLock lock(mutex_);
    if (++counts_[head] == 1) order_.push_back(head);
  }
  int of(const std::string& head) const {
    MutexLock lock(mutex_);
    const auto found = counts_.find(head);
    return found == counts_.end() ? 0 : found->second;
  }
  std::vector<std::string> order() const {
    MutexLock lock(mutex_);
    return order_;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, int> counts_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::string> order_ TUTTI_GUARDED_BY(mutex_);
};

TEST_F(RpcFaults, ConnectionFaultsLoseNoCallAndKeepTheOrder) {
  Counts counts;
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    counts.note(text_of(call->request().head));
    Handler::echo(call);
  });
  const auto server = start_server(tcp_server_options(), handler);
  ChaosPlan plan;
  plan.seed = 7;
  plan.cut_every = 4 << 20;
  plan.flip_every = 3 << 20;
  plan.half_close_every = 9 << 20;
  plan.most_events = 8;
  plan.spares = 100000;
  const ChaosProxy proxy(endpoint_of(*server), plan);
  const auto client = connect(target_of(proxy));
  constexpr int kCalls = 100;
  constexpr std::size_t kAtOnce = 6;
  std::list<std::pair<int, std::shared_ptr<RpcReply>>> replies;
  const auto take_first = [&] {
    const auto [i, reply] = replies.front();
    replies.pop_front();
    const Packet answer = reply->wait(late());
    EXPECT_EQ(text_of(answer.head), std::to_string(i));
    EXPECT_TRUE(all_of(answer) ==
                pattern(static_cast<std::size_t>(i) * 7919 % 600000, static_cast<unsigned>(i)))
        << i;
  };
  for (int i = 0; i < kCalls; ++i) {
    const std::size_t size = static_cast<std::size_t>(i) * 7919 % 600000;
    replies.emplace_back(
        i, client->start(packet(std::to_string(i), pattern(size, static_cast<unsigned>(i)))));
    if (replies.size() == kAtOnce) take_first();
  }
  while (!replies.empty()) take_first();
  const auto order = counts.order();
  ASSERT_EQ(order.size(), static_cast<std::size_t>(kCalls));
  for (int i = 0; i < kCalls; ++i) {
    EXPECT_EQ(order[static_cast<std::size_t>(i)], std::to_string(i));
  }
  EXPECT_GE(proxy.num_cuts() + proxy.num_flips() + proxy.num_half_closes(), 3);
}

/// An answer that is whole and a damaged one behind it come in one piece again and again: whoever
/// took the first must not stay to wait for the second on a connection that has broken.
TEST_F(RpcFaults, DamagedResponseAfterACompleteOneBlocksNoCall) {
  Counts counts;
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    counts.note(text_of(call->request().head));
    Handler::echo(call);
  });
  auto options = tcp_server_options();
  options.linger = 60s;  // three damaged openings in a row take longer than the usual time
  const auto server = start_server(options, handler);
  // An attempt to connect ends after 2 s where the opening of HTTP/2 was damaged.
  const unsigned num_seeds = 3;
  int num_events = 0;
  for (unsigned seed = 1; seed <= num_seeds; ++seed) {
    ChaosPlan plan;
    plan.seed = seed;
    plan.flip_every = 30000;
    plan.cut_every = plan.half_close_every = 100000;
    plan.most_events = 20;
    const ChaosProxy proxy(endpoint_of(*server), plan);
    const auto client = connect(target_of(proxy));
    std::list<std::pair<std::string, std::shared_ptr<RpcReply>>> replies;
    for (unsigned i = 0; i < 60; ++i) {
      const std::string name = concat(seed, ".", i);
      replies.emplace_back(name, client->start(packet(name, pattern(i * 7919 % 5000, i))));
      if (replies.size() < 6) continue;
      EXPECT_EQ(text_of(replies.front().second->wait(late()).head), replies.front().first);
      replies.pop_front();
    }
    for (const auto& [name, reply] : replies) EXPECT_EQ(text_of(reply->wait(late()).head), name);
    num_events += proxy.num_cuts() + proxy.num_flips() + proxy.num_half_closes();
  }
  EXPECT_GE(num_events, static_cast<int>(2 * num_seeds));
}

TEST_F(RpcFaults, AClientThatEndsWhileItConnectsAgainEndsAtOnce) {
  Handler handler;
  const auto server = start_server(tcp_server_options(), handler);
  ChaosProxy proxy(endpoint_of(*server), {});
  for (int i = 0; i < 100; ++i) {
    const auto client = connect(target_of(proxy));
    EXPECT_EQ(client->call(packet("here"), late()).head, bytes_of("here"));
    proxy.cut_all();
    // From before it knows to after it is back.
    Clock::system().sleep_for(std::chrono::microseconds(i % 25 * 100));
  }
}

TEST_F(RpcFaults, AResetInTheMiddleOfARequestBringsItOnce) {
  Counts counts;
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    counts.note(text_of(call->request().head));
    call->reply({bytes_of(std::to_string(call->request().payload_bytes())), {}});
  });
  const auto server = start_server(tcp_server_options(), handler);
  ChaosPlan plan;
  plan.cut_every = 1;
  plan.most_events = 1;
  plan.spares = 20 << 20;
  const ChaosProxy proxy(endpoint_of(*server), plan);
  const auto client = connect(target_of(proxy));
  const auto answer = client->call(packet("large", pattern(32 << 20, 1)), late());
  EXPECT_EQ(text_of(answer.head), std::to_string(32 << 20));
  EXPECT_EQ(counts.of("large"), 1);
  EXPECT_EQ(proxy.num_cuts(), 1);
}

TEST_F(RpcFaults, AnAnswerThatGotLostIsAskedForAgain) {
  Counts counts;
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    counts.note(text_of(call->request().head));
    call->reply(packet("answer", pattern(16 << 20, 3)));
  });
  const auto server = start_server(tcp_server_options(), handler);
  ChaosPlan plan;
  plan.cut_every = 1;
  plan.most_events = 1;
  plan.spares = 5 << 20;
  const ChaosProxy proxy(endpoint_of(*server), plan);
  const auto client = connect(target_of(proxy));
  EXPECT_TRUE(all_of(client->call(packet("ask"), late())) == pattern(16 << 20, 3));
  EXPECT_EQ(counts.of("ask"), 2);
  EXPECT_EQ(proxy.num_cuts(), 1);
}

TEST_F(RpcFaults, ACallWhoseConnectionBreaksIsAnsweredOnTheNext) {
  Keeper keeper;
  Handler handler(keeper.take());
  const auto server = start_server(tcp_server_options(), handler);
  ChaosProxy proxy(endpoint_of(*server), {});
  const auto client = connect(target_of(proxy));
  for (int i = 0; i < 5; ++i) {
    const auto reply = client->start(packet(concat("call ", i)));
    EXPECT_TRUE(comes_true([&] { return keeper.size() == 1; }));
    proxy.cut_all();
    if (i % 2 == 0) Clock::system().sleep_for(10ms);
    EXPECT_TRUE(comes_true([&] {  // the first answer may have been lost
      for (const auto& call : keeper.release()) call->reply(packet(concat("answer ", i)));
      return reply->is_ready();
    }));
    EXPECT_EQ(text_of(reply->wait(late()).head), concat("answer ", i));
  }
}

/// Keep-alive, not calls, finds that nothing comes through.
TEST_F(RpcFaults, ALinkThatFallsSilentIsReplaced) {
  Handler handler;
  const auto server = start_server(tcp_server_options(), handler);
  ChaosProxy proxy(endpoint_of(*server), {});
  const auto client = connect(target_of(proxy));
  (void)client->call(packet("before"), late());
  const TimePoint begin = Clock::system().now();
  proxy.swallow();
  EXPECT_EQ(text_of(client->call(packet("asked"), late()).head), "asked");
  EXPECT_GE(Clock::system().now() - begin, 1s);
  EXPECT_EQ(proxy.num_accepted(), 2);
}

TEST_F(RpcFaults, AClientThatStaysAwayHasLeft) {
  Handler handler;
  auto options = tcp_server_options();
  options.linger = 200ms;
  const auto server = start_server(options, handler);
  auto proxy = std::make_unique<ChaosProxy>(endpoint_of(*server), ChaosPlan());
  const auto client = connect(target_of(*proxy), 4);
  (void)client->call(packet("here"), late());
  EXPECT_TRUE(handler.left().empty());
  proxy.reset();
  EXPECT_TRUE(comes_true([&] { return handler.left().size() == 1; }));
  EXPECT_EQ(handler.left().front().task.to_string(), "worker 4");
  client->fail_all(Error(ErrorCode::kCancelled, "the test is over"));
}

TEST_F(RpcFaults, NoMoreOfAClientIsReadThanTheServerHasRoomFor) {
  Keeper keeper;
  Handler handler(keeper.take());
  auto options = tcp_server_options();
  options.bytes_per_client = 1 << 20;
  const auto server = start_server(options, handler);
  const auto client = connect(server->target());
  std::vector<std::shared_ptr<RpcReply>> replies;
  constexpr std::size_t kCalls = 9, kBytes = 400000;
  for (std::size_t i = 0; i < kCalls; ++i) {
    replies.push_back(client->start(packet(std::to_string(i), pattern(kBytes, 1))));
  }
  // Longer than all the room: it comes when it is the only one.
  replies.push_back(client->start(packet("long", pattern(3 << 20, 1))));
  std::size_t num_answered = 0;
  while (num_answered < replies.size()) {
    EXPECT_TRUE(comes_true([&] { return keeper.size() > 0; }));
    Clock::system().sleep_for(30ms);
    auto calls = keeper.release();
    EXPECT_LE(calls.size(), 2u);
    for (auto& call : calls) {
      call->reply({call->request().head, {}});
      call.reset();
      ++num_answered;
    }
  }
  for (std::size_t i = 0; i < kCalls; ++i) {
    EXPECT_EQ(text_of(replies[i]->wait(late()).head), std::to_string(i));
  }
  EXPECT_EQ(text_of(replies.back()->wait(late()).head), "long");
}

TEST_F(RpcFaults, AnswersMayKeepTheCallsThatTheyAreMadeFrom) {
  Handler handler([](const std::shared_ptr<RpcCall>& call) {
    Packet answer{call->request().head, {}};
    for (const SharedBytes& piece : call->request().payload) {
      answer.payload.push_back({piece.bytes, call});
    }
    call->reply(std::move(answer));
  });
  auto options = tcp_server_options();
  options.bytes_per_client = 1 << 20;
  const auto server = start_server(options, handler);
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

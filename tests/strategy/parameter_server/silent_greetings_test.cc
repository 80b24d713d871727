// A server or worker that takes the connection and answers nothing: who ends the waiting for it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/coordinator/remote_server.h"
#include "strategy/parameter_server/coordinator/remote_worker.h"
#include "tests/support/hang_watchdog.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace silent_greetings_test {

using namespace std::chrono_literals;

TimePoint soon() { return deadline_after(Clock::system().now(), 60s); }

/// Keeps every call.
class Silence final : public RpcHandler {
 public:
  void take(std::shared_ptr<RpcCall> call) override {
    const MutexLock lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
  }
  void client_left(const RpcPeer&) override {}
  bool has(std::size_t count) {
    const MutexLock lock(mutex_);
    return changed_.wait_until(mutex_, soon(),
                               [&]() TUTTI_REQUIRES(mutex_) { return calls_.size() >= count; });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<RpcCall>> calls_ TUTTI_GUARDED_BY(mutex_);
};

/// A process that is stopped, say, as the chief sees it.
class SilentGreetings : public ::testing::Test {
 protected:
  static RpcServerOptions options() {
    RpcServerOptions options;
    options.self = {"ps", 0, "nowhere"};
    options.incarnation = 3;
    return options;
  }
  std::unique_ptr<RpcClient> connect() {
    RpcClientOptions own;
    own.self = {"chief", 0, ""};
    own.server = {"ps", 0, ""};
    return RpcClient::connect(server_->target(), method_, own);
  }
  internal::TaskLinkOptions link_options() {
    return {.name = "ps 0",
            .connect = [this] { return connect(); },
            .when_lost =
                [this](internal::TaskLinkOptions::Lost lost) {
                  lost_ = std::move(lost);
                  return std::make_shared<int>(0);
                }};
  }

  const testing::HangWatchdog watchdog_{"silent greetings", 120s};
  Silence silence_;
  const std::unique_ptr<RpcServer> server_ =
      RpcServer::start(options(), {{RpcMethod::kOrder, &silence_}, {RpcMethod::kRun, &silence_}});
  std::function<void(std::uint64_t, const Error&)> lost_;
  RpcMethod method_ = RpcMethod::kOrder;
  const Error died_{ErrorCode::kUnavailable, "ps 0 died"};
};

TEST_F(SilentGreetings, ALinkToAServerEndsWithoutAnAnswer) {
  internal::RemoteServer link({link_options()}, [] {});
  EXPECT_TRUE(silence_.has(1));  // its destructor does not wait for the answer, 300 s
}

TEST_F(SilentGreetings, AServerOfWhichTheJobKnowsThatItIsGoneIsGreetedNoMore) {
  internal::RemoteServer link({link_options()}, [] {});
  ASSERT_TRUE(silence_.has(1));
  lost_(2, died_);  // the life before
  EXPECT_EQ(link.why_gone(), "ps 0: was not met yet");
  lost_(3, died_);
  EXPECT_TRUE(silence_.has(2));  // whoever is there now is met
  EXPECT_EQ(link.life(), 0u);
  EXPECT_EQ(link.why_gone(), "ps 0: ps 0 died");
}

TEST_F(SilentGreetings, AWorkerOfWhichTheJobKnowsThatItIsGoneIsGreetedNoMore) {
  method_ = RpcMethod::kRun;
  internal::RemoteWorkerOptions options;
  options.link = link_options();
  options.steps = [] { return std::string("steps"); };
  internal::RemoteWorker link(options);
  ASSERT_TRUE(silence_.has(1));
  lost_(3, died_);
  EXPECT_TRUE(silence_.has(2));
  EXPECT_FALSE(link.is_alive());
}

}  // namespace silent_greetings_test
}  // namespace tutti

// A connection of a test that can be broken, and come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::durable_tests {

using namespace std::chrono_literals;

/// A connection that can be broken for a while: what is sent meanwhile goes out when it is back.
class Breakable {
 public:
  void set_broken(bool is_broken) {
    const MutexLock lock(mutex_);
    broken_since_.reset();
    if (is_broken) broken_since_ = Clock::system().now();
    if (is_broken) return;
    for (auto& [client, held] : held_) held->reply = client->start(std::move(held->request));
    held_.clear();
  }
  bool is_broken() const {
    const MutexLock lock(mutex_);
    return broken_since_.has_value();
  }
  std::unique_ptr<RpcClient> connect(const std::string& target, const RpcClientOptions& options) {
    if (is_broken()) {
      fail(ErrorCode::kDeadlineExceeded, options.self, " did not reach ", options.server);
    }
    return std::make_unique<Client>(*this, RpcClient::connect(target, options));
  }
  /// Connects, and breaks before anything is sent.
  std::unique_ptr<RpcClient> connect_and_break(const std::string& target,
                                               const RpcClientOptions& options) {
    auto client = connect(target, options);
    set_broken(true);
    return client;
  }

 private:
  struct Held {
    Packet request = {};
    std::shared_ptr<RpcReply> reply = {};
    std::optional<Error> error = {};
  };
  class Reply final : public RpcReply {
   public:
    Reply(Breakable& way, std::shared_ptr<Held> held) : way_(way), held_(std::move(held)) {}
    bool is_ready() const override {
      const MutexLock lock(way_.mutex_);
      return held_->error || (held_->reply && held_->reply->is_ready());
    }
    bool wait_until_ready(TimePoint deadline) override {
      while (!is_ready() && Clock::system().now() < deadline) Clock::system().sleep_for(1ms);
      return is_ready();
    }
    void when_ready(std::function<void()>) override {
      TUTTI_CHECK(false, "nobody asks for it here");
    }
    Packet wait(TimePoint deadline) override {
      (void)wait_until_ready(deadline);
      const MutexLock lock(way_.mutex_);
      if (held_->error) throw *held_->error;
      if (held_->reply) return held_->reply->wait(Clock::system().now());
      fail(ErrorCode::kDeadlineExceeded, "the connection is broken");
    }

   private:
    Breakable& way_;
    const std::shared_ptr<Held> held_;
  };
  class Client final : public RpcClient {
   public:
    Client(Breakable& way, std::shared_ptr<RpcClient> client)
        : way_(way), client_(std::move(client)) {}
    std::shared_ptr<RpcReply> start(Packet request) override {
      const MutexLock lock(way_.mutex_);
      if (!way_.broken_since_) return client_->start(std::move(request));
      way_.held_.emplace_back(client_, std::make_shared<Held>(Held{std::move(request)}));
      return std::make_shared<Reply>(way_, way_.held_.back().second);
    }
    void fail_all(const Error& error) override {
      {
        const MutexLock lock(way_.mutex_);
        for (auto& [client, held] : way_.held_) {
          if (client == client_) held->error = error;
        }
        std::erase_if(way_.held_, [&](const auto& each) { return each.first == client_; });
      }
      client_->fail_all(error);
    }
    std::uint64_t server_incarnation() const override { return client_->server_incarnation(); }
    std::string server_name() const override { return client_->server_name(); }
    std::optional<std::string> why_away() const override {
      if (way_.is_broken()) return "connection refused";
      return client_->why_away();
    }
    std::optional<TimePoint> away_since() const override {
      const MutexLock lock(way_.mutex_);
      return way_.broken_since_ ? way_.broken_since_ : client_->away_since();
    }

   private:
    Breakable& way_;
    const std::shared_ptr<RpcClient> client_;
  };

  mutable Mutex mutex_;
  std::optional<TimePoint> broken_since_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::pair<std::shared_ptr<RpcClient>, std::shared_ptr<Held>>> held_
      TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::durable_tests

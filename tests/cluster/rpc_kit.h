// Helpers for tests of calls between tasks: packets, handlers and options.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tests/support/waiting.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::rpc_suite {

using namespace std::chrono_literals;
using testing::comes_true;
using testing::expect_error;
using testing::in;
using testing::late;
using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
inline std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline SharedBytes shared(Bytes bytes) {
  const auto owner = std::make_shared<const Bytes>(std::move(bytes));
  return {*owner, owner};
}
inline Packet packet(std::string_view head, Bytes payload = {}) {
  Packet result{bytes_of(head), {}};
  if (!payload.empty()) result.payload.push_back(shared(std::move(payload)));
  return result;
}
inline Bytes all_of(const Packet& packet) {
  Bytes all;
  for (const SharedBytes& piece : packet.payload) {
    all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
  }
  return all;
}

/// Handler that passes calls to a function of the test and records the clients that disconnected.
class Handler final : public RpcHandler {
 public:
  using Take = std::function<void(std::shared_ptr<RpcCall>)>;
  explicit Handler(Take take = echo) : take_(std::move(take)) {}
  static void echo(const std::shared_ptr<RpcCall>& call) {
    call->reply({call->request().head, call->request().payload});
  }
  void take(std::shared_ptr<RpcCall> call) override { take_(std::move(call)); }
  void client_left(const RpcPeer& peer) override {
    MutexLock lock(mutex_);
    left_.push_back(peer);
  }
  std::vector<RpcPeer> left() const {
    MutexLock lock(mutex_);
    return left_;
  }

 private:
  const Take take_;
  mutable Mutex mutex_;
  std::vector<RpcPeer> left_ TUTTI_GUARDED_BY(mutex_);
};

/// Store of calls to which the test replies later.
class Keeper {
 public:
  Handler::Take take() {
    return [this](std::shared_ptr<RpcCall> call) {
      MutexLock lock(mutex_);
      calls_.push_back(std::move(call));
    };
  }
  std::size_t size() const {
    MutexLock lock(mutex_);
    return calls_.size();
  }
  std::vector<std::shared_ptr<RpcCall>> release() {
    MutexLock lock(mutex_);
    return std::exchange(calls_, {});
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<RpcCall>> calls_ TUTTI_GUARDED_BY(mutex_);
};

inline RpcServerOptions server_options() {
  RpcServerOptions options;
  options.self = {"ps", 1, ""};
  return options;
}
inline std::unique_ptr<RpcServer> start_server(const RpcServerOptions& options,
                                               RpcHandler& handler) {
  return RpcServer::start(options, {{RpcMethod::kApply, &handler}});
}
inline RpcClientOptions client_options(int index = 0) {
  RpcClientOptions options;
  options.self = {"worker", index, ""};
  options.server = {"ps", 1, ""};
  options.connect_timeout = 60s;
  return options;
}

}  // namespace tutti::rpc_suite

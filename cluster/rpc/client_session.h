// The client of a server: its calls, its stream, and the thread that opens it anew.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/grpc/grpc_channel.h"
#include "tutti/cluster/rpc/client_stream.h"
#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// An answer on its way, or here.
class PendingReply final : public RpcReply {
 public:
  /// `what`: "worker 0: ps 1 (127.0.0.1:4711)", for messages.
  explicit PendingReply(std::shared_ptr<const std::string> what);
  bool is_ready() const override;
  bool wait_until_ready(TimePoint deadline) override;
  void when_ready(std::function<void()> told) override;
  Packet wait(TimePoint deadline) override;
  /// The first of these counts.
  void set(Packet answer) { settle(std::move(answer), std::nullopt); }
  void set_error(Error error) { settle({}, std::move(error)); }

 private:
  void settle(Packet answer, std::optional<Error> error);

  const std::shared_ptr<const std::string> what_;
  const TimePoint begin_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_ready_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_taken_ TUTTI_GUARDED_BY(mutex_) = false;
  Packet answer_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> error_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> told_ TUTTI_GUARDED_BY(mutex_);
};

/// Threads: any.
class ClientSession final : public RpcClient {
 public:
  /// Throws as RpcClient::connect().
  ClientSession(const std::string& target, RpcMethod method, const RpcClientOptions& options);
  ~ClientSession() override;

  std::shared_ptr<RpcReply> start(Packet request) override;
  void fail_all(const Error& error) override;
  std::uint64_t server_incarnation() const override;
  std::string server_name() const override { return server_name_; }
  std::optional<std::string> why_away() const override;
  std::optional<TimePoint> away_since() const override;
  bool takes_calls() const override;

 private:
  struct Attempt : ConnectAttempt {
    std::shared_ptr<ClientStream> stream = {};
    v1::CalledServer server = {};
  };
  struct Call {
    Packet request;
    std::shared_ptr<PendingReply> reply;
  };
  using Calls = std::map<std::uint64_t, Call>;
  void connect_at_start();
  Attempt connect_once(TimePoint deadline);
  void run(std::shared_ptr<ClientStream> stream);
  std::shared_ptr<ClientStream> reconnect(const std::string& why);
  /// Takes the new stream into use; sends again what has no answer.
  bool adopt(const Attempt& attempt);
  void send_all_again(ClientStream& stream) TUTTI_REQUIRES(send_mutex_);
  void take(CallMessage message);
  /// Ends the calls under way, and later ones as long as `lasts`.
  void give_up(const Error& error, bool lasts);
  bool is_over() const;

  const Endpoint endpoint_;
  const RpcMethod method_;
  const RpcClientOptions options_;
  const std::string server_name_;
  const std::shared_ptr<const std::string> what_;
  const v1::Caller caller_;
  Event stop_;

  /// Held while calls are handed to the stream, so that they keep their order; before mutex_.
  Mutex send_mutex_;
  mutable Mutex mutex_;
  Calls calls_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_call_ TUTTI_GUARDED_BY(mutex_) = 0;
  v1::CalledServer server_ TUTTI_GUARDED_BY(mutex_);     // the last one
  std::string why_away_ TUTTI_GUARDED_BY(mutex_);        // while there is no stream
  TimePoint away_since_ TUTTI_GUARDED_BY(mutex_);        // too
  std::optional<Error> away_ TUTTI_GUARDED_BY(mutex_);   // for too long: until it is back
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);  // for good
  std::shared_ptr<ClientStream> stream_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal

// What is behind an RpcClient: its calls, its stream, and the thread that opens it anew.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/grpc/grpc_channel.h"
#include "tutti/cluster/rpc/client_stream.h"
#include "tutti/cluster/rpc/pending_reply.h"
#include "tutti/core/executor.h"

namespace tutti::internal {

/// Threads: any.
class ClientSession final : public std::enable_shared_from_this<ClientSession> {
 public:
  ClientSession(const std::string& target, RpcMethod method, const RpcClientOptions& options);

  /// Throws as RpcClient::connect().
  void connect_at_start();
  std::shared_ptr<RpcReply> start(Packet request);
  void fail_all(const Error& error);
  /// Says good-bye and ends the thread.
  void leave();

  std::uint64_t server_incarnation() const;
  const std::string& server_name() const { return server_name_; }
  std::optional<std::string> why_away() const;
  std::optional<TimePoint> away_since() const;
  bool takes_calls() const;

 private:
  /// What came of an attempt to connect.
  struct Attempt {
    std::shared_ptr<ClientStream> stream = {};
    v1::CalledServer server = {};
    std::string reason = {};    // why there is no stream
    bool is_final = false;      // the server refuses: no use in trying again
    bool is_other_job = false;  // the TLS handshake fails
  };
  struct Call {
    Packet request;
    std::shared_ptr<PendingReply> reply;
  };
  using Calls = std::map<std::uint64_t, Call>;
  Attempt connect_once(TimePoint deadline);
  Attempt failed_attempt(ClientStream& stream, TimePoint deadline);
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
  std::shared_ptr<ClientStream> stream_ TUTTI_GUARDED_BY(mutex_);
  Calls calls_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_call_ TUTTI_GUARDED_BY(mutex_) = 0;
  v1::CalledServer server_ TUTTI_GUARDED_BY(mutex_);     // the last one
  std::string why_away_ TUTTI_GUARDED_BY(mutex_);        // while there is no stream
  TimePoint away_since_ TUTTI_GUARDED_BY(mutex_);        // too
  std::optional<Error> away_ TUTTI_GUARDED_BY(mutex_);   // for too long: until it is back
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);  // for good
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal

// A server's clients and their streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/net/strangers.h"
#include "cluster/rpc/server_session.h"

namespace tutti::internal {

/// Knows the clients of each method by their numbers, and lets those go that have left or stay away
/// for `linger`. Threads: any.
class ServerCore {
 public:
  ServerCore(const RpcServerOptions& options, RpcHandlers handlers);
  ~ServerCore();
  ServerCore(const ServerCore&) = delete;
  ServerCore& operator=(const ServerCore&) = delete;

  /// A stream that begins; gRPC's until OnDone().
  ServerStream* accept(RpcMethod method, grpc::CallbackServerContext& context);
  /// In OnDone().
  void remove(const std::shared_ptr<ServerStream>& stream);
  void note_refusal(const std::string& reason);
  /// Cancels the streams, there are and will be: end gRPC's server next.
  void cancel_all();

 private:
  using Key = std::pair<RpcMethod, std::uint64_t>;  // with the client's number
  std::shared_ptr<ServerSession> open(RpcMethod method, grpc::CallbackServerContext& context);
  std::shared_ptr<ServerSession> session_of(RpcMethod method, const RpcPeer& peer);
  std::vector<std::pair<Key, std::shared_ptr<ServerSession>>> sessions() const;
  void keep();
  void let_go(TimePoint now);
  TimePoint look_again() const;
  void look_now();

  const RpcServerOptions options_;
  const RpcHandlers handlers_;
  const std::uint64_t run_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<Key, std::shared_ptr<ServerSession>> sessions_ TUTTI_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<ServerStream>> streams_ TUTTI_GUARDED_BY(mutex_);
  RefusalLog refusals_ TUTTI_GUARDED_BY(mutex_){"rpc"};
  bool looks_ TUTTI_GUARDED_BY(mutex_) = false;
  bool takes_none_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stops_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> keeper_;
};

}  // namespace tutti::internal

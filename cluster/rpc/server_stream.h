// A client's stream of calls on the server's side.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "tutti/cluster/rpc/call_messages.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

class ServerCore;
class ServerSession;

/// gRPC's threads call On...(): one at a time for reads and for writes. Threads: any, all others.
class ServerStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public std::enable_shared_from_this<ServerStream> {
 public:
  /// `core` lives longer, `context` until OnDone().
  ServerStream(ServerCore& core, grpc::CallbackServerContext& context, std::size_t longest_payload);

  /// Welcomes the client; `session` may attach this then.
  void welcome(std::shared_ptr<ServerSession> session);
  /// Reads what the client sends.
  void begin();
  /// Ends at once: this client is not served.
  void refuse(const Error& error);
  /// Hands an answer over and does not wait. A stream that has ended swallows it.
  void send(CallMessage message);
  void cancel();
  /// There may be room again for what ServerSession::lease() refused. Runs no handler: the caller
  /// may be one that answers, and hold locks.
  void read_on();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Next { kRead, kPause, kEnd };
  /// Takes what was read, if `is_new`; then reads on, or pauses, or ends.
  void go(bool is_new);
  Next hand_on(bool may_run_here);
  void half_close();
  void end(const grpc::Status& status);
  void write_next(std::vector<CallMessage>& sent) TUTTI_REQUIRES(mutex_);

  ServerCore& core_;
  grpc::CallbackServerContext& context_;
  std::shared_ptr<ServerSession> session_;
  grpc::ByteBuffer incoming_;
  CallReader reader_;  // of the reading thread; while reading is paused, of who ends that

  Mutex mutex_;
  CallWriter writer_ TUTTI_GUARDED_BY(mutex_);
  grpc::ByteBuffer outgoing_;
  std::set<std::uint64_t> unanswered_ TUTTI_GUARDED_BY(mutex_);  // calls of this stream
  bool is_half_closed_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_paused_ TUTTI_GUARDED_BY(mutex_) = false;  // nothing is read for want of room
  bool has_news_ TUTTI_GUARDED_BY(mutex_) = false;   // room again, perhaps
  bool is_cancelled_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_with_ TUTTI_GUARDED_BY(mutex_);
  bool is_finished_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_done_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::internal

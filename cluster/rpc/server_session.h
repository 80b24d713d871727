// One client of one method: its calls, whatever becomes of its stream, and the stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cluster/rpc/call_messages.h"
#include "cluster/rpc/rpc_server.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

class ServerCore;
class ServerSession;

/// A client's stream of calls. gRPC's threads call On...(): one at a time for reads and for writes.
/// Threads: any, all others.
class ServerStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public std::enable_shared_from_this<ServerStream> {
 public:
  /// `core` lives longer, `context` until OnDone().
  ServerStream(ServerCore& core, grpc::CallbackServerContext& context, std::size_t longest_payload)
      : core_(core), context_(context), reader_(CallReader::Side::kServer, longest_payload) {}

  /// Welcomes the client; `session` may attach this then.
  void welcome(std::shared_ptr<ServerSession> session) {
    session_ = std::move(session);
    StartSendInitialMetadata();
  }
  /// Reads what the client sends.
  void begin() { StartRead(&incoming_); }
  /// Ends at once: this client is not served.
  void refuse(const Error& error);
  /// Hands an answer over and does not wait. A stream that has ended swallows it.
  void send(CallMessage message);
  void cancel();
  /// There may be room again for what ServerSession::lease() refused. Runs no handler: the caller
  /// may be one that answers, and hold locks.
  void read_on();

  void OnReadDone(bool ok) override { ok ? go(true) : half_close(); }
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

/// Hands a client's calls to the handler one at a time in the order in which they came, and its
/// answers to the stream that the client has now. Threads: any.
class ServerSession final : public std::enable_shared_from_this<ServerSession> {
 public:
  /// `on_change` is called when the client has gone away, or has left.
  ServerSession(RpcHandler& handler, RpcPeer peer, const RpcServerOptions& options,
                std::function<void()> on_change);

  const RpcPeer& peer() const { return peer_; }

  /// A new stream takes the place of the last one. False: this client is just leaving.
  bool attach(const std::shared_ptr<ServerStream>& stream);
  /// Asked before memory for a call is taken. Null: not now, stream.read_on() follows.
  std::shared_ptr<void> lease(const ServerStream& stream, std::size_t bytes);
  /// A small call goes to the handler before this returns, if it may. Throws kDataLoss for a call
  /// that does not follow the last one.
  void take(const ServerStream& stream, CallMessage message, bool may_run_here);
  /// This stream has ended.
  void detach(const ServerStream& stream);

  /// When its last stream ended; nothing: it has one, or leaves already.
  std::optional<TimePoint> away_since() const {
    MutexLock lock(mutex_);
    return away_since_;
  }
  /// After all its calls the handler is told that it left.
  void leave();
  bool is_leaving() const {
    MutexLock lock(mutex_);
    return is_leaving_;
  }
  bool has_left() const {
    MutexLock lock(mutex_);
    return has_left_;
  }
  /// Waits for the handler's function under way; none runs later, and answers go nowhere.
  void end();

 private:
  class Call;
  void answer(CallMessage message);
  void release(std::size_t bytes);
  void start_worker() TUTTI_REQUIRES(mutex_);
  void work();
  bool hand_next(bool goes_on);
  void hand(const std::shared_ptr<Call>& call);

  RpcHandler& handler_;
  const RpcPeer peer_;
  const std::size_t most_bytes_, longest_payload_;
  const std::function<void()> on_change_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<ServerStream> stream_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_on_stream_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_short_ TUTTI_GUARDED_BY(mutex_) = false;  // stream_ waits for room
  std::size_t leased_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Call>> queue_ TUTTI_GUARDED_BY(mutex_);  // null: the client leaves
  bool is_handing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_leaving_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_left_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> away_since_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Thread> worker_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal

// Calls to the handler, answers to the client, whatever its stream does meanwhile: that reads while
// there is room, writes one message after the other, and finishes once.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/server_session.h"

#include <atomic>
#include <utility>

#include "cluster/grpc/grpc_channel.h"
#include "cluster/rpc/server_core.h"

namespace tutti::internal {
namespace {

/// A smaller call is handed over by the thread that brings it.
constexpr std::size_t kSmallPayload = 65536;

}  // namespace

class ServerSession::Call final : public RpcCall {
 public:
  Call(std::shared_ptr<ServerSession> session, CallMessage message)
      : session_(std::move(session)),
        number_(message.call),
        request_(std::move(message.packet)),
        lease_(std::move(message.lease)) {}
  ~Call() override {
    try_to_fail(Error(ErrorCode::kInternal, "the call was dropped without an answer"));
  }

  const RpcPeer& peer() const override { return session_->peer(); }
  const Packet& request() const override { return request_; }
  void reply(Packet answer) override {
    check_unanswered();
    const std::size_t bytes = answer.payload_bytes();
    if (answer.head.size() > tutti::kLongestHead || bytes > session_->longest_payload_) {
      try_to_fail(Error(ErrorCode::kResourceExhausted,
                        concat("an answer with ", answer.head.size(), " bytes of head and ", bytes,
                               " of payload; expected at most ", tutti::kLongestHead, " and ",
                               session_->longest_payload_, "; ask for it in parts")));
      return;
    }
    give({number_, std::move(answer)});
  }
  void fail(const Error& error) override {
    check_unanswered();
    try_to_fail(error);
  }
  void try_to_fail(const Error& error) { give({number_, {}, error}); }

 private:
  void give(CallMessage message) {
    if (is_answered_.exchange(true)) return;
    session_->answer(std::move(message));
    // An answer that points to the request may keep this call; room for what the client sends next
    // must not depend on that.
    lease_.reset();
  }
  void check_unanswered() const {
    if (!is_answered_) return;
    tutti::fail(ErrorCode::kFailedPrecondition, "RpcCall: the call of ", peer(),
                " has its answer; expected one answer per call");
  }

  const std::shared_ptr<ServerSession> session_;
  const std::uint64_t number_;
  const Packet request_;
  std::shared_ptr<void> lease_;  // until it is answered
  std::atomic<bool> is_answered_{false};
};

ServerSession::ServerSession(RpcHandler& handler, RpcPeer peer, const RpcServerOptions& options,
                             std::function<void()> on_change)
    : handler_(handler),
      peer_(std::move(peer)),
      most_bytes_(options.bytes_per_client),
      longest_payload_(options.longest_payload),
      on_change_(std::move(on_change)),
      away_since_(Clock::system().now()) {}

bool ServerSession::attach(const std::shared_ptr<ServerStream>& stream) {
  std::shared_ptr<ServerStream> previous;
  {
    MutexLock lock(mutex_);
    if (is_leaving_ || is_ended_) return false;
    previous = std::exchange(stream_, stream);
    last_on_stream_ = 0;
    is_short_ = false;
    away_since_.reset();
  }
  if (previous) previous->cancel();
  return true;
}

std::shared_ptr<void> ServerSession::lease(const ServerStream& stream, std::size_t bytes) {
  {
    MutexLock lock(mutex_);
    // One that is longer than all the room is taken when it is the only one.
    if (leased_ > 0 && leased_ + bytes > most_bytes_) {
      is_short_ = is_short_ || stream_.get() == &stream;
      return nullptr;
    }
    leased_ += bytes;
  }
  return {this, [self = shared_from_this(), bytes](void*) { self->release(bytes); }};
}

void ServerSession::release(std::size_t bytes) {
  std::shared_ptr<ServerStream> stream;
  {
    MutexLock lock(mutex_);
    leased_ -= bytes;
    if (std::exchange(is_short_, false)) stream = stream_;
  }
  if (stream) stream->read_on();
}

void ServerSession::take(const ServerStream& stream, CallMessage message, bool may_run_here) {
  bool runs_here = false;
  {
    MutexLock lock(mutex_);
    if (stream_.get() != &stream || is_leaving_ || is_ended_) return;
    if (message.call <= last_on_stream_) {
      fail(ErrorCode::kDataLoss, "rpc: ", peer_, " sent call ", message.call, " after call ",
           last_on_stream_, "; expected ascending numbers");
    }
    last_on_stream_ = message.call;
    runs_here = may_run_here && !is_handing_ && queue_.empty() &&
                message.packet.payload_bytes() < kSmallPayload;
    queue_.push_back(std::make_shared<Call>(shared_from_this(), std::move(message)));
    if (runs_here) is_handing_ = true;
    if (!runs_here) start_worker();
  }
  if (runs_here) (void)hand_next(false);
}

void ServerSession::answer(CallMessage message) {
  std::shared_ptr<ServerStream> stream;
  {
    MutexLock lock(mutex_);
    stream = stream_;
  }
  if (stream) stream->send(std::move(message));
}

void ServerSession::detach(const ServerStream& stream) {
  {
    MutexLock lock(mutex_);
    if (stream_.get() != &stream) return;
    stream_.reset();
    if (!is_leaving_) away_since_ = Clock::system().now();
  }
  on_change_();
}

void ServerSession::leave() {
  MutexLock lock(mutex_);
  if (is_leaving_ || is_ended_) return;
  is_leaving_ = true;
  away_since_.reset();
  queue_.push_back(nullptr);
  start_worker();
}

void ServerSession::end() {
  std::deque<std::shared_ptr<Call>> queue;
  std::shared_ptr<ServerStream> stream;
  std::unique_ptr<Thread> worker;
  {
    MutexLock lock(mutex_);
    is_ended_ = true;
    queue.swap(queue_);
    stream.swap(stream_);
    worker.swap(worker_);
    changed_.notify_all();
    changed_.wait_until(mutex_, TimePoint::max(),
                        [this]() TUTTI_REQUIRES(mutex_) { return !is_handing_; });
  }
  if (stream) stream->cancel();
  if (worker) worker->join();
}

void ServerSession::start_worker() {
  if (!worker_) worker_ = Executor::system().start("rpc-handler", [this] { work(); });
  changed_.notify_all();
}

void ServerSession::work() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(mutex_) {
        return is_ended_ || (!is_handing_ && !queue_.empty());
      });
      if (is_ended_) return;
      is_handing_ = true;
    }
    while (hand_next(true)) {
    }
  }
}

/// With is_handing_ set; it stays so only where `goes_on` and there is more.
bool ServerSession::hand_next(bool goes_on) {
  std::shared_ptr<Call> call;
  {
    MutexLock lock(mutex_);
    const bool is_over = queue_.empty() || is_ended_;
    if (is_over) {
      is_handing_ = false;
      changed_.notify_all();
      return false;
    }
    call = std::move(queue_.front());
    queue_.pop_front();
  }
  hand(call);
  call.reset();  // unanswered and dropped: answered now
  if (goes_on) return true;
  MutexLock lock(mutex_);
  is_handing_ = false;
  if (!queue_.empty() && !is_ended_) start_worker();
  changed_.notify_all();
  return false;
}

void ServerSession::hand(const std::shared_ptr<Call>& call) {
  try {
    if (call) {
      handler_.take(call);
    } else {
      handler_.client_left(peer_);
    }
  } catch (const Error& error) {
    if (call) call->try_to_fail(error);
  } catch (const std::exception& error) {
    if (call) call->try_to_fail(Error(ErrorCode::kInternal, error.what()));
  }
  if (call) return;
  {
    MutexLock lock(mutex_);
    has_left_ = true;
  }
  on_change_();
}

void ServerStream::refuse(const Error& error) { end(to_status(context_, error)); }

void ServerStream::go(bool is_new) {
  Next next = Next::kEnd;
  try {
    if (is_new) reader_.take(incoming_);
    next = hand_on(is_new);
  } catch (const std::exception& damaged) {
    core_.note_refusal(damaged.what());
  }
  if (next == Next::kPause) return;  // from now on it is read_on()'s
  if (next == Next::kEnd) {
    return end({grpc::StatusCode::INVALID_ARGUMENT, "expected messages of calls.proto"});
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

ServerStream::Next ServerStream::hand_on(bool may_run_here) {
  const auto lease = [this](std::size_t bytes) { return session_->lease(*this, bytes); };
  std::optional<CallMessage> message;
  for (;;) {
    {
      MutexLock lock(mutex_);
      has_news_ = false;
    }
    message = reader_.next(lease);
    if (!reader_.waits_for_room()) break;
    MutexLock lock(mutex_);
    if (is_cancelled_) return Next::kEnd;
    is_paused_ = !has_news_;
    if (is_paused_) return Next::kPause;
  }
  if (!message) return Next::kRead;
  if (message->call == 0) {
    session_->leave();
    return Next::kRead;  // it half-closes next
  }
  {
    MutexLock lock(mutex_);
    unanswered_.insert(message->call);
  }
  session_->take(*this, *std::move(message), may_run_here);
  return Next::kRead;
}

void ServerStream::read_on() {
  {
    MutexLock lock(mutex_);
    has_news_ = true;
    if (!std::exchange(is_paused_, false)) return;
  }
  go(false);
}

void ServerStream::OnCancel() {
  bool ends = false;
  {
    MutexLock lock(mutex_);
    is_cancelled_ = true;
    ends = is_half_closed_;  // else the reading thread sees it
  }
  if (ends) end(grpc::Status::CANCELLED);
  read_on();
}

/// Or the connection broke: what of both, the end tells.
void ServerStream::half_close() {
  bool ends = false, is_cancelled = false;
  {
    MutexLock lock(mutex_);
    is_half_closed_ = true;
    is_cancelled = is_cancelled_;
    ends = is_cancelled || unanswered_.empty() || session_->is_leaving();
  }
  if (ends) end(is_cancelled ? grpc::Status::CANCELLED : grpc::Status::OK);
}

void ServerStream::send(CallMessage message) {
  std::vector<CallMessage> sent;
  const OwnersEndLater later;
  bool ends = false;
  {
    MutexLock lock(mutex_);
    if (finish_with_) {
      sent.push_back(std::move(message));
      return;
    }
    unanswered_.erase(message.call);
    ends = is_half_closed_ && unanswered_.empty();
    writer_.push(std::move(message));
    if (!is_writing_) write_next(sent);
  }
  if (ends) end(grpc::Status::OK);
}

void ServerStream::write_next(std::vector<CallMessage>& sent) {
  if (is_finished_) return;
  is_writing_ = !writer_.is_empty();
  if (is_writing_) {
    outgoing_ = writer_.next(sent);
    StartWrite(&outgoing_);
    writer_.prepare(sent);
  } else if (finish_with_) {
    is_finished_ = true;
    Finish(*finish_with_);
  }
}

void ServerStream::OnWriteDone(bool ok) {
  std::vector<CallMessage> sent;
  CallWriter unsent;
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  if (!ok) std::swap(unsent, writer_);  // the reading side notices, too
  write_next(sent);
}

void ServerStream::end(const grpc::Status& status) {
  std::vector<CallMessage> sent;
  CallWriter unsent;
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  if (finish_with_) return;
  finish_with_ = status;
  if (!status.ok()) std::swap(unsent, writer_);
  if (!is_writing_) write_next(sent);
}

void ServerStream::cancel() {
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  if (!is_done_) context_.TryCancel();
}

void ServerStream::OnDone() {
  const auto self = shared_from_this();
  bool leaves = false;
  {
    MutexLock lock(mutex_);
    is_done_ = true;
    leaves = finish_with_ && finish_with_->ok() && !context_.IsCancelled();
  }
  if (session_ && leaves) session_->leave();
  if (session_) session_->detach(*this);
  session_.reset();  // which knows this stream
  core_.remove(self);
}

}  // namespace tutti::internal

// Reads while there is room, writes one message after the other, and finishes once.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/server_stream.h"

#include <utility>

#include "tutti/cluster/grpc/grpc_channel.h"
#include "tutti/cluster/rpc/server_core.h"
#include "tutti/cluster/rpc/server_session.h"

namespace tutti::internal {

ServerStream::ServerStream(ServerCore& core, grpc::CallbackServerContext& context,
                           std::size_t longest_payload)
    : core_(core), context_(context), reader_(CallReader::Side::kServer, longest_payload) {}

void ServerStream::welcome(std::shared_ptr<ServerSession> session) {
  session_ = std::move(session);
  StartSendInitialMetadata();
}

void ServerStream::begin() { StartRead(&incoming_); }

void ServerStream::refuse(const Error& error) { end(to_status(context_, error)); }

void ServerStream::OnReadDone(bool ok) { ok ? go(true) : half_close(); }

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

// A client's stream of calls to a server.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/client_stream.h"

#include <utility>

#include "cluster/grpc/grpc_channel.h"

namespace tutti::internal {

void ClientStream::OnReadInitialMetadataDone(bool ok) {
  auto server = ok ? called_server_in(context_.GetServerInitialMetadata()) : std::nullopt;
  if (server) reader_.limit_payload(server->longest_tensors());
  MutexLock lock(mutex_);
  server_ = std::move(server);
  is_open_ = server_.has_value();
  if (!is_open_) release();
  changed_.notify_all();
  if (is_open_) StartRead(&incoming_);
}

void ClientStream::OnReadDone(bool ok) {
  std::string reason;
  try {
    if (ok) {
      reader_.take(incoming_);
      if (auto message = reader_.next()) received_(*std::move(message));
      incoming_.Clear();
      StartRead(&incoming_);
      return;
    }
  } catch (const std::exception& damaged) {  // a new stream makes it good
    reason = damaged.what();
    context_.TryCancel();
  }
  MutexLock lock(mutex_);
  reason_ = reason;
  is_open_ = false;
  release();
  changed_.notify_all();
}

void ClientStream::OnWriteDone(bool ok) {
  std::vector<CallMessage> sent;
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  is_writing_ = false;
  if (!ok) can_write_ = false;  // what the server said before it left is still to be read
  write_next(sent);
}

void ClientStream::write_next(std::vector<CallMessage>& sent) {
  if (has_released_) return;
  if (can_write_ && !writer_.is_empty()) {
    outgoing_ = writer_.next(sent);
    is_writing_ = true;
    StartWrite(&outgoing_);
    writer_.prepare(sent);
  } else if (leaves_by_) {
    StartWritesDone();
    release();
  }
}

std::string ClientStream::serve() {
  {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, TimePoint::max(),
                        [this]() TUTTI_REQUIRES(mutex_) { return !is_open_ || leaves_by_; });
    changed_.wait_until(mutex_, leaves_by_.value_or(TimePoint::max()),
                        [this]() TUTTI_REQUIRES(mutex_) { return !is_open_; });
    release();
  }
  context_.TryCancel();
  (void)done_.wait_until(TimePoint::max());
  MutexLock lock(mutex_);
  if (!reason_.empty()) return reason_;
  return status_.ok() ? "the connection was closed" : connect_reason(status_);
}

void ClientStream::leave(TimePoint deadline) {
  std::vector<CallMessage> sent;
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  if (leaves_by_) return;
  leaves_by_ = deadline;
  writer_.push(CallMessage{});
  if (!is_writing_) write_next(sent);
  changed_.notify_all();
}

}  // namespace tutti::internal

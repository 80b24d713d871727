// A member's connection on gRPC.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <deque>
#include <utility>

#include "tutti/cluster/control/grpc/grpc_message.h"
#include "tutti/cluster/control/grpc/grpc_options.h"
#include "tutti/cluster/control/wires.h"
#include "tutti/cluster/handshake/handshake.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

using Envelope = control::Envelope;

/// The stream, with gRPC's threads calling On...(). It ends in OnDone(), for which the destructor
/// waits.
class ClientStream final : public grpc::ClientBidiReactor<Envelope, Envelope> {
 public:
  explicit ClientStream(std::shared_ptr<grpc::Channel> channel)
      : stub_(control::Control::NewStub(std::move(channel))) {
    stub_->async()->Session(&context_, this);
    AddHold();  // for writes that are started outside of On...()
    StartRead(&incoming_);
    StartCall();
  }
  ~ClientStream() override {
    context_.TryCancel();
    close();
    done_.wait_until(TimePoint::max());
  }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      if (ok) received_.push_back(incoming_);
      if (!ok) is_open_ = false;
      changed_.notify_all();
    }
    if (ok) StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    unsent_.pop_front();
    is_writing_ = false;
    if (!ok) {  // what the server said before it left is still to be read
      can_write_ = false;
      unsent_.clear();
    }
    write_next();
  }
  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(mutex_);
      status_ = status;
      is_open_ = false;
      changed_.notify_all();
    }
    done_.set();
  }

  void send(Envelope envelope) {
    MutexLock lock(mutex_);
    if (!is_open_ || !can_write_) return;
    unsent_.push_back(std::move(envelope));
    write_next();
  }
  /// What has come; waits for something, wake(), the end or the deadline.
  std::deque<Envelope> receive(TimePoint deadline) {
    MutexLock lock(mutex_);
    const auto is_over = [this]() TUTTI_REQUIRES(mutex_) {
      return !received_.empty() || is_awake_ || !is_open_;
    };
    changed_.wait_until(mutex_, deadline, is_over);
    is_awake_ = false;
    return std::exchange(received_, {});
  }
  void wake() {
    MutexLock lock(mutex_);
    is_awake_ = true;
    changed_.notify_all();
  }
  bool is_open() {
    MutexLock lock(mutex_);
    if (!is_open_ && !has_released_) release();
    return is_open_ || !received_.empty();
  }
  grpc::Status wait_for_status(TimePoint deadline) {
    close();
    (void)done_.wait_until(deadline);
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  void write_next() TUTTI_REQUIRES(mutex_) {
    if (is_writing_ || unsent_.empty() || has_released_) return;
    is_writing_ = true;
    StartWrite(&unsent_.front());
  }
  void close() {
    MutexLock lock(mutex_);
    is_open_ = false;
    if (!has_released_) release();
  }
  void release() TUTTI_REQUIRES(mutex_) {
    has_released_ = true;
    RemoveHold();
  }

  const std::unique_ptr<control::Control::Stub> stub_;
  grpc::ClientContext context_;
  Envelope incoming_;
  Event done_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Envelope> received_ TUTTI_GUARDED_BY(mutex_);
  std::deque<Envelope> unsent_ TUTTI_GUARDED_BY(mutex_);
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_open_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_awake_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_released_ TUTTI_GUARDED_BY(mutex_) = false;
  grpc::Status status_ TUTTI_GUARDED_BY(mutex_);
};

class GrpcClientWire final : public ClientWire {
 public:
  GrpcClientWire(std::unique_ptr<ClientStream> stream, const Handshake& handshake)
      : stream_(std::move(stream)),
        seals_(handshake.session_key(Handshake::Side::kClient)),
        seals_of_server_(handshake.session_key(Handshake::Side::kServer)) {}

  void send(const Message& message) override {
    MutexLock lock(mutex_);
    stream_->send(to_envelope(message, seals_));
  }
  std::vector<Message> receive(TimePoint deadline) override {
    std::vector<Message> messages;
    for (const Envelope& envelope : stream_->receive(deadline)) {
      auto message = open_envelope(envelope, seals_of_server_);
      if (!message) is_damaged_ = true;
      if (is_damaged_) break;
      messages.push_back(*std::move(message));
    }
    return messages;
  }
  void wake() override { stream_->wake(); }
  bool is_open() const override { return !is_damaged_ && stream_->is_open(); }

 private:
  const std::unique_ptr<ClientStream> stream_;
  Mutex mutex_;
  FrameSeals seals_ TUTTI_GUARDED_BY(mutex_);
  FrameSeals seals_of_server_;  // the receiving thread's
  std::atomic<bool> is_damaged_{false};
};

void run_handshake_on(ClientStream& stream, Handshake& handshake, TimePoint deadline) {
  while (handshake.state() == Handshake::State::kRunning) {
    const auto bytes = handshake.bytes_to_send();
    if (!bytes.empty()) stream.send(to_envelope(bytes));
    const auto came = stream.receive(deadline);
    for (const Envelope& envelope : came) {
      handshake.take(std::as_bytes(std::span(envelope.handshake())));
    }
    if (came.empty() && (!stream.is_open() || Clock::system().now() >= deadline)) return;
  }
  const auto last = handshake.bytes_to_send();
  if (!last.empty()) stream.send(to_envelope(last));
}

}  // namespace

Attempt connect_grpc(const ConnectParameters& parameters) {
  Attempt attempt;
  auto stream = std::make_unique<ClientStream>(grpc::CreateCustomChannel(
      parameters.endpoint.to_string(), channel_credentials(parameters.tls), channel_arguments()));
  Handshake handshake(Handshake::Side::kClient, parameters.hello, parameters.secret);
  run_handshake_on(*stream, handshake, parameters.deadline);
  if (handshake.state() == Handshake::State::kDone) {
    attempt.wire = std::make_unique<GrpcClientWire>(std::move(stream), handshake);
    return attempt;
  }
  if (handshake.state() != Handshake::State::kRunning) {
    attempt.reason = handshake.reason();
    attempt.is_final = true;
    return attempt;
  }
  const grpc::Status status = stream->wait_for_status(parameters.deadline);
  attempt.is_nobody_there = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  attempt.reason = status.ok() ? "no answer" : status.error_message();
  return attempt;
}

}  // namespace tutti::internal

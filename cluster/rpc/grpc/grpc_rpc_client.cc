// A client's connection on gRPC: one stream of raw messages.
// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>

#include "tutti/cluster/handshake/handshake.h"
#include "tutti/cluster/rpc/grpc/grpc_frames.h"
#include "tutti/cluster/rpc/grpc/grpc_options.h"
#include "tutti/cluster/rpc/grpc/grpc_rpc_options.h"
#include "tutti/cluster/rpc/rpc_wires.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;

/// HTTP/2 drops a message whose stream's number was damaged on its way, and gRPC waits for the rest
/// of one whose length was.
constexpr Duration kLookEvery = std::chrono::seconds(1);
constexpr std::size_t kMuch = 4096;  // bytes of a message; a probe has few
constexpr std::string_view kStuck = "the server says nothing, not even to probes";

/// The stream, with gRPC's threads calling On...(). It ends in OnDone(), for which serve() and the
/// destructor wait: not on one of gRPC's threads, which must not end the last channel. (Those that
/// bring answers may hold a wire, but not longer than OnDone().)
class RpcClientStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RpcClientStream(const std::shared_ptr<grpc::Channel>& channel, std::weak_ptr<RpcFrameSink> sink)
      : sink_(std::move(sink)), stub_(channel) {
    stub_.PrepareBidiStreamingCall(&context_, method_, grpc::StubOptions(), this);
    AddHold();  // for writes that are started outside of On...()
    StartRead(&incoming_);
    StartCall();
  }
  ~RpcClientStream() override { end(); }

  void OnReadDone(bool ok) override {
    has_moved_ = true;
    if (ok && take()) {
      incoming_.Clear();
      StartRead(&incoming_);
      return;
    }
    MutexLock lock(mutex_);
    is_open_ = false;
    changed_.notify_all();
  }
  void OnWriteDone(bool ok) override {
    std::vector<RpcFrame> sent;
    const OwnersEndLater later;
    MutexLock lock(mutex_);
    is_writing_ = false;
    if (outgoing_.Length() >= kMuch) has_moved_ = true;
    if (!ok) can_write_ = false;  // what the server said before it left is still to be read
    write_next(sent);
    if (!ok || finish_at_) changed_.notify_all();  // nobody else waits for writes
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

  /// The handshake's, and the welcome.
  void send_greeting(std::span<const std::byte> bytes) {
    std::vector<RpcFrame> sent;
    MutexLock lock(mutex_);
    greetings_.push_back(handshake_message(bytes));
    if (!is_writing_) write_next(sent);
  }
  std::deque<std::vector<std::byte>> receive_greetings(TimePoint deadline) {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, deadline,
                        [this]() TUTTI_REQUIRES(mutex_) { return !heard_.empty() || !is_open_; });
    return std::exchange(heard_, {});
  }
  /// From now on there are frames.
  void begin(const Handshake& handshake) {
    MutexLock lock(mutex_);
    writer_.emplace(handshake.session_key(Handshake::Side::kClient));
    reader_.emplace(handshake.session_key(Handshake::Side::kServer), 0);
    has_begun_ = true;
  }
  std::optional<RpcFrame> receive_welcome(TimePoint deadline) {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, deadline,
                        [this]() TUTTI_REQUIRES(mutex_) { return welcome_ || !is_open_; });
    return std::exchange(welcome_, std::nullopt);
  }

  void send(RpcFrame frame) {
    std::vector<RpcFrame> sent;  // ends after the lock
    const OwnersEndLater later;
    MutexLock lock(mutex_);
    if (!is_open_ || !can_write_ || has_released_) return;
    writer_->push(std::move(frame));
    if (!is_writing_) write_next(sent);
  }
  /// Until the stream has ended, or finish() was asked for and all has been sent.
  std::string serve() {
    bool is_stuck = false, says_end = false;
    while (!is_stuck && !wait_until_over(deadline_after(Clock::system().now(), kLookEvery))) {
      const auto sink = sink_.lock();
      is_stuck = sink && sink->look_for_gaps(has_moved_.exchange(false));
    }
    {
      MutexLock lock(mutex_);
      if (is_stuck && reason_.empty()) reason_ = kStuck;
      says_end = !is_stuck && is_open_ && can_write_ && !is_writing_ && !has_released_;
    }
    if (says_end) end_gently();
    end();
    MutexLock lock(mutex_);
    if (!reason_.empty()) return reason_;
    return status_.ok() ? "the connection was closed" : status_.error_message();
  }
  void finish(TimePoint deadline) {
    MutexLock lock(mutex_);
    finish_at_ = deadline;
    changed_.notify_all();
  }
  grpc::Status wait_for_status(TimePoint deadline) {
    release();
    (void)done_.wait_until(deadline);
    MutexLock lock(mutex_);
    return status_;
  }
  bool is_open() {
    MutexLock lock(mutex_);
    return is_open_;
  }

 private:
  /// gRPC's reading thread. False: read no more.
  bool take() {
    if (!has_begun_) {
      auto bytes = handshake_of(incoming_);
      MutexLock lock(mutex_);
      if (bytes) heard_.push_back(*std::move(bytes));
      changed_.notify_all();
      return bytes.has_value();
    }
    try {
      reader_->take(incoming_);
      if (auto frame = reader_->next({})) hand_on(*std::move(frame));
      return true;
    } catch (const std::exception& damaged) {  // a new connection makes it good
      MutexLock lock(mutex_);
      reason_ = damaged.what();
      return false;
    }
  }
  void hand_on(RpcFrame frame) {
    if (frame.kind == RpcFrame::Kind::kWelcome) {
      if (!frame.numbers.empty()) reader_->limit_payload(frame.numbers.front());
      MutexLock lock(mutex_);
      welcome_ = std::move(frame);
      changed_.notify_all();
    } else if (const auto sink = sink_.lock()) {
      sink->received(std::move(frame));
    }
  }
  /// False: it goes on at `until`.
  bool wait_until_over(TimePoint until) {
    MutexLock lock(mutex_);
    for (;;) {
      const TimePoint now = Clock::system().now();
      const TimePoint end = finish_at_.value_or(TimePoint::max());
      if (is_over() || now >= end) return true;
      if (now >= until) return false;
      changed_.wait_until(mutex_, std::min(until, end), [&]() TUTTI_REQUIRES(mutex_) {
        return is_over() || finish_at_.value_or(TimePoint::max()) != end;
      });
    }
  }
  bool is_over() const TUTTI_REQUIRES(mutex_) {
    const bool is_idle = !is_writing_ && (!writer_ || writer_->is_empty());
    return !is_open_ || (finish_at_ && (is_idle || !can_write_));
  }
  void write_next(std::vector<RpcFrame>& sent) TUTTI_REQUIRES(mutex_) {
    if (has_released_ || !can_write_) return;
    if (!greetings_.empty()) {
      outgoing_ = std::move(greetings_.front());
      greetings_.pop_front();
    } else if (prepared_) {
      outgoing_ = *std::exchange(prepared_, std::nullopt);
    } else if (writer_ && !writer_->is_empty()) {
      outgoing_ = writer_->next(sent);
    } else {
      return;
    }
    is_writing_ = true;
    StartWrite(&outgoing_);
    // Its checksum is made while the last one is on its way.
    if (writer_ && !writer_->is_empty()) prepared_ = writer_->next(sent);
  }
  /// What was sent may still wait in gRPC: the server has it when it ends the stream, too.
  void end_gently() {
    TimePoint until;
    {
      MutexLock lock(mutex_);
      until = finish_at_.value_or(TimePoint::min());
      if (until <= Clock::system().now()) return;
      is_writing_ = true;  // nothing more
      StartWritesDone();
    }
    release();
    (void)done_.wait_until(until);
  }
  void end() {
    context_.TryCancel();
    release();
    done_.wait_until(TimePoint::max());
  }
  void release() {
    MutexLock lock(mutex_);
    is_open_ = false;
    if (std::exchange(has_released_, true)) return;
    RemoveHold();
  }

  const std::weak_ptr<RpcFrameSink> sink_;
  const std::string method_ = kRpcMethod;
  Stub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  Event done_;
  std::atomic<bool> has_begun_{false}, has_moved_{false};
  std::optional<GrpcFrameReader> reader_;  // gRPC's reading thread's

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::vector<std::byte>> heard_ TUTTI_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> greetings_ TUTTI_GUARDED_BY(mutex_);
  std::optional<GrpcFrameWriter> writer_ TUTTI_GUARDED_BY(mutex_);
  std::optional<grpc::ByteBuffer> prepared_ TUTTI_GUARDED_BY(mutex_);  // the message after it
  grpc::ByteBuffer outgoing_;
  std::optional<RpcFrame> welcome_ TUTTI_GUARDED_BY(mutex_);
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_open_ TUTTI_GUARDED_BY(mutex_) = true;
  bool has_released_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> finish_at_ TUTTI_GUARDED_BY(mutex_);
  std::string reason_ TUTTI_GUARDED_BY(mutex_);
  grpc::Status status_ TUTTI_GUARDED_BY(mutex_);
};

class GrpcRpcClientWire final : public RpcClientWire {
 public:
  GrpcRpcClientWire(const std::shared_ptr<grpc::Channel>& channel,
                    const std::shared_ptr<RpcFrameSink>& sink)
      : stream_(channel, sink) {}
  RpcClientStream& stream() { return stream_; }
  void send(RpcFrame frame) override { stream_.send(std::move(frame)); }
  std::string serve() override { return stream_.serve(); }
  void finish(TimePoint deadline) override { stream_.finish(deadline); }

 private:
  RpcClientStream stream_;
};

void run_handshake_on(RpcClientStream& stream, Handshake& handshake, TimePoint deadline) {
  while (handshake.state() == Handshake::State::kRunning) {
    const auto bytes = handshake.bytes_to_send();
    if (!bytes.empty()) stream.send_greeting(bytes);
    const auto came = stream.receive_greetings(deadline);
    for (const auto& piece : came) (void)handshake.take(piece);
    if (came.empty() && (!stream.is_open() || Clock::system().now() >= deadline)) return;
  }
  const auto last = handshake.bytes_to_send();
  if (!last.empty()) stream.send_greeting(last);
}

}  // namespace

RpcAttempt connect_rpc_grpc(const RpcConnectParameters& parameters) {
  RpcAttempt attempt;
  auto wire = std::make_shared<GrpcRpcClientWire>(
      grpc::CreateCustomChannel(parameters.address, channel_credentials(parameters.tls),
                                rpc_channel_arguments()),
      parameters.sink);
  RpcClientStream& stream = wire->stream();
  Handshake handshake(Handshake::Side::kClient, parameters.hello, parameters.secret);
  run_handshake_on(stream, handshake, parameters.deadline);
  if (handshake.state() == Handshake::State::kRunning) {
    const grpc::Status status = stream.wait_for_status(parameters.deadline);
    attempt.reason = status.ok() ? "no answer" : status.error_message();
    return attempt;
  }
  const bool is_done = handshake.state() == Handshake::State::kDone;
  attempt.reason =
      is_done ? other_server(parameters.server, *handshake.peer()) : handshake.reason();
  attempt.is_final = !attempt.reason.empty();
  if (attempt.is_final) return attempt;
  stream.begin(handshake);
  stream.send(parameters.open);
  auto welcome = stream.receive_welcome(parameters.deadline);
  attempt.reason = "it did not welcome this client";
  if (!welcome) return attempt;
  try {
    take_welcome(attempt, *std::move(welcome));
    attempt.server_incarnation = handshake.peer()->incarnation;
    attempt.wire = std::move(wire);
  } catch (const Error& error) {
    attempt.reason = error.message();
  }
  return attempt;
}

}  // namespace tutti::internal

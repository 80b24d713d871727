// The control server on gRPC: a stream per member, with the same handshake, seals and core as on
// TCP.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "tutti/cluster/control/control_core.h"
#include "tutti/cluster/control/grpc/grpc_message.h"
#include "tutti/cluster/control/grpc/grpc_options.h"
#include "tutti/cluster/control/process_probe.h"
#include "tutti/cluster/control/wires.h"
#include "tutti/cluster/handshake/handshake.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti {

bool control_has_grpc() { return true; }

namespace internal {
namespace {

using Envelope = control::Envelope;

constexpr std::size_t kMostUnsent = std::size_t{64} << 20;
constexpr Duration kHandshakeLimit = std::chrono::seconds(5);
constexpr std::size_t kMostNewcomers = 256;

class Streams;

/// One stream. gRPC calls On...() from its threads, one at a time for reads and for writes; it ends
/// itself in OnDone(), so the core's link is a part of its own that may outlive it.
class Stream final : public grpc::ServerBidiReactor<Envelope, Envelope> {
 public:
  Stream(Streams& streams, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void OnCancel() override {}

  void queue(Envelope envelope);
  void finish(const grpc::Status& status);
  void cancel() { context_->TryCancel(); }
  bool is_late(TimePoint time) const { return !is_greeted_ && time >= deadline_; }
  bool is_greeted() const { return is_greeted_; }

 private:
  class Link;
  bool take(const Envelope& envelope);
  bool greet(const Envelope& envelope);
  void write_next() TUTTI_REQUIRES(mutex_);

  Streams& streams_;
  grpc::CallbackServerContext* const context_;
  const TimePoint deadline_;
  Handshake handshake_;
  std::atomic<bool> is_greeted_{false};
  std::shared_ptr<Link> link_;
  std::optional<FrameSeals> seals_;  // of what is read
  Envelope incoming_;

  Mutex mutex_;
  std::deque<Envelope> unsent_ TUTTI_GUARDED_BY(mutex_);
  std::size_t unsent_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_finished_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_with_ TUTTI_GUARDED_BY(mutex_);
};

class Stream::Link final : public MemberLink {
 public:
  Link(Stream* stream, const Digest256& key) : stream_(stream), seals_(key) {}
  void send(const Message& message) override {
    MutexLock lock(mutex_);
    if (stream_) stream_->queue(to_envelope(message, seals_));
  }
  void close() override {
    MutexLock lock(mutex_);
    if (stream_) stream_->cancel();
  }
  void let_go() {
    MutexLock lock(mutex_);
    stream_ = nullptr;
  }

 private:
  Mutex mutex_;
  Stream* stream_ TUTTI_GUARDED_BY(mutex_);
  FrameSeals seals_ TUTTI_GUARDED_BY(mutex_);
};

/// The service: all streams and the core.
class Streams final : public control::Control::CallbackService {
 public:
  explicit Streams(const ControlServerOptions& options)
      : options_(options), core_(options, probe_member) {}

  grpc::ServerBidiReactor<Envelope, Envelope>* Session(
      grpc::CallbackServerContext* context) override {
    // Owned by gRPC until OnDone(), which takes it out of the set that owns it.
    auto stream = std::make_unique<Stream>(*this, context);
    Stream* const pointer = stream.get();
    MutexLock lock(mutex_);
    drop_surplus();
    streams_.emplace(pointer, std::move(stream));
    return pointer;
  }

  std::unique_ptr<Stream> remove(Stream* stream) {
    MutexLock lock(mutex_);
    auto node = streams_.extract(stream);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

  /// Each ends by itself when what it has to send is sent.
  void finish_all() {
    MutexLock lock(mutex_);
    for (const auto& [pointer, stream] : streams_) stream->finish(grpc::Status::OK);
  }

  void cancel_late(TimePoint time) {
    MutexLock lock(mutex_);
    for (const auto& [pointer, stream] : streams_) {
      if (stream->is_late(time)) stream->cancel();
    }
  }

  void note_refusal(const std::string& reason) {
    MutexLock lock(mutex_);
    refusals_.note(reason, Clock::system().now());
  }

  const ControlServerOptions& options() const { return options_; }
  ControlCore& core() { return core_; }
  const ControlCore& core() const { return core_; }

 private:
  void drop_surplus() TUTTI_REQUIRES(mutex_) {
    std::size_t newcomers = 0;
    for (const auto& [pointer, stream] : streams_) {
      if (!stream->is_greeted() && ++newcomers >= kMostNewcomers) stream->cancel();
    }
  }

  const ControlServerOptions options_;
  ControlCore core_;
  Mutex mutex_;
  std::map<Stream*, std::unique_ptr<Stream>> streams_ TUTTI_GUARDED_BY(mutex_);
  RefusalLog refusals_ TUTTI_GUARDED_BY(mutex_){"control"};
};

Stream::Stream(Streams& streams, grpc::CallbackServerContext* context)
    : streams_(streams),
      context_(context),
      deadline_(deadline_after(Clock::system().now(), kHandshakeLimit)),
      handshake_(Handshake::Side::kServer, server_hello(streams.options()),
                 streams.options().secret) {
  StartRead(&incoming_);
}

void Stream::OnReadDone(bool ok) {
  if (!ok) {  // the other side has gone, in whatever way
    if (link_) streams_.core().closed(link_.get(), Clock::system().now());
    finish(grpc::Status::OK);
    return;
  }
  if (take(incoming_)) {
    StartRead(&incoming_);
    return;
  }
  if (link_) streams_.core().closed(link_.get(), Clock::system().now());
  finish(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "refused"));
}

bool Stream::take(const Envelope& envelope) {
  if (!is_greeted_) return greet(envelope);
  const auto message = open_envelope(envelope, *seals_);
  if (!message) {
    streams_.note_refusal("a damaged message");
    return false;
  }
  return streams_.core().received(link_.get(), *message, Clock::system().now());
}

bool Stream::greet(const Envelope& envelope) {
  const std::string& bytes = envelope.handshake();
  const std::size_t taken = handshake_.take(std::as_bytes(std::span(bytes)));
  if (handshake_.is_proven()) {
    handshake_.decide(streams_.core().refusal_of(*handshake_.peer()));
  }
  const auto answer = handshake_.bytes_to_send();
  if (!answer.empty()) queue(to_envelope(answer));
  switch (handshake_.state()) {
    case Handshake::State::kRunning:
      return true;
    case Handshake::State::kStranger:
      return false;
    case Handshake::State::kRefused:
      streams_.note_refusal(handshake_.reason());
      return false;
    case Handshake::State::kDone:
      break;
  }
  link_ = std::make_shared<Link>(this, handshake_.session_key(Handshake::Side::kServer));
  seals_.emplace(handshake_.session_key(Handshake::Side::kClient));
  streams_.core().opened(link_, *handshake_.peer());
  is_greeted_ = true;
  return taken == bytes.size();
}

void Stream::queue(Envelope envelope) {
  MutexLock lock(mutex_);
  unsent_bytes_ += envelope.ByteSizeLong();
  if (unsent_bytes_ > kMostUnsent) {  // it does not read
    context_->TryCancel();
    return;
  }
  unsent_.push_back(std::move(envelope));
  if (!is_writing_) write_next();
}

void Stream::write_next() {
  if (is_finished_) return;
  is_writing_ = !unsent_.empty();
  if (is_writing_) {
    StartWrite(&unsent_.front());
  } else if (finish_with_) {
    is_finished_ = true;
    Finish(*finish_with_);
  }
}

void Stream::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  unsent_bytes_ -= unsent_.front().ByteSizeLong();
  unsent_.pop_front();
  if (!ok) unsent_.clear();
  write_next();
}

void Stream::finish(const grpc::Status& status) {
  MutexLock lock(mutex_);
  if (finish_with_) return;
  finish_with_ = status;
  if (!is_writing_) write_next();
}

void Stream::OnDone() {
  if (link_) link_->let_go();
  const std::unique_ptr<Stream> self = streams_.remove(this);
}

class GrpcControlServer final : public ControlServer {
 public:
  GrpcControlServer(const ControlServerOptions& options, const Endpoint& endpoint)
      : endpoint_(endpoint), streams_(options) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kLongestEnvelope);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a taken port is an error
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);
    builder.AddListeningPort(endpoint.to_string(), server_credentials(options.tls), &port_);
    builder.RegisterService(&streams_);
    server_ = builder.BuildAndStart();
    if (!server_ || port_ == 0) {
      const std::string owner = owner_of_port(endpoint.port);
      fail(ErrorCode::kUnavailable, "grpc: listening at ", endpoint.to_string(), " failed",
           owner.empty() ? "; expected a free port of this machine"
                         : concat(": Address already in use by ", owner),
           "; end that process or try another port (0 takes a free one)");
    }
    ticker_ = Executor::system().start("control-server", [this] { tick(); });
  }

  ~GrpcControlServer() override {
    streams_.core().wait_until_all_have_left(
        deadline_after(Clock::system().now(), streams_.options().linger));
    streams_.core().say_server_leaves();
    stop_.set();
    ticker_->join();
    streams_.finish_all();
    server_->Shutdown(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(2000, GPR_TIMESPAN)));
    server_->Wait();
  }

  std::string target() const override {
    return concat("grpc://", Endpoint{endpoint_.host, port_}.to_string());
  }
  std::vector<Member> members() const override { return streams_.core().members(); }
  std::vector<Verdict> verdicts_after(std::uint64_t number) const override {
    return streams_.core().verdicts_after(number);
  }
  std::vector<Member> missing() const override { return streams_.core().missing(); }

 private:
  void tick() {
    while (!stop_.wait_until(deadline_after(Clock::system().now(), streams_.core().poll_after()))) {
      streams_.core().tick(Clock::system().now());
      streams_.cancel_late(Clock::system().now());
    }
  }

  const Endpoint endpoint_;
  int port_ = 0;
  Streams streams_;
  std::unique_ptr<grpc::Server> server_;
  Event stop_;
  std::unique_ptr<Thread> ticker_;
};

}  // namespace

std::unique_ptr<ControlServer> start_grpc_server(const ControlServerOptions& options,
                                                 const Endpoint& endpoint) {
  return std::make_unique<GrpcControlServer>(options, endpoint);
}

}  // namespace internal
}  // namespace tutti

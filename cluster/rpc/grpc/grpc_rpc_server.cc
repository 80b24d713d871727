// A server on gRPC: a stream of raw messages per connection, with the same handshake and sessions
// as on TCP.
// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/generic/async_generic_service.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tutti/cluster/handshake/handshake.h"
#include "tutti/cluster/handshake/refusal_log.h"
#include "tutti/cluster/rpc/grpc/grpc_frames.h"
#include "tutti/cluster/rpc/grpc/grpc_options.h"
#include "tutti/cluster/rpc/grpc/grpc_rpc_options.h"
#include "tutti/cluster/rpc/server_core.h"
#include "tutti/cluster/tcp/stream.h"
#include "tutti/core/process_probe.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

constexpr Duration kHandshakeLimit = std::chrono::seconds(5);
constexpr std::size_t kMostNewcomers = 256;

TimePoint now() { return Clock::system().now(); }

class RpcStreams;

/// One stream. gRPC calls On...() from its threads, one at a time for reads and for writes. It is
/// in the set of streams until OnDone(); the session's link may know it longer.
class RpcStream final : public grpc::ServerGenericBidiReactor,
                        public std::enable_shared_from_this<RpcStream> {
 public:
  RpcStream(RpcStreams& streams, grpc::GenericCallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void OnCancel() override;

  void send(RpcFrame frame);
  void cancel();
  /// Any thread, whatever it holds.
  void look_again();
  /// There may be room for the frame that waits for it, or nobody waits for it any more. The
  /// keeper's thread.
  void resume();
  bool is_late(TimePoint time) const { return !is_greeted_ && time >= deadline_; }
  bool is_greeted() const { return is_greeted_; }
  bool is_resuming() const { return is_resuming_; }

 private:
  enum class Next { kRead, kPause, kEnd };
  Next take();
  Next greet();
  Next hand_on();
  void end(const grpc::Status& status);
  void queue_greeting(std::span<const std::byte> bytes);
  void write_next(std::vector<RpcFrame>& sent) TUTTI_REQUIRES(mutex_);

  RpcStreams& streams_;
  grpc::GenericCallbackServerContext* const context_;  // until OnDone()
  const TimePoint deadline_;
  Handshake handshake_;
  std::atomic<bool> is_greeted_{false}, is_cancelled_{false}, is_resuming_{false};
  std::shared_ptr<RpcLink> link_;  // from the handshake to OnDone()
  std::shared_ptr<ServerSession> session_;
  std::optional<GrpcFrameReader> reader_;
  grpc::ByteBuffer incoming_, outgoing_;

  Mutex mutex_;
  bool is_paused_ TUTTI_GUARDED_BY(mutex_) = false;  // no read is under way: a frame waits for room
  bool has_news_ TUTTI_GUARDED_BY(mutex_) = false;   // of room, or of the end
  std::deque<grpc::ByteBuffer> greetings_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<GrpcFrameWriter> writer_ TUTTI_GUARDED_BY(mutex_);
  std::optional<grpc::ByteBuffer> prepared_ TUTTI_GUARDED_BY(mutex_);  // the message after it
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_finished_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_done_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_with_ TUTTI_GUARDED_BY(mutex_);
};

class RpcStreamLink final : public RpcLink {
 public:
  explicit RpcStreamLink(std::shared_ptr<RpcStream> stream) : stream_(std::move(stream)) {}
  void send(RpcFrame frame) override { stream_->send(std::move(frame)); }
  void close() override { stream_->cancel(); }
  void read_on() override { stream_->look_again(); }
  /// The keeper has all streams to look after.
  bool may_run_handler() const override { return !stream_->is_resuming(); }

 private:
  const std::shared_ptr<RpcStream> stream_;
};

/// The service: all streams, the clients, and a thread for what gRPC does not call back for.
class RpcStreams final : public grpc::CallbackGenericService {
 public:
  RpcStreams(const RpcServerOptions& options, RpcHandler& handler) : core_(options, handler) {
    keeper_ = Executor::system().start("rpc-streams", [this] { keep(); });
  }
  /// When there are no streams any more.
  ~RpcStreams() override {
    {
      MutexLock lock(mutex_);
      is_stopped_ = true;
      changed_.notify_all();
    }
    keeper_->join();
    core_.stop();
  }

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    std::vector<std::shared_ptr<RpcStream>> surplus;
    std::shared_ptr<RpcStream> stream;
    {
      MutexLock lock(mutex_);
      if (context->method() != kRpcMethod || is_stopping_) {
        return CallbackGenericService::CreateReactor(context);  // which says UNIMPLEMENTED
      }
      stream = std::make_shared<RpcStream>(*this, context);
      for (const auto& other : streams_) {
        if (!other->is_greeted()) surplus.push_back(other);
      }
      if (surplus.size() < kMostNewcomers) surplus.clear();
      streams_.insert(stream);
    }
    for (const auto& other : surplus) other->cancel();
    return stream.get();
  }
  void remove(const std::shared_ptr<RpcStream>& stream) {
    MutexLock lock(mutex_);
    resumable_.erase(stream);
    streams_.erase(stream);
  }
  /// The keeper calls its resume() soon.
  void look_at(std::shared_ptr<RpcStream> stream) {
    MutexLock lock(mutex_);
    resumable_.insert(std::move(stream));
    changed_.notify_all();
  }
  void cancel_all() {
    {
      MutexLock lock(mutex_);
      is_stopping_ = true;
    }
    for (const auto& stream : all([](const RpcStream&) { return true; })) stream->cancel();
  }
  void note_refusal(const std::string& reason) {
    MutexLock lock(mutex_);
    refusals_.note(reason, now());
  }
  ServerCore& core() { return core_; }

 private:
  using Set = std::set<std::shared_ptr<RpcStream>>;
  template <class Condition>
  Set all(const Condition& condition) {
    Set found;
    MutexLock lock(mutex_);
    for (const auto& stream : streams_) {
      if (condition(*stream)) found.insert(stream);
    }
    return found;
  }
  void keep() {
    for (;;) {
      Set resumable;
      {
        MutexLock lock(mutex_);
        changed_.wait_for(mutex_, std::chrono::seconds(1), [this]() TUTTI_REQUIRES(mutex_) {
          return is_stopped_ || !resumable_.empty();
        });
        if (is_stopped_) return;
        resumable.swap(resumable_);
      }
      for (const auto& stream : resumable) stream->resume();
      const TimePoint time = now();
      for (const auto& stream : all([&](const RpcStream& each) { return each.is_late(time); })) {
        stream->cancel();
      }
    }
  }

  ServerCore core_;
  Mutex mutex_;
  CondVar changed_;
  Set streams_ TUTTI_GUARDED_BY(mutex_);
  Set resumable_ TUTTI_GUARDED_BY(mutex_);
  bool is_stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_stopped_ TUTTI_GUARDED_BY(mutex_) = false;
  RefusalLog refusals_ TUTTI_GUARDED_BY(mutex_){"rpc"};
  std::unique_ptr<Thread> keeper_;
};

/// "ipv4:127.0.0.1:4711" without what is no address.
std::string address_in(const std::string& peer) {
  return peer.starts_with("ipv4:") || peer.starts_with("ipv6:") ? peer.substr(5) : peer;
}

RpcStream::RpcStream(RpcStreams& streams, grpc::GenericCallbackServerContext* context)
    : streams_(streams),
      context_(context),
      deadline_(deadline_after(now(), kHandshakeLimit)),
      handshake_(Handshake::Side::kServer, server_hello(streams.core().options()),
                 streams.core().options().secret) {
  StartRead(&incoming_);
}

void RpcStream::OnReadDone(bool ok) {
  if (!ok) {  // the other side has gone, in whatever way
    end(grpc::Status::OK);
    return;
  }
  switch (take()) {
    case Next::kRead:
      incoming_.Clear();
      StartRead(&incoming_);
      return;
    case Next::kPause:  // from now on it is resume()'s
      return;
    case Next::kEnd:
      end(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "refused"));
  }
}

RpcStream::Next RpcStream::take() {
  if (!is_greeted_) return greet();
  try {
    reader_->take(incoming_);
    return hand_on();
  } catch (const std::exception& damaged) {
    streams_.note_refusal(damaged.what());
    return Next::kEnd;
  }
}

RpcStream::Next RpcStream::hand_on() {
  const auto lease = [this](std::size_t bytes) -> std::shared_ptr<void> {
    if (!session_) return nullptr;
    return session_->lease(*link_, bytes);
  };
  std::optional<RpcFrame> frame;
  for (;;) {
    {
      MutexLock lock(mutex_);
      has_news_ = false;
    }
    frame = reader_->next(lease);
    if (!reader_->waits_for_room()) break;
    MutexLock lock(mutex_);
    if (is_cancelled_ || !session_) return Next::kEnd;
    is_paused_ = !has_news_;
    if (is_paused_) return Next::kPause;
  }
  if (!frame) return Next::kRead;
  if (session_) {
    session_->received(*link_, *std::move(frame));
    return Next::kRead;
  }
  session_ = streams_.core().open(link_, peer_of(*handshake_.peer(), address_in(context_->peer())),
                                  *frame);
  return session_ ? Next::kRead : Next::kEnd;
}

RpcStream::Next RpcStream::greet() {
  const auto bytes = handshake_of(incoming_);
  if (!bytes) return Next::kEnd;
  const std::size_t taken = handshake_.take(*bytes);
  if (handshake_.is_proven()) handshake_.decide("");
  const auto answer = handshake_.bytes_to_send();
  if (!answer.empty()) queue_greeting(answer);
  switch (handshake_.state()) {
    case Handshake::State::kRunning:
      return Next::kRead;
    case Handshake::State::kStranger:
      return Next::kEnd;
    case Handshake::State::kRefused:
      streams_.note_refusal(concat(address_in(context_->peer()), ": ", handshake_.reason()));
      return Next::kEnd;
    case Handshake::State::kDone:
      break;
  }
  link_ = std::make_shared<RpcStreamLink>(shared_from_this());
  reader_.emplace(handshake_.session_key(Handshake::Side::kClient),
                  streams_.core().options().longest_payload);
  {
    MutexLock lock(mutex_);
    writer_ = std::make_unique<GrpcFrameWriter>(handshake_.session_key(Handshake::Side::kServer));
  }
  is_greeted_ = true;
  return taken == bytes->size() ? Next::kRead : Next::kEnd;
}

void RpcStream::look_again() {
  MutexLock lock(mutex_);
  has_news_ = true;
  if (is_paused_) streams_.look_at(shared_from_this());
}

void RpcStream::OnCancel() {
  is_cancelled_ = true;
  look_again();
}

void RpcStream::resume() {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(is_paused_, false)) return;
  }
  Next next = Next::kEnd;
  is_resuming_ = true;
  try {
    if (!is_cancelled_) next = hand_on();
  } catch (const std::exception& damaged) {
    streams_.note_refusal(damaged.what());
  }
  if (next == Next::kPause) return;  // or perhaps resumed again already: by this thread, later
  is_resuming_ = false;
  if (next == Next::kEnd) {
    end(grpc::Status::CANCELLED);
    return;
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

void RpcStream::queue_greeting(std::span<const std::byte> bytes) {
  std::vector<RpcFrame> sent;
  MutexLock lock(mutex_);
  greetings_.push_back(handshake_message(bytes));
  if (!is_writing_) write_next(sent);
}

void RpcStream::send(RpcFrame frame) {
  std::vector<RpcFrame> sent;
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  if (finish_with_ || !writer_) {
    sent.push_back(std::move(frame));
    return;
  }
  writer_->push(std::move(frame));
  if (!is_writing_) write_next(sent);
}

void RpcStream::write_next(std::vector<RpcFrame>& sent) {
  if (is_finished_) return;
  is_writing_ = true;
  if (!greetings_.empty()) {
    outgoing_ = std::move(greetings_.front());
    greetings_.pop_front();
    StartWrite(&outgoing_);
  } else if (writer_ && !finish_with_ && (prepared_ || !writer_->is_empty())) {
    outgoing_ = prepared_ ? *std::exchange(prepared_, std::nullopt) : writer_->next(sent);
    StartWrite(&outgoing_);
    // Its checksum is made while the last one is on its way.
    if (!writer_->is_empty()) prepared_ = writer_->next(sent);
  } else {
    is_writing_ = false;
    is_finished_ = finish_with_.has_value();
    if (is_finished_) Finish(*finish_with_);
  }
}

void RpcStream::OnWriteDone(bool ok) {
  std::vector<RpcFrame> sent;
  std::unique_ptr<GrpcFrameWriter> unsent;
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  if (!ok) {  // the reading side notices, too
    greetings_.clear();
    unsent.swap(writer_);
  }
  write_next(sent);
}

void RpcStream::end(const grpc::Status& status) {
  if (session_) session_->detach(*link_);
  std::vector<RpcFrame> sent;
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  if (finish_with_) return;
  finish_with_ = status;
  if (!is_writing_) write_next(sent);
}

void RpcStream::cancel() {
  const OwnersEndLater later;
  MutexLock lock(mutex_);
  if (!is_done_) context_->TryCancel();
}

void RpcStream::OnDone() {
  const auto self = shared_from_this();
  {
    MutexLock lock(mutex_);
    is_done_ = true;
  }
  link_.reset();  // which knows this stream
  streams_.remove(self);
}

class GrpcRpcServer final : public RpcServer {
 public:
  GrpcRpcServer(const RpcServerOptions& options, RpcHandler& handler, const Endpoint& endpoint)
      : endpoint_(endpoint), streams_(options, handler) {
    grpc::ServerBuilder builder;
    set_rpc_arguments(builder);
    builder.AddListeningPort(endpoint.to_string(), server_credentials(options.tls), &port_);
    builder.RegisterCallbackGenericService(&streams_);
    server_ = builder.BuildAndStart();
    if (server_ && port_ != 0) return;
    const std::string owner = owner_of_port(endpoint.port);
    fail(ErrorCode::kUnavailable, "grpc: listening at ", endpoint.to_string(), " failed",
         owner.empty() ? "; expected a free port of this machine"
                       : concat(": Address already in use by ", owner),
         "; end that process or try another port (0 takes a free one)");
  }
  ~GrpcRpcServer() override {
    streams_.cancel_all();
    server_->Shutdown(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(1000, GPR_TIMESPAN)));
    server_->Wait();
  }
  std::string target() const override {
    return concat("grpc://", Endpoint{endpoint_.host, port_}.to_string());
  }

 private:
  const Endpoint endpoint_;
  int port_ = 0;
  RpcStreams streams_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<RpcServer> start_rpc_grpc(const RpcServerOptions& options, RpcHandler& handler) {
  return std::make_unique<GrpcRpcServer>(options, handler,
                                         parse_listen_address(options.address).value());
}

}  // namespace tutti::internal

// Implements RpcServer: the services of cluster/proto whose methods are streams.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/rpc_server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cluster/control/job_messages.h"
#include "cluster/grpc/grpc_channel.h"
#include "cluster/grpc/grpc_server.h"
#include "cluster/net/socket.h"
#include "cluster/rpc/call_messages.h"
#include "core/names.h"
#include "parameter_server.grpc.pb.h"
#include "session.grpc.pb.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/core/sync.h"
#include "worker.grpc.pb.h"

namespace tutti::internal {

class ServerCore;

namespace {

/// Payload size, in bytes, below which a call may be handled on the receiving thread.
constexpr std::size_t kSmallPayload = 65536;
/// Number of queued calls per stream at which reading pauses.
constexpr std::size_t kMostQueued = 8;
constexpr std::size_t kMostStreams = 4096;

}  // namespace

/// A client's stream of calls, which the handler receives one at a time in order. gRPC's threads
/// call On...(): one thread at a time for reads, and one for writes. Thread-safe.
class ServerStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public std::enable_shared_from_this<ServerStream> {
 public:
  /// `core` must outlive the stream; `context` is valid until OnDone().
  ServerStream(ServerCore& core, grpc::CallbackServerContext& context, std::size_t longest_payload)
      : core_(core),
        context_(context),
        longest_payload_(longest_payload),
        reader_(CallReader::Side::kServer, longest_payload) {}

  /// Accepts the client and reads its messages. `earlier`: older streams of the same client; their
  /// calls are handled first.
  void serve(RpcHandler& handler, RpcPeer peer, std::vector<std::shared_ptr<ServerStream>> earlier);
  /// Ends the stream of a client that the server does not accept.
  void refuse(const Error& error) { end(to_status(context_, error)); }
  void cancel();
  /// Waits for the stream's thread, if there is one. Requires: the core has removed the stream.
  void join() { worker_.reset(); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Call;
  /// Accepts a message. Returns true if the next one may be read now; otherwise reading pauses
  /// until work() resumes it.
  bool accept(CallMessage message);
  void dispatch(const std::shared_ptr<Call>& call);
  void work();
  void wait_for_earlier();
  void leave();
  void half_close();
  /// Queues a reply without waiting; drops it if the stream has ended.
  void send(CallMessage message);
  void end(const grpc::Status& status);
  void write_next(std::vector<CallMessage>& sent) TUTTI_REQUIRES(mutex_);

  ServerCore& core_;
  grpc::CallbackServerContext& context_;
  const std::size_t longest_payload_;
  RpcHandler* handler_ = nullptr;  // null: the client was refused
  RpcPeer peer_;
  grpc::ByteBuffer incoming_;
  CallReader reader_;            // used by the reading thread
  std::uint64_t last_call_ = 0;  // used by the reading thread

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<ServerStream>> earlier_ TUTTI_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Call>> queue_ TUTTI_GUARDED_BY(mutex_);
  bool is_handing_over_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_paused_ TUTTI_GUARDED_BY(mutex_) = false;  // true while reading is paused
  std::unique_ptr<Thread> worker_;                   // set under mutex_ by the reading thread
  CallWriter writer_ TUTTI_GUARDED_BY(mutex_);
  grpc::ByteBuffer outgoing_;
  std::set<std::uint64_t> unanswered_ TUTTI_GUARDED_BY(mutex_);
  bool has_left_ TUTTI_GUARDED_BY(mutex_) = false;  // the client has announced that it leaves
  bool is_half_closed_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_with_ TUTTI_GUARDED_BY(mutex_);
  bool is_finished_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_done_ TUTTI_GUARDED_BY(mutex_) = false;
  Event left_;  // set once the handler will receive no more calls
};

/// A server's streams. Thread-safe.
class ServerCore {
 public:
  ServerCore(const RpcServerOptions& options, RpcHandlers handlers)
      : options_(options), handlers_(std::move(handlers)), run_(new_run_nonce()) {}
  /// Waits for all streams. Requires: gRPC's server has been shut down.
  ~ServerCore();
  ServerCore(const ServerCore&) = delete;
  ServerCore& operator=(const ServerCore&) = delete;

  /// Begins a stream, which gRPC owns until OnDone().
  ServerStream* accept(RpcMethod method, grpc::CallbackServerContext& context);
  /// Removes a stream that has ended.
  void remove(const std::shared_ptr<ServerStream>& stream);
  void note_refusal(const std::string& reason);
  /// Cancels all current and later streams. The caller then shuts down gRPC's server.
  void cancel_all();
  bool is_ending() const {
    MutexLock lock(mutex_);
    return is_ending_;
  }

 private:
  RpcPeer peer_of(const grpc::CallbackServerContext& context) const;
  std::vector<std::shared_ptr<ServerStream>> end_earlier(
      const std::shared_ptr<ServerStream>& stream, std::uint64_t client);
  void join_ended();

  const RpcServerOptions options_;
  const RpcHandlers handlers_;
  const std::uint64_t run_;

  mutable Mutex mutex_;
  CondVar changed_;
  /// Each stream, with the number of its client; 0 if the number is unknown.
  std::map<std::shared_ptr<ServerStream>, std::uint64_t> streams_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ServerStream>> ended_ TUTTI_GUARDED_BY(mutex_);
  RefusalLog refusals_ TUTTI_GUARDED_BY(mutex_){"rpc"};
  bool is_ending_ TUTTI_GUARDED_BY(mutex_) = false;
};

class ServerStream::Call final : public RpcCall {
 public:
  Call(std::shared_ptr<ServerStream> stream, CallMessage message)
      : stream_(std::move(stream)), number_(message.call), request_(std::move(message.packet)) {}
  ~Call() override {
    send_error(Error(ErrorCode::kInternal, "the call was dropped without a reply"));
  }

  const RpcPeer& peer() const override { return stream_->peer_; }
  const Packet& request() const override { return request_; }
  void reply(Packet answer) override {
    check_unanswered();
    const std::size_t bytes = answer.payload_bytes(), longest = stream_->longest_payload_;
    if (answer.head.size() > tutti::kLongestHead || bytes > longest) {
      send_error(Error(ErrorCode::kResourceExhausted,
                       concat("expected a reply of at most ", tutti::kLongestHead,
                              " header bytes and ", longest, " payload bytes, got ",
                              answer.head.size(), " and ", bytes, "; request it in parts")));
      return;
    }
    send_answer({number_, std::move(answer)});
  }
  void fail(const Error& error) override {
    check_unanswered();
    send_error(error);
  }
  void send_error(const Error& error) { send_answer({number_, {}, error}); }

 private:
  void send_answer(CallMessage message) {
    if (!is_answered_.exchange(true)) stream_->send(std::move(message));
  }
  void check_unanswered() const {
    if (!is_answered_) return;
    tutti::fail(ErrorCode::kFailedPrecondition, "RpcCall: the call from ", peer(),
                " already has a reply; expected one reply per call");
  }

  const std::shared_ptr<ServerStream> stream_;
  const std::uint64_t number_;
  const Packet request_;
  std::atomic<bool> is_answered_{false};
};

void ServerStream::serve(RpcHandler& handler, RpcPeer peer,
                         std::vector<std::shared_ptr<ServerStream>> earlier) {
  handler_ = &handler;
  peer_ = std::move(peer);
  {
    const MutexLock lock(mutex_);
    earlier_ = std::move(earlier);
  }
  StartSendInitialMetadata();
  StartRead(&incoming_);
}

void ServerStream::OnReadDone(bool ok) {
  if (!ok) return half_close();
  try {
    reader_.take(incoming_);
    incoming_.Clear();
    std::optional<CallMessage> message = reader_.next();
    if (!message || accept(*std::move(message))) StartRead(&incoming_);
  } catch (const Error& damaged) {
    core_.note_refusal(damaged.what());
    end({grpc::StatusCode::INVALID_ARGUMENT, "rpc: expected messages defined in calls.proto"});
  }
}

bool ServerStream::accept(CallMessage message) {
  const bool is_small = message.packet.payload_bytes() < kSmallPayload;
  std::shared_ptr<Call> call;
  {
    MutexLock lock(mutex_);
    if (message.call == 0) {
      has_left_ = true;  // the client half-closes the stream next
      return true;
    }
    if (message.call <= std::exchange(last_call_, message.call)) {
      fail(ErrorCode::kDataLoss, "rpc: ", peer_, " sent call ", message.call,
           " out of order; expected ascending numbers");
    }
    unanswered_.insert(message.call);
    call = std::make_shared<Call>(shared_from_this(), std::move(message));
    if (!is_small || is_handing_over_ || !queue_.empty() || !earlier_.empty()) {
      queue_.push_back(std::move(call));
      if (!worker_) worker_ = Executor::system().start("rpc-handler", [this] { work(); });
      changed_.notify_all();
      is_paused_ = queue_.size() >= kMostQueued && !is_cancelled_;
      return !is_paused_;
    }
  }
  dispatch(call);
  return true;
}

void ServerStream::dispatch(const std::shared_ptr<Call>& call) {
  try {
    handler_->take(call);
  } catch (const Error& error) {
    call->send_error(error);
  } catch (const std::exception& error) {
    call->send_error(Error(ErrorCode::kInternal, error.what()));
  }
}

/// Waits for the client's earlier streams, because a call on a broken connection may be repeated on
/// the next connection, and the original must not be executed after the repeated call.
void ServerStream::wait_for_earlier() {
  std::vector<std::shared_ptr<ServerStream>> earlier;
  {
    const MutexLock lock(mutex_);
    earlier = earlier_;
  }
  for (const auto& each : earlier) each->left_.wait_until(TimePoint::max());
  const MutexLock lock(mutex_);
  earlier_.clear();
}

/// Handles queued calls. Runs on a separate thread, because large calls and waiting would block
/// gRPC's threads.
void ServerStream::work() {
  wait_for_earlier();
  for (;;) {
    std::shared_ptr<Call> call;
    bool reads_on = false;
    {
      MutexLock lock(mutex_);
      is_handing_over_ = false;
      changed_.wait_until(mutex_, TimePoint::max(),
                          [this]() TUTTI_REQUIRES(mutex_) { return !queue_.empty() || is_done_; });
      if (queue_.empty()) break;
      call = std::move(queue_.front());
      queue_.pop_front();
      is_handing_over_ = true;
      reads_on = std::exchange(is_paused_, false);
    }
    if (reads_on) StartRead(&incoming_);
    if (!core_.is_ending()) dispatch(call);
    call.reset();  // sends an error reply if the handler dropped the call
  }
  leave();
}

/// Reports to the handler, after its last call, that the client left or was lost.
void ServerStream::leave() {
  bool is_orderly = false;
  {
    MutexLock lock(mutex_);
    is_orderly = has_left_ || (finish_with_ && finish_with_->ok() && !is_cancelled_);
  }
  if (handler_ != nullptr) {
    try {
      is_orderly ? handler_->client_left(peer_) : handler_->client_lost(peer_);
    } catch (const Error& error) {
      core_.note_refusal(error.what());
    }
  }
  {
    const MutexLock lock(mutex_);
    earlier_.clear();
  }
  left_.set();
  core_.remove(shared_from_this());
}

// Functions that send replies, and that end the stream exactly once.

void ServerStream::OnCancel() {
  bool ends = false;
  {
    MutexLock lock(mutex_);
    is_cancelled_ = true;
    ends = is_half_closed_ ||
           std::exchange(is_paused_, false);  // without a pause, the pending read detects the end
  }
  if (ends) end(grpc::Status::CANCELLED);
}

/// Handles the end of reading: the client half-closed, or the connection broke (see OnCancel).
void ServerStream::half_close() {
  bool ends = false, is_cancelled = false;
  {
    MutexLock lock(mutex_);
    is_half_closed_ = true;
    is_cancelled = is_cancelled_;
    ends = is_cancelled || unanswered_.empty() || has_left_;
  }
  if (ends) end(is_cancelled ? grpc::Status::CANCELLED : grpc::Status::OK);
}

void ServerStream::send(CallMessage message) {
  std::vector<CallMessage> sent;
  const DeferredRelease later;
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
  const DeferredRelease later;
  MutexLock lock(mutex_);
  if (!ok) std::swap(unsent, writer_);  // the reading side also detects the failure
  write_next(sent);
}

void ServerStream::end(const grpc::Status& status) {
  std::vector<CallMessage> sent;
  CallWriter unsent;
  const DeferredRelease later;
  MutexLock lock(mutex_);
  if (finish_with_) return;
  finish_with_ = status;
  if (!status.ok()) std::swap(unsent, writer_);
  if (!is_writing_) write_next(sent);
}

void ServerStream::cancel() {
  const DeferredRelease later;
  MutexLock lock(mutex_);
  if (!is_done_) context_.TryCancel();
}

void ServerStream::OnDone() {
  const auto self = shared_from_this();
  bool has_thread = false;
  {
    MutexLock lock(mutex_);
    is_cancelled_ = is_cancelled_ || context_.IsCancelled();
    is_done_ = true;
    has_thread = worker_ != nullptr;
    changed_.notify_all();
  }
  if (!has_thread) leave();
}

namespace {

/// Converts gRPC's "ipv4:127.0.0.1:4711" to "127.0.0.1:4711" and "ipv6:%5B::1%5D:4711" to
/// "[::1]:4711"; returns "" for a peer on this machine.
std::string address_of(const std::string& peer) {
  if (!peer.starts_with("ipv4:") && !peer.starts_with("ipv6:")) return "";
  std::string address = peer.substr(5);
  for (const auto& [code, bracket] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    if (const std::size_t at = address.find(code); at != address.npos) {
      address.replace(at, 3, bracket);
    }
  }
  return address;
}

}  // namespace

ServerCore::~ServerCore() {
  {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, TimePoint::max(),
                        [this]() TUTTI_REQUIRES(mutex_) { return streams_.empty(); });
  }
  join_ended();
}

void ServerCore::join_ended() {
  std::vector<std::shared_ptr<ServerStream>> ended;
  {
    MutexLock lock(mutex_);
    ended.swap(ended_);
  }
  for (const auto& stream : ended) stream->join();
}

ServerStream* ServerCore::accept(RpcMethod method, grpc::CallbackServerContext& context) {
  join_ended();
  auto stream = std::make_shared<ServerStream>(*this, context, options_.longest_payload);
  bool is_full = false, is_ending = false;
  {
    MutexLock lock(mutex_);
    is_full = streams_.size() >= kMostStreams;
    is_ending = is_ending_;
    streams_.emplace(stream, 0);
  }
  try {
    if (is_ending) fail(ErrorCode::kUnavailable, options_.self, ": the server is shutting down");
    if (is_full) {
      fail(ErrorCode::kUnavailable, options_.self, ": expected at most ", kMostStreams,
           " clients, got one more; close unused clients");
    }
    if (!handlers_.contains(method)) {
      fail(ErrorCode::kUnimplemented, options_.self, ": this server does not implement ",
           path_of(method));
    }
    RpcPeer peer = peer_of(context);
    context.AddInitialMetadata(kServerKey, make_called_server(options_, run_).SerializeAsString());
    auto earlier = end_earlier(stream, peer.client);
    stream->serve(*handlers_.at(method), std::move(peer), std::move(earlier));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kFailedPrecondition) note_refusal(error.message());
    stream->refuse(error);
  }
  return stream.get();
}

RpcPeer ServerCore::peer_of(const grpc::CallbackServerContext& context) const {
  RpcPeer peer;
  peer.address = address_of(context.peer());
  const auto caller = caller_in(context.client_metadata());
  if (!caller) {
    peer.task = {"client", 0, peer.address};
    peer.client = new_run_nonce();
    return peer;
  }
  const Member member = from_proto(caller->task());
  peer.task = {member.task.job, member.task.index, peer.address};
  peer.incarnation = member.incarnation;
  peer.client = caller->client();
  if (const std::string why = refusal_of(*caller, options_); !why.empty()) {
    fail(ErrorCode::kFailedPrecondition, why);
  }
  return peer;
}

/// Cancels and returns the client's earlier streams. These are known to be broken, because the
/// client has opened a new one.
std::vector<std::shared_ptr<ServerStream>> ServerCore::end_earlier(
    const std::shared_ptr<ServerStream>& stream, std::uint64_t client) {
  std::vector<std::shared_ptr<ServerStream>> earlier;
  {
    const MutexLock lock(mutex_);
    for (const auto& [other, its_client] : streams_) {
      if (its_client == client) earlier.push_back(other);
    }
    streams_[stream] = client;
  }
  for (const auto& each : earlier) each->cancel();
  return earlier;
}

void ServerCore::remove(const std::shared_ptr<ServerStream>& stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
  ended_.push_back(stream);
  changed_.notify_all();
}

void ServerCore::note_refusal(const std::string& reason) {
  MutexLock lock(mutex_);
  refusals_.note(reason, Clock::system().now());
}

void ServerCore::cancel_all() {
  std::map<std::shared_ptr<ServerStream>, std::uint64_t> streams;
  {
    MutexLock lock(mutex_);
    is_ending_ = true;
    streams = streams_;
  }
  for (const auto& [stream, client] : streams) stream->cancel();
}

}  // namespace tutti::internal

namespace tutti {
namespace {

using internal::ServerCore;
/// Raw messages, because CallReader parses the heads itself and does not copy the tensors.
using Stream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class ParameterServerService final
    : public v1::ParameterServer::WithRawCallbackMethod_Apply<v1::ParameterServer::Service> {
 public:
  explicit ParameterServerService(ServerCore& core) : core_(core) {}
  Stream* Apply(grpc::CallbackServerContext* context) override {
    return core_.accept(RpcMethod::kApply, *context);
  }

 private:
  ServerCore& core_;
};

class WorkerService final : public v1::Worker::WithRawCallbackMethod_Run<v1::Worker::Service> {
 public:
  explicit WorkerService(ServerCore& core) : core_(core) {}
  Stream* Run(grpc::CallbackServerContext* context) override {
    return core_.accept(RpcMethod::kRun, *context);
  }

 private:
  ServerCore& core_;
};

class SessionService final
    : public v1::Session::WithRawCallbackMethod_Operate<v1::Session::Service> {
 public:
  explicit SessionService(ServerCore& core) : core_(core) {}
  Stream* Operate(grpc::CallbackServerContext* context) override {
    return core_.accept(RpcMethod::kOperate, *context);
  }

 private:
  ServerCore& core_;
};

}  // namespace

struct RpcServer::Impl {
  Impl(const RpcServerOptions& options, RpcHandlers handlers, const internal::Endpoint& endpoint)
      : core(options, std::move(handlers)),
        server({endpoint, options.secret, options.tls, internal::kLongestMessage, true},
               {&parameter_server, &worker, &session}) {}
  ~Impl() {
    core.cancel_all();
    server.shutdown(durations::kOneTry);
  }

  ServerCore core;
  ParameterServerService parameter_server{core};
  WorkerService worker{core};
  SessionService session{core};
  internal::GrpcServer server;
};

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RpcServer::~RpcServer() = default;

std::string RpcServer::target() const {
  return concat("grpc://", impl_->server.endpoint().to_string());
}

std::unique_ptr<RpcServer> RpcServer::start(const RpcServerOptions& options, RpcHandlers handlers) {
  internal::require(options.longest_payload != 0,
                    "RpcServer: expected a positive longest_payload, got 0");
  const internal::Endpoint endpoint =
      internal::checked_listen_address("RpcServer", options.address,
                                       {.has_secret = options.secret.is_set(),
                                        .has_tls = options.tls.is_set(),
                                        .allow_insecure_network = options.allow_insecure_network});
  auto impl = std::make_unique<Impl>(options, std::move(handlers), endpoint);
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
}

}  // namespace tutti

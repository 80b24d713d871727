// A server of calls: the services of cluster/proto whose methods are streams, their clients and
// streams.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/rpc_server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
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

// A server's clients and their streams.

/// Knows the clients of each method by their numbers, and lets those go that have left or stay away
/// for `linger`. Threads: any.
class ServerCore {
 public:
  ServerCore(const RpcServerOptions& options, RpcHandlers handlers);
  ~ServerCore();
  ServerCore(const ServerCore&) = delete;
  ServerCore& operator=(const ServerCore&) = delete;

  /// A stream that begins; gRPC's until OnDone().
  ServerStream* accept(RpcMethod method, grpc::CallbackServerContext& context);
  /// In OnDone().
  void remove(const std::shared_ptr<ServerStream>& stream);
  void note_refusal(const std::string& reason);
  /// Cancels the streams, there are and will be: end gRPC's server next.
  void cancel_all();

 private:
  using Key = std::pair<RpcMethod, std::uint64_t>;  // with the client's number
  std::shared_ptr<ServerSession> open(RpcMethod method, grpc::CallbackServerContext& context);
  std::shared_ptr<ServerSession> session_of(RpcMethod method, const RpcPeer& peer);
  std::vector<std::pair<Key, std::shared_ptr<ServerSession>>> sessions() const;
  void keep();
  void let_go(TimePoint now);
  TimePoint look_again() const;
  void look_now();

  const RpcServerOptions options_;
  const RpcHandlers handlers_;
  const std::uint64_t run_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<Key, std::shared_ptr<ServerSession>> sessions_ TUTTI_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<ServerStream>> streams_ TUTTI_GUARDED_BY(mutex_);
  RefusalLog refusals_ TUTTI_GUARDED_BY(mutex_){"rpc"};
  bool looks_ TUTTI_GUARDED_BY(mutex_) = false;
  bool takes_none_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stops_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> keeper_;
};

// Calls to the handler, answers to the client, whatever its stream does meanwhile: that reads while
// there is room, writes one message after the other, and finishes once.

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

// Clients come, stay away for a while, and leave.

namespace {

constexpr std::size_t kMostClients = 4096;

/// Returns "127.0.0.1:4711" of gRPC's "ipv4:127.0.0.1:4711", "[::1]:4711" of its
/// "ipv6:%5B::1%5D:4711", and "" within a machine.
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

ServerCore::ServerCore(const RpcServerOptions& options, RpcHandlers handlers)
    : options_(options), handlers_(std::move(handlers)), run_(new_run_nonce()) {
  keeper_ = Executor::system().start("rpc-keeper", [this] { keep(); });
}

ServerCore::~ServerCore() {
  {
    MutexLock lock(mutex_);
    stops_ = looks_ = true;
    changed_.notify_all();
  }
  keeper_->join();
  for (const auto& [key, session] : sessions()) session->end();
}

ServerStream* ServerCore::accept(RpcMethod method, grpc::CallbackServerContext& context) {
  auto stream = std::make_shared<ServerStream>(*this, context, options_.longest_payload);
  {
    MutexLock lock(mutex_);
    streams_.insert(stream);
  }
  try {
    const std::shared_ptr<ServerSession> session = open(method, context);
    context.AddInitialMetadata(kServerKey, make_called_server(options_, run_).SerializeAsString());
    stream->welcome(session);  // before answers that wait for a stream
    if (!session->attach(stream)) fail(ErrorCode::kUnavailable, "this client is just leaving");
    stream->begin();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kFailedPrecondition) note_refusal(error.message());
    stream->refuse(error);
  }
  return stream.get();
}

std::shared_ptr<ServerSession> ServerCore::open(RpcMethod method,
                                                grpc::CallbackServerContext& context) {
  if (!handlers_.contains(method)) {
    fail(ErrorCode::kUnimplemented, options_.self, ": does not serve ", path_of(method));
  }
  RpcPeer peer;
  peer.address = address_of(context.peer());
  if (const auto caller = caller_in(context.client_metadata())) {
    const Member member = from_proto(caller->task());
    peer.task = {member.task.job, member.task.index, peer.address};
    peer.incarnation = member.incarnation;
    peer.client = caller->client();
    if (const std::string why = refusal_of(*caller, options_); !why.empty()) {
      fail(ErrorCode::kFailedPrecondition, why);
    }
  } else {
    peer.task = {"client", 0, peer.address};
    peer.client = new_run_nonce();
  }
  return session_of(method, peer);
}

std::shared_ptr<ServerSession> ServerCore::session_of(RpcMethod method, const RpcPeer& peer) {
  const Key key(method, peer.client);
  std::shared_ptr<ServerSession> session;
  {
    MutexLock lock(mutex_);
    if (takes_none_) fail(ErrorCode::kUnavailable, options_.self, ": the server ends");
    if (sessions_.size() >= kMostClients && !sessions_.contains(key)) {
      fail(ErrorCode::kUnavailable, options_.self, ": has ", kMostClients, " clients");
    }
    auto& place = sessions_[key];
    if (!place) {
      place = std::make_shared<ServerSession>(*handlers_.at(method), peer, options_,
                                              [this] { look_now(); });
    }
    session = place;
  }
  if (session->peer().task.same_task(peer.task)) return session;
  fail(ErrorCode::kFailedPrecondition, "rpc: ", peer, " has the number of ", session->peer());
}

void ServerCore::remove(const std::shared_ptr<ServerStream>& stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

void ServerCore::note_refusal(const std::string& reason) {
  MutexLock lock(mutex_);
  refusals_.note(reason, Clock::system().now());
}

void ServerCore::cancel_all() {
  std::set<std::shared_ptr<ServerStream>> streams;
  {
    MutexLock lock(mutex_);
    takes_none_ = true;
    streams = streams_;
  }
  for (const auto& stream : streams) stream->cancel();
}

std::vector<std::pair<ServerCore::Key, std::shared_ptr<ServerSession>>> ServerCore::sessions()
    const {
  MutexLock lock(mutex_);
  return {sessions_.begin(), sessions_.end()};
}

void ServerCore::look_now() {
  MutexLock lock(mutex_);
  looks_ = true;
  changed_.notify_all();
}

TimePoint ServerCore::look_again() const {
  TimePoint next = TimePoint::max();
  for (const auto& [key, session] : sessions()) {
    if (const auto since = session->away_since()) {
      next = std::min(next, deadline_after(*since, options_.linger));
    }
  }
  return next;
}

void ServerCore::let_go(TimePoint now) {
  for (const auto& [key, session] : sessions()) {
    const auto since = session->away_since();
    if (since && now >= deadline_after(*since, options_.linger)) session->leave();
    if (!session->has_left()) continue;
    session->end();
    MutexLock lock(mutex_);
    sessions_.erase(key);
  }
}

void ServerCore::keep() {
  for (;;) {
    const TimePoint next = look_again();
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, next, [this]() TUTTI_REQUIRES(mutex_) { return looks_; });
      looks_ = false;
      if (stops_) return;
    }
    let_go(Clock::system().now());
  }
}

}  // namespace tutti::internal

namespace tutti {
namespace {

using internal::ServerCore;
/// Heads are parsed where they are understood, and tensors stay where they lie.
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

class GrpcRpcServer final : public RpcServer {
 public:
  GrpcRpcServer(const RpcServerOptions& options, RpcHandlers handlers,
                const internal::Endpoint& endpoint)
      : core_(options, std::move(handlers)),
        server_({endpoint, options.secret, options.tls, internal::kLongestMessage, true},
                {&parameter_server_, &worker_, &session_}) {}
  ~GrpcRpcServer() override {
    core_.cancel_all();
    server_.shutdown(durations::kOneTry);
  }
  std::string target() const override { return concat("grpc://", server_.endpoint().to_string()); }

 private:
  ServerCore core_;
  ParameterServerService parameter_server_{core_};
  WorkerService worker_{core_};
  SessionService session_{core_};
  internal::GrpcServer server_;
};

}  // namespace

std::unique_ptr<RpcServer> RpcServer::start(const RpcServerOptions& options, RpcHandlers handlers) {
  internal::require(options.bytes_per_client != 0 && options.longest_payload != 0,
                    "RpcServer: expected bytes_per_client and longest_payload above 0");
  const internal::Endpoint endpoint =
      internal::checked_listen_address("RpcServer", options.address,
                                       {.has_secret = options.secret.is_set(),
                                        .has_tls = options.tls.is_set(),
                                        .allow_insecure_network = options.allow_insecure_network});
  return std::make_unique<GrpcRpcServer>(options, std::move(handlers), endpoint);
}

}  // namespace tutti

// Connecting, sending, connecting again, and giving up.
// SPDX-License-Identifier: Apache-2.0
//
// A session has the calls of a client; a thread keeps a stream for it, one after the other.
#include "cluster/rpc/rpc_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <algorithm>
#include <map>
#include <vector>

#include "calls.pb.h"
#include "cluster/control/join_job.h"
#include "cluster/control/member.h"
#include "cluster/grpc/grpc_channel.h"
#include "cluster/rpc/call_messages.h"
#include "core/names.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace {

/// gRPC's threads read and write one message at a time; its end is waited for outside of them.
/// Opens with the constructor. Threads: any.
class ClientStream final : public StreamToServer<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  /// `received` gets answers, one at a time.
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, RpcMethod method,
               const v1::Caller& caller, std::function<void(CallMessage)> received)
      : path_(path_of(method)), received_(std::move(received)), stub_(channel) {
    context_.AddMetadata(kCallerKey, caller.SerializeAsString());
    stub_.PrepareBidiStreamingCall(&context_, path_, grpc::StubOptions(), this);
    start();
  }
  ~ClientStream() override { stop(); }

  /// Waits until the server welcomes the stream; nothing: it does not (wait_for_end() says why), or
  /// not yet.
  std::optional<v1::CalledServer> wait_for_server(TimePoint deadline) {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, deadline,
                        [this]() TUTTI_REQUIRES(mutex_) { return server_ || !is_open_; });
    return server_;
  }
  /// Hands a call over and does not wait. A broken stream swallows it.
  void send(CallMessage message) {
    std::vector<CallMessage> sent;  // ends after the lock
    const OwnersEndLater later;
    MutexLock lock(mutex_);
    if (!is_open_ || !can_write_ || has_released_) return;
    writer_.push(std::move(message));
    if (!is_writing_) write_next(sent);
  }
  /// Waits until the stream has ended, and says why.
  std::string serve();
  /// Half-closes it after all that was sent, and asks for no more answers; serve() returns at
  /// `deadline` at the latest.
  void leave(TimePoint deadline);

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;

 private:
  void write_next(std::vector<CallMessage>& sent) TUTTI_REQUIRES(mutex_);

  const std::string path_;
  const std::function<void(CallMessage)> received_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ByteBuffer incoming_;
  CallReader reader_{CallReader::Side::kClient, 0};  // gRPC's reading thread's
  std::optional<v1::CalledServer> server_ TUTTI_GUARDED_BY(mutex_);
  CallWriter writer_ TUTTI_GUARDED_BY(mutex_);
  grpc::ByteBuffer outgoing_;
  std::optional<TimePoint> leaves_by_ TUTTI_GUARDED_BY(mutex_);
  std::string reason_ TUTTI_GUARDED_BY(mutex_);
};

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

/// Calls of a client without an answer.
constexpr std::size_t kMostCalls = 65536;
/// Once or twice a server that is just ending may refuse.
constexpr int kRefusals = 3;

TimePoint now() { return Clock::system().now(); }

/// Threads: any.
class ClientSession final : public RpcClient {
 public:
  /// Throws as RpcClient::connect().
  ClientSession(const std::string& target, RpcMethod method, const RpcClientOptions& options);
  ~ClientSession() override;

  std::shared_ptr<RpcReply> start(Packet request) override;
  void fail_all(const Error& error) override;
  std::uint64_t server_incarnation() const override {
    MutexLock lock(mutex_);
    return server_.task().incarnation();
  }
  std::string server_name() const override { return server_name_; }
  std::optional<std::string> why_away() const override {
    MutexLock lock(mutex_);
    return stream_ ? std::nullopt : std::optional(why_away_);
  }
  std::optional<TimePoint> away_since() const override {
    MutexLock lock(mutex_);
    return stream_ ? std::nullopt : std::optional(away_since_);
  }
  bool takes_calls() const override {
    MutexLock lock(mutex_);
    return !ended_ && !away_;
  }

 private:
  struct Attempt : ConnectAttempt {
    std::shared_ptr<ClientStream> stream = {};
    v1::CalledServer server = {};
  };
  struct Call {
    Packet request;
    std::shared_ptr<RpcReply> reply;
  };
  using Calls = std::map<std::uint64_t, Call>;
  void connect_at_start();
  Attempt connect_once(TimePoint deadline);
  void run(std::shared_ptr<ClientStream> stream);
  std::shared_ptr<ClientStream> reconnect(const std::string& why);
  /// Takes the new stream into use; sends again what has no answer.
  bool adopt(const Attempt& attempt);
  void send_all_again(ClientStream& stream) TUTTI_REQUIRES(send_mutex_);
  void take(CallMessage message);
  /// Ends the calls under way, and later ones as long as `lasts`.
  void give_up(const Error& error, bool lasts);
  bool is_over() const {
    MutexLock lock(mutex_);
    return ended_.has_value();
  }

  const Endpoint endpoint_;
  const RpcMethod method_;
  const RpcClientOptions options_;
  const std::string server_name_;
  const std::shared_ptr<const std::string> what_;
  const v1::Caller caller_;
  Event stop_;

  /// Held while calls are handed to the stream, so that they keep their order; before mutex_.
  Mutex send_mutex_;
  mutable Mutex mutex_;
  Calls calls_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_call_ TUTTI_GUARDED_BY(mutex_) = 0;
  v1::CalledServer server_ TUTTI_GUARDED_BY(mutex_);     // the last one
  std::string why_away_ TUTTI_GUARDED_BY(mutex_);        // while there is no stream
  TimePoint away_since_ TUTTI_GUARDED_BY(mutex_);        // too
  std::optional<Error> away_ TUTTI_GUARDED_BY(mutex_);   // for too long: until it is back
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);  // for good
  std::shared_ptr<ClientStream> stream_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Thread> thread_;
};

ClientSession::ClientSession(const std::string& target, RpcMethod method,
                             const RpcClientOptions& options)
    : endpoint_(parse_grpc_target("rpc", target)),
      method_(method),
      options_(options),
      server_name_(options.server.job.empty()
                       ? concat("the server at ", endpoint_.to_string())
                       : concat(options.server, " (", endpoint_.to_string(), ")")),
      what_(std::make_shared<const std::string>(concat(options.self, ": ", server_name_))),
      caller_(make_caller(options, new_run_nonce())) {
  connect_at_start();
}

ClientSession::Attempt ClientSession::connect_once(TimePoint deadline) {
  const TimePoint end = std::min(deadline, deadline_after(now(), durations::kSilentAfter));
  const GrpcOptions channel{endpoint_, options_.secret, options_.tls, kLongestMessage, true};
  if (auto nobody = nobody_listens(channel)) return {*std::move(nobody)};
  auto stream =
      std::make_shared<ClientStream>(open_channel(channel), method_, caller_,
                                     [this](CallMessage message) { take(std::move(message)); });
  auto server = stream->wait_for_server(end);
  if (!server) {
    const grpc::Status status = stream->wait_for_end(end);
    return {failed_attempt(status, stream->is_refused(), channel, end)};
  }
  return {{.is_done = true}, std::move(stream), *std::move(server)};
}

void ClientSession::connect_at_start() {
  Attempt attempt;
  reach_server({.who = concat("rpc: ", options_.self),
                .wants = concat("call ", server_name_),
                .name = server_name_,
                .address_in = "its address in the cluster",
                .timeout = options_.connect_timeout,
                .say_every = durations::kSayAgainEvery},
               [&](TimePoint deadline) -> ConnectAttempt {
                 if (options_.interruption) options_.interruption->check();
                 attempt = connect_once(deadline);
                 return attempt;
               });
  (void)adopt(attempt);  // nobody can have ended it yet
  thread_ = Executor::system().start("rpc-client",
                                     [this, stream = std::move(attempt.stream)] { run(stream); });
}

/// False: the session ended while this connection was made.
bool ClientSession::adopt(const Attempt& attempt) {
  Calls aborted;
  MutexLock send_lock(send_mutex_);
  {
    MutexLock lock(mutex_);
    if (ended_) return false;
    const std::uint64_t incarnation = attempt.server.task().incarnation();
    const bool was_restarted = server_.run() != 0 && (server_.run() != attempt.server.run() ||
                                                      server_.task().incarnation() != incarnation);
    if (was_restarted && !options_.survives_restarts) aborted.swap(calls_);
    server_ = attempt.server;
    away_.reset();
    stream_ = attempt.stream;
  }
  send_all_again(*attempt.stream);
  for (auto& [number, call] : aborted) {
    call.reply->set_error(Error(
        ErrorCode::kAborted,
        concat("rpc: ", *what_, " was started again (incarnation ",
               attempt.server.task().incarnation(),
               ") before it answered; what the call changed may be lost: read its state anew")));
  }
  return true;
}

void ClientSession::send_all_again(ClientStream& stream) {
  std::vector<CallMessage> messages;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, call] : calls_) messages.push_back({number, call.request});
  }
  for (CallMessage& message : messages) stream.send(std::move(message));
}

std::shared_ptr<RpcReply> ClientSession::start(Packet request) {
  auto reply = std::make_shared<RpcReply>(what_);
  const std::size_t bytes = request.payload_bytes();
  MutexLock send_lock(send_mutex_);
  std::shared_ptr<ClientStream> stream;
  CallMessage message;
  {
    MutexLock lock(mutex_);
    const auto& reason = ended_ ? ended_ : away_;
    if (reason) {
      reply->set_error(*reason);
      return reply;
    }
    if (request.head.size() > tutti::kLongestHead || bytes > server_.longest_tensors()) {
      fail(ErrorCode::kInvalidArgument, "rpc: ", *what_, ": a request with ", request.head.size(),
           " bytes of head and ", bytes, " of payload; expected at most ", tutti::kLongestHead,
           " and ", server_.longest_tensors(), "; send it in parts");
    }
    if (calls_.size() >= kMostCalls) {
      fail(ErrorCode::kResourceExhausted, "rpc: ", *what_, ": ", calls_.size(),
           " calls have no answer; expected fewer than ", kMostCalls, "; wait for some first");
    }
    message.call = ++last_call_;
    Call& call = calls_[message.call];
    call.request = std::move(request);
    call.reply = reply;
    stream = stream_;
    if (stream) message.packet = call.request;
  }
  if (stream) stream->send(std::move(message));
  return reply;
}

void ClientSession::take(CallMessage message) {
  Call call;
  {
    MutexLock lock(mutex_);
    const auto found = calls_.find(message.call);
    if (found == calls_.end()) return;  // answered before, on the last stream
    call = std::move(found->second);
    calls_.erase(found);
  }
  if (!message.error) return call.reply->set(std::move(message.packet));
  call.reply->set_error(message.error->with_context(server_name_));
}

void ClientSession::run(std::shared_ptr<ClientStream> stream) {
  while (stream) {
    const std::string why = stream->serve();
    {
      MutexLock lock(mutex_);
      stream_.reset();
      why_away_ = why;
      away_since_ = now();
    }
    stream.reset();  // the old connection ends before there is a new one
    stream = reconnect(why);
  }
}

std::shared_ptr<ClientStream> ClientSession::reconnect(const std::string& why) {
  const TimePoint begin = now();
  TimePoint say_at = deadline_after(begin, durations::kSayAgainEvery);
  std::string reason = why;
  int num_refusals = 0;
  while (!is_over()) {
    Attempt attempt;
    try {
      attempt = connect_once(TimePoint::max());
    } catch (const Error& error) {  // a certificate that has gone, for example
      attempt.reason = error.message();
    }
    const Duration away = now() - begin;
    if (attempt.stream) {
      if (!adopt(attempt)) break;
      log_info(concat("rpc: ", options_.self, " is connected to ", server_name_, " again after ",
                      seconds_text(away), " s (", why, ")"));
      return attempt.stream;
    }
    reason = attempt.reason;
    {
      MutexLock lock(mutex_);
      why_away_ = reason;
    }
    if (attempt.is_final && ++num_refusals >= kRefusals) {
      give_up(Error(ErrorCode::kFailedPrecondition,
                    concat("rpc: ", *what_, " takes no calls any more: ", reason)),
              false);
    } else if (away >= options_.patience) {
      give_up(Error(ErrorCode::kUnavailable,
                    concat("rpc: ", *what_, " is gone since ", seconds_text(away), " s (", why,
                           "): ", reason, "; start it again, or read its log")),
              false);
    }
    if (now() >= say_at) {
      log_info(concat("rpc: ", options_.self, " tries to reach ", server_name_, " again since ",
                      seconds_text(away), " s: ", reason));
      say_at = deadline_after(now(), durations::kSayAgainEvery);
    }
    // The longer it is away, the less a moment more matters.
    stop_.wait_until(deadline_after(
        now(), std::clamp(away / 10, durations::kTryAgain, durations::kHeartbeatEvery)));
  }
  return nullptr;
}

void ClientSession::give_up(const Error& error, bool lasts) {
  Calls calls;
  std::shared_ptr<ClientStream> stream;
  {
    MutexLock lock(mutex_);
    calls.swap(calls_);
    if (!lasts) away_ = error;
    if (lasts && !ended_) ended_ = error;
    if (lasts) stream = stream_;
  }
  for (auto& [number, call] : calls) call.reply->set_error(error);
  if (!lasts) return;
  stop_.set();
  if (stream) stream->cancel();
}

void ClientSession::fail_all(const Error& error) { give_up(error, true); }

/// The thread ends when its last stream has, so none takes answers afterwards.
ClientSession::~ClientSession() {
  std::shared_ptr<ClientStream> stream;
  Calls calls;
  const Error cancelled(ErrorCode::kCancelled,
                        concat("rpc: ", *what_, ": the client was ended before the answer came"));
  {
    MutexLock send_lock(send_mutex_);
    MutexLock lock(mutex_);
    stream = stream_;
    calls.swap(calls_);
    if (!ended_) ended_ = cancelled;
  }
  if (stream) stream->leave(deadline_after(now(), durations::kOneTry));
  for (auto& [number, call] : calls) call.reply->set_error(cancelled);
  stop_.set();
  if (thread_) thread_->join();
}

}  // namespace
}  // namespace tutti::internal

namespace tutti {

bool RpcReply::is_ready() const {
  MutexLock lock(mutex_);
  return is_ready_;
}

bool RpcReply::wait_until_ready(TimePoint deadline) {
  MutexLock lock(mutex_);
  return changed_.wait_until(mutex_, deadline,
                             [this]() TUTTI_REQUIRES(mutex_) { return is_ready_; });
}

void RpcReply::when_ready(std::function<void()> told) {
  {
    MutexLock lock(mutex_);
    if (!is_ready_) {
      told_ = std::move(told);
      return;
    }
  }
  told();
}

Packet RpcReply::wait(TimePoint deadline) {
  (void)wait_until_ready(deadline);
  MutexLock lock(mutex_);
  if (!is_ready_) {
    fail(ErrorCode::kDeadlineExceeded, "rpc: ", *what_, " did not answer within ",
         internal::seconds_text(Clock::system().now() - begin_), " s");
  }
  if (error_) throw *error_;
  if (std::exchange(is_taken_, true)) {
    fail(ErrorCode::kFailedPrecondition, "rpc: ", *what_,
         ": the answer was taken before; expected one successful wait() per reply");
  }
  return std::move(answer_);
}

void RpcReply::settle(Packet answer, std::optional<Error> error) {
  std::function<void()> told;
  {
    MutexLock lock(mutex_);
    if (std::exchange(is_ready_, true)) return;
    answer_ = std::move(answer);
    error_ = std::move(error);
    changed_.notify_all();
    told.swap(told_);
  }
  if (told) told();
}

std::unique_ptr<RpcClient> RpcClient::connect(const std::string& target, RpcMethod method,
                                              const RpcClientOptions& options) {
  return std::make_unique<internal::ClientSession>(target, method, options);
}

}  // namespace tutti

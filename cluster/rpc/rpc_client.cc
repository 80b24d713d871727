// Implements RpcClient on one stream: connects, sends requests, receives replies and shuts down.
// SPDX-License-Identifier: Apache-2.0
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
#include "tutti/core/random.h"

namespace tutti {
namespace internal {
namespace {

/// Maximum number of unanswered calls per client.
constexpr std::size_t kMostCalls = 65536;

TimePoint now() { return Clock::system().now(); }

}  // namespace

/// A stream and its calls; the constructor opens the stream. gRPC's threads read and write one
/// message at a time. Thread-safe.
class ClientStream final : public StreamToServer<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  /// `what`: see RpcReply.
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, RpcMethod method,
               const v1::Caller& caller, std::shared_ptr<const std::string> what,
               std::string server_name, bool keeps_calls)
      : path_(path_of(method)),
        what_(std::move(what)),
        server_name_(std::move(server_name)),
        keeps_calls_(keeps_calls),
        stub_(channel) {
    context_.AddMetadata(kCallerKey, caller.SerializeAsString());
    stub_.PrepareBidiStreamingCall(&context_, path_, grpc::StubOptions(), this);
    start();
  }
  /// Half-closes the stream and briefly waits for it to end.
  ~ClientStream() override;

  /// Waits until the server accepts the stream. Returns false if the server refuses it
  /// (wait_for_end() returns the reason) or the deadline passes.
  bool wait_for_welcome(TimePoint deadline) {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, deadline,
                        [this]() TUTTI_REQUIRES(mutex_) { return is_welcome_ || !is_open_; });
    return is_welcome_;
  }
  /// Returns the server's description. Like the functions below, requires that the server has
  /// accepted the stream.
  const v1::CalledServer& server() const { return server_; }

  std::shared_ptr<RpcReply> start_call(Packet request);
  void end_calls(const Error& error);
  std::string wait_until_broken();
  std::optional<std::string> why_broken();
  void take_over(ClientStream& broken);

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  struct Call {
    Packet request;
    std::shared_ptr<RpcReply> reply;
  };
  using Calls = std::map<std::uint64_t, Call>;
  void send(Call call, std::vector<CallMessage>& sent) TUTTI_REQUIRES(mutex_);
  void write_next(std::vector<CallMessage>& sent) TUTTI_REQUIRES(mutex_);
  void accept(CallMessage message);
  std::optional<Error> ended() {
    MutexLock lock(mutex_);
    return ended_;
  }
  /// Makes later calls fail with `error`. Returns the calls in flight, which the caller must end.
  Calls end(const Error& error) TUTTI_REQUIRES(mutex_);

  const std::string path_;
  const std::shared_ptr<const std::string> what_;
  const std::string server_name_;
  const bool keeps_calls_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ByteBuffer incoming_;
  CallReader reader_{CallReader::Side::kClient, 0};  // used by gRPC's reading thread
  v1::CalledServer server_;                          // constant once accepted
  grpc::ByteBuffer outgoing_;
  CallWriter writer_ TUTTI_GUARDED_BY(mutex_);
  bool is_welcome_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_leaving_ TUTTI_GUARDED_BY(mutex_) = false;
  std::string damage_ TUTTI_GUARDED_BY(mutex_);  // error for an unreadable message
  Calls calls_ TUTTI_GUARDED_BY(mutex_);         // unanswered calls
  std::uint64_t last_call_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);         // error that later calls throw
  std::optional<std::string> broken_ TUTTI_GUARDED_BY(mutex_);  // why the connection broke
};

void ClientStream::OnReadInitialMetadataDone(bool ok) {
  const auto server = ok ? called_server_in(context_.GetServerInitialMetadata()) : std::nullopt;
  MutexLock lock(mutex_);
  if (server) {
    server_ = *server;
    reader_.limit_payload(server->longest_tensors());
  }
  is_welcome_ = is_open_ = server.has_value();
  if (!is_open_) release();
  changed_.notify_all();
  if (is_open_) StartRead(&incoming_);
}

void ClientStream::OnReadDone(bool ok) {
  std::string damage;
  try {
    if (ok) {
      reader_.take(incoming_);
      if (auto message = reader_.next()) accept(*std::move(message));
      incoming_.Clear();
      StartRead(&incoming_);
      return;
    }
  } catch (const std::exception& damaged) {
    damage = damaged.what();
  }
  context_.TryCancel();
  MutexLock lock(mutex_);
  damage_ = damage;
  is_open_ = false;
  release();
  changed_.notify_all();
}

void ClientStream::OnWriteDone(bool ok) {
  std::vector<CallMessage> sent;
  const DeferredRelease later;
  MutexLock lock(mutex_);
  is_writing_ = false;
  if (!ok)
    can_write_ = false;  // reading continues, because the server's last messages may still arrive
  write_next(sent);
}

void ClientStream::OnDone(const grpc::Status& status) {
  Calls calls;
  CallWriter unsent;
  {
    const DeferredRelease later;
    MutexLock lock(mutex_);
    std::swap(unsent, writer_);
    broken_ = !damage_.empty() ? damage_
              : status.ok()    ? "the connection was closed"
                               : connect_reason(status);
    if (is_welcome_ && !keeps_calls_) {
      calls = end(Error(ErrorCode::kUnavailable,
                        concat("rpc: ", *what_, ": the connection broke: ", *broken_,
                               "; restart the server, or read its log")));
    }
  }
  const std::optional<Error> why = calls.empty() ? std::nullopt : ended();
  for (auto& [number, call] : calls) call.reply->set_error(*why);
  StreamToServer::OnDone(status);
}

ClientStream::Calls ClientStream::end(const Error& error) {
  if (!ended_) ended_ = error;
  return std::exchange(calls_, {});
}

void ClientStream::write_next(std::vector<CallMessage>& sent) {
  if (has_released_) return;
  if (can_write_ && !writer_.is_empty()) {
    outgoing_ = writer_.next(sent);
    is_writing_ = true;
    StartWrite(&outgoing_);
    writer_.prepare(sent);
  } else if (is_leaving_) {
    StartWritesDone();
    release();
  }
}

void ClientStream::send(Call call, std::vector<CallMessage>& sent) {
  const std::uint64_t number = ++last_call_;
  Call& kept = calls_.emplace(number, Call{{}, std::move(call.reply)}).first->second;
  if (keeps_calls_) kept.request = call.request;
  if (!is_open_ || !can_write_ || has_released_) return;
  writer_.push({number, std::move(call.request)});
  if (!is_writing_) write_next(sent);
}

std::shared_ptr<RpcReply> ClientStream::start_call(Packet request) {
  auto reply = std::make_shared<RpcReply>(what_);
  const std::size_t bytes = request.payload_bytes();
  std::vector<CallMessage> sent;  // destroyed after the mutex is unlocked
  const DeferredRelease later;
  MutexLock lock(mutex_);
  if (ended_) {
    reply->set_error(*ended_);
    return reply;
  }
  if (request.head.size() > tutti::kLongestHead || bytes > server_.longest_tensors()) {
    fail(ErrorCode::kInvalidArgument, "rpc: ", *what_, ": expected a request of at most ",
         tutti::kLongestHead, " bytes of head and ", server_.longest_tensors(), " of payload, got ",
         request.head.size(), " of head and ", bytes, " of payload; send it in parts");
  }
  if (calls_.size() >= kMostCalls) {
    fail(ErrorCode::kResourceExhausted, "rpc: ", *what_, ": ", calls_.size(),
         " calls are unanswered; expected fewer than ", kMostCalls,
         "; wait for some of them first");
  }
  send({std::move(request), reply}, sent);
  return reply;
}

void ClientStream::accept(CallMessage message) {
  Call call;
  {
    MutexLock lock(mutex_);
    const auto found = calls_.find(message.call);
    if (found == calls_.end()) return;
    call = std::move(found->second);
    calls_.erase(found);
  }
  if (!message.error) return call.reply->set(std::move(message.packet));
  call.reply->set_error(message.error->with_context(server_name_));
}

void ClientStream::end_calls(const Error& error) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    calls = end(error);
    changed_.notify_all();
  }
  for (auto& [number, call] : calls) call.reply->set_error(error);
}

std::string ClientStream::wait_until_broken() {
  MutexLock lock(mutex_);
  changed_.wait_until(mutex_, TimePoint::max(),
                      [this]() TUTTI_REQUIRES(mutex_) { return broken_ || ended_; });
  return broken_.value_or("it was ended");
}

std::optional<std::string> ClientStream::why_broken() {
  MutexLock lock(mutex_);
  return broken_;
}

void ClientStream::take_over(ClientStream& broken) {
  Calls calls;
  {
    MutexLock lock(broken.mutex_);
    calls.swap(broken.calls_);
  }
  std::vector<CallMessage> sent;
  const DeferredRelease later;
  MutexLock lock(mutex_);
  for (auto& [number, call] : calls) send(std::move(call), sent);
}

/// Ensures that no reply is accepted after the destructor has returned.
ClientStream::~ClientStream() {
  const Error cancelled(
      ErrorCode::kCancelled,
      concat("rpc: ", *what_, ": the client was destroyed before the reply arrived"));
  Calls calls;
  bool leaves = false;
  {
    std::vector<CallMessage> sent;
    const DeferredRelease later;
    MutexLock lock(mutex_);
    calls = end(cancelled);
    leaves = is_leaving_ = is_welcome_ && is_open_ && can_write_ && !has_released_;
    if (leaves) writer_.push(CallMessage{});
    if (leaves && !is_writing_) write_next(sent);
  }
  for (auto& [number, call] : calls) call.reply->set_error(cancelled);
  if (leaves) (void)done_.wait_until(deadline_after(now(), durations::kOneTry));
  stop();
}

namespace {

struct Attempt : ConnectAttempt {
  std::shared_ptr<ClientStream> stream = {};
};

/// Parameters shared by all connection attempts.
struct Connector {
  Endpoint endpoint;
  RpcMethod method;
  const RpcClientOptions& options;
  std::string server_name;
  std::shared_ptr<const std::string> what;
  v1::Caller caller;

  Attempt connect_once(TimePoint deadline) const {
    const TimePoint end = std::min(deadline, deadline_after(now(), durations::kSilentAfter));
    const GrpcOptions channel{endpoint, options.secret, options.tls, kLongestMessage, true};
    if (auto refusal = probe_listener(channel)) return {*std::move(refusal)};
    auto stream = std::make_shared<ClientStream>(open_channel(channel), method, caller, what,
                                                 server_name, options.keeps_calls);
    if (stream->wait_for_welcome(end)) return {{.is_done = true}, std::move(stream)};
    const grpc::Status status = stream->wait_for_end(end);
    return {failed_attempt(status, stream->is_refused(), channel, end)};
  }
};

}  // namespace
}  // namespace internal

bool RpcReply::is_ready() const {
  MutexLock lock(mutex_);
  return is_ready_;
}

bool RpcReply::has_answer() const {
  MutexLock lock(mutex_);
  return is_ready_ && !error_;
}

Packet RpcReply::wait(TimePoint deadline) {
  MutexLock lock(mutex_);
  const auto is_ready = [this]() TUTTI_REQUIRES(mutex_) { return is_ready_; };
  if (!changed_.wait_until(mutex_, deadline, is_ready)) {
    fail(ErrorCode::kDeadlineExceeded, "rpc: ", *what_, " did not answer within ",
         internal::seconds_text(Clock::system().now() - begin_), " s");
  }
  if (error_) throw *error_;
  if (std::exchange(is_taken_, true)) {
    fail(ErrorCode::kFailedPrecondition, "rpc: ", *what_,
         ": wait() has already returned the reply; expected one successful wait() per call");
  }
  return std::move(answer_);
}

void RpcReply::settle(Packet answer, std::optional<Error> error) {
  MutexLock lock(mutex_);
  if (std::exchange(is_ready_, true)) return;
  answer_ = std::move(answer);
  error_ = std::move(error);
  changed_.notify_all();
}

std::unique_ptr<RpcClient> RpcClient::connect(const std::string& target, RpcMethod method,
                                              const RpcClientOptions& options) {
  const internal::Endpoint endpoint = internal::parse_grpc_target("rpc", target);
  const std::string name = options.server.job.empty()
                               ? concat("the server at ", endpoint.to_string())
                               : concat(options.server, " (", endpoint.to_string(), ")");
  const internal::Connector connector{
      endpoint,
      method,
      options,
      name,
      std::make_shared<const std::string>(concat(options.self, ": ", name)),
      internal::make_caller(options,
                            options.client != 0 ? options.client : internal::new_run_nonce())};
  internal::Attempt attempt;
  internal::reach_server({.who = concat("rpc: ", options.self),
                          .wants = concat("call ", name),
                          .name = name,
                          .address_in = "its address in the cluster",
                          .timeout = options.connect_timeout,
                          .say_every = durations::kSayAgainEvery},
                         [&](TimePoint deadline) -> internal::ConnectAttempt {
                           if (options.interruption) options.interruption->check();
                           attempt = connector.connect_once(deadline);
                           return attempt;
                         });
  return std::unique_ptr<RpcClient>(new RpcClient(name, std::move(attempt.stream)));
}

RpcClient::RpcClient(std::string server_name, std::shared_ptr<internal::ClientStream> stream)
    : server_name_(std::move(server_name)), stream_(std::move(stream)) {}
RpcClient::~RpcClient() = default;

std::shared_ptr<RpcReply> RpcClient::start(Packet request) {
  return stream_->start_call(std::move(request));
}
void RpcClient::fail_all(const Error& error) {
  stream_->end_calls(error);
  stream_->cancel();
}
void RpcClient::end_calls(const Error& error) { stream_->end_calls(error); }
std::string RpcClient::wait_for_end() { return stream_->wait_until_broken(); }
std::optional<std::string> RpcClient::why_broken() const { return stream_->why_broken(); }
void RpcClient::take_over(RpcClient& broken) { stream_->take_over(*broken.stream_); }
std::uint64_t RpcClient::server_incarnation() const {
  return stream_->server().task().incarnation();
}
bool RpcClient::is_same_process(const RpcClient& other) const {
  return stream_->server().run() == other.stream_->server().run();
}

}  // namespace tutti

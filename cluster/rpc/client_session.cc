// Connecting, sending, connecting again, and giving up.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/client_session.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/control/health_rules.h"
#include "tutti/cluster/tcp/opening.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr Duration kTryAgain = std::chrono::milliseconds(20);
/// As long as it takes to start a process on a busy machine.
constexpr Duration kTryOftenFor = std::chrono::seconds(3);
constexpr Duration kTryMuchLater = std::chrono::milliseconds(250);
constexpr Duration kLongestAttempt = std::chrono::seconds(2);
constexpr Duration kLongestGoodBye = std::chrono::milliseconds(500);
constexpr std::size_t kMostUnacknowledged = 64;
constexpr int kMostSilentLooks = 1 << 20;
/// Once or twice a damaged handshake may look like it.
constexpr int kRefusals = 3;

TimePoint now() { return Clock::system().now(); }

}  // namespace

ClientSession::ClientSession(const std::string& target, const RpcClientOptions& options)
    : target_(parse_rpc_target(target)),
      options_(options),
      server_name_(options.server.job.empty() ? concat("the server at ", target_.address)
                                              : concat(options.server, " (", target_.address, ")")),
      what_(std::make_shared<const std::string>(concat(options.self, ": ", server_name_))),
      client_(new_run_nonce()) {}

RpcFrame ClientSession::open_frame() const {
  RpcFrame frame;
  frame.kind = RpcFrame::Kind::kOpen;
  frame.call = client_;
  MutexLock lock(mutex_);
  for (const auto& [number, call] : calls_) frame.numbers.push_back(number);
  return frame;
}

RpcAttempt ClientSession::connect_once(TimePoint deadline) {
  RpcConnectParameters parameters;
  parameters.address = target_.address;
  parameters.hello = make_hello(ConnectionPurpose::kRpc, options_.self.job, options_.self.index);
  parameters.hello.job_id = options_.job_id;
  parameters.hello.incarnation = options_.incarnation;
  parameters.secret = options_.secret;
  parameters.tls = options_.tls;
  parameters.server = options_.server;
  parameters.open = open_frame();
  parameters.deadline = std::min(deadline, deadline_after(now(), kLongestAttempt));
  parameters.sink = shared_from_this();
  return target_.wire == RpcWire::kGrpc ? connect_rpc_grpc(parameters)
                                        : connect_rpc_in_process(parameters);
}

void ClientSession::connect_at_start() {
  const TimePoint begin = now();
  const TimePoint deadline = deadline_after(begin, options_.connect_timeout);
  TimePoint say_at = deadline_after(begin, options_.say_every);
  for (;;) {
    if (options_.interruption) options_.interruption->check();
    const RpcAttempt attempt = connect_once(deadline);
    if (attempt.wire) {
      (void)adopt(attempt);  // nobody can have ended it yet
      thread_ = Executor::system().start("rpc-client", [this, wire = attempt.wire] { run(wire); });
      return;
    }
    if (attempt.is_final) {
      fail(ErrorCode::kFailedPrecondition, "rpc: ", options_.self, " cannot call ", server_name_,
           ": ", attempt.reason);
    }
    if (now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "rpc: ", options_.self, " did not reach ", server_name_,
           " within ", seconds_text(options_.connect_timeout), " s: ", attempt.reason,
           "; start it, or check the address and its log");
    }
    if (now() >= say_at) {
      log_info(concat("rpc: ", options_.self, " waits for ", server_name_, " since ",
                      seconds_text(now() - begin), " s: ", attempt.reason));
      say_at = deadline_after(now(), options_.say_every);
    }
    Clock::system().sleep_for(kTryAgain);
  }
}

/// False: the session ended while this connection was made.
bool ClientSession::adopt(const RpcAttempt& attempt) {
  Calls aborted;
  MutexLock send_lock(send_mutex_);
  {
    MutexLock lock(mutex_);
    if (ended_) return false;
    const bool was_restarted =
        server_run_ != 0 &&
        (server_run_ != attempt.welcome.call || server_incarnation_ != attempt.server_incarnation);
    if (was_restarted && !options_.survives_restarts) aborted.swap(calls_);
    server_run_ = attempt.welcome.call;
    server_incarnation_ = attempt.server_incarnation;
    longest_payload_ = attempt.welcome.numbers.front();
    arrived_.clear();  // the server knows what has no answer, and so all the rest
    away_.reset();
    silent_looks_ = 0;
    wire_ = attempt.wire;
  }
  send_all_again(attempt.wire);
  for (auto& [number, call] : aborted) {
    call.reply->set_error(Error(
        ErrorCode::kAborted,
        concat("rpc: ", *what_, " was started again (incarnation ", attempt.server_incarnation,
               ") before it answered; what the call changed may be lost: read its state anew")));
  }
  return true;
}

void ClientSession::send_all_again(const std::shared_ptr<RpcClientWire>& wire) {
  std::vector<RpcFrame> frames;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, call] : calls_) {
      frames.push_back(request_frame(number, call.request));
    }
  }
  for (RpcFrame& frame : frames) wire->send(std::move(frame));
}

RpcFrame ClientSession::request_frame(std::uint64_t number, const Packet& request) {
  RpcFrame frame;
  frame.kind = RpcFrame::Kind::kRequest;
  frame.call = number;
  frame.packet = request;
  return frame;
}

std::shared_ptr<RpcReply> ClientSession::start(Packet request) {
  auto reply = std::make_shared<PendingReply>(what_);
  const std::size_t bytes = request.payload_bytes();
  MutexLock send_lock(send_mutex_);
  std::shared_ptr<RpcClientWire> wire;
  RpcFrame frame;
  {
    MutexLock lock(mutex_);
    const auto& reason = ended_ ? ended_ : away_;
    if (reason) {
      reply->set_error(*reason);
      return reply;
    }
    if (request.head.size() > tutti::kLongestHead || bytes > longest_payload_) {
      fail(ErrorCode::kInvalidArgument, "rpc: ", *what_, ": a request with ", request.head.size(),
           " bytes of head and ", bytes, " of payload; expected at most ", tutti::kLongestHead,
           " and ", longest_payload_, "; send it in parts");
    }
    if (calls_.size() >= kMostCalls) {
      fail(ErrorCode::kResourceExhausted, "rpc: ", *what_, ": ", calls_.size(),
           " calls have no answer; expected fewer than ", kMostCalls, "; wait for some first");
    }
    const std::uint64_t number = ++last_call_;
    Call& call = calls_[number];
    call.request = std::move(request);
    call.reply = reply;
    wire = wire_;
    if (wire) {
      frame = request_frame(number, call.request);
      frame.numbers.swap(arrived_);
    }
  }
  if (wire) wire->send(std::move(frame));
  return reply;
}

void ClientSession::received(RpcFrame frame) {
  if (frame.kind == RpcFrame::Kind::kProbe) return;
  const bool is_reply = frame.kind == RpcFrame::Kind::kReply;
  if (!is_reply && frame.kind != RpcFrame::Kind::kError) {
    fail(ErrorCode::kDataLoss, "rpc: ", server_name_, " sent a frame that no server sends");
  }
  const bool keeps_much = frame.packet.payload_bytes() >= kSmallPayload;
  bool acknowledges = false;
  Call call;
  {
    MutexLock lock(mutex_);
    const auto found = calls_.find(frame.call);
    most_silent_looks_ = kSilentLooks;
    if (wire_ && wire_->can_break()) arrived_.push_back(frame.call);
    acknowledges = !arrived_.empty() && (keeps_much || arrived_.size() >= kMostUnacknowledged);
    if (found != calls_.end()) {
      call = std::move(found->second);
      calls_.erase(found);
    }
  }
  if (call.reply && is_reply) {
    call.reply->set(std::move(frame.packet));
  } else if (call.reply) {
    call.reply->set_error(
        Error(frame.code, concat(server_name_, ": ", text_of(frame.packet.head))));
  }
  if (acknowledges) acknowledge();
}

void ClientSession::acknowledge() {
  RpcFrame frame;
  frame.kind = RpcFrame::Kind::kAcknowledge;
  MutexLock send_lock(send_mutex_);
  std::shared_ptr<RpcClientWire> wire;
  {
    MutexLock lock(mutex_);
    wire = wire_;
    if (wire) frame.numbers.swap(arrived_);
  }
  if (wire && !frame.numbers.empty()) wire->send(std::move(frame));
}

bool ClientSession::look_for_gaps(bool has_moved) {
  MutexLock send_lock(send_mutex_);
  std::shared_ptr<RpcClientWire> wire;
  {
    MutexLock lock(mutex_);
    silent_looks_ = has_moved || calls_.empty() ? 0 : silent_looks_ + 1;
    if (silent_looks_ >= most_silent_looks_) {
      most_silent_looks_ = std::min(2 * most_silent_looks_, kMostSilentLooks);
      return true;
    }
    if (!calls_.empty()) wire = wire_;
  }
  RpcFrame frame;
  frame.kind = RpcFrame::Kind::kProbe;
  if (wire) wire->send(std::move(frame));
  return false;
}

void ClientSession::run(std::shared_ptr<RpcClientWire> wire) {
  while (wire) {
    const std::string why = wire->serve();
    {
      MutexLock lock(mutex_);
      wire_.reset();
      why_away_ = why;
      away_since_ = now();
    }
    wire.reset();  // the old connection ends before there is a new one
    wire = reconnect(why);
  }
}

bool ClientSession::is_over() const {
  MutexLock lock(mutex_);
  return ended_.has_value();
}

std::shared_ptr<RpcClientWire> ClientSession::reconnect(const std::string& why) {
  const TimePoint begin = now();
  TimePoint say_at = deadline_after(begin, options_.say_every);
  std::string reason = why;
  int num_refusals = 0;
  while (!is_over()) {
    RpcAttempt attempt;
    try {
      attempt = connect_once(TimePoint::max());
    } catch (const Error& error) {  // a certificate that has gone, for example
      attempt.reason = error.message();
    }
    const Duration away = now() - begin;
    if (attempt.wire) {
      if (!adopt(attempt)) break;
      log_info(concat("rpc: ", options_.self, " is connected to ", server_name_, " again after ",
                      seconds_text(away), " s (", why, ")"));
      return attempt.wire;
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
      say_at = deadline_after(now(), options_.say_every);
    }
    const bool is_young = away < kTryOftenFor;
    stop_.wait_until(deadline_after(now(), is_young ? kTryAgain : kTryMuchLater));
  }
  return nullptr;
}

void ClientSession::give_up(const Error& error, bool lasts) {
  Calls calls;
  std::shared_ptr<RpcClientWire> wire;
  {
    MutexLock lock(mutex_);
    calls.swap(calls_);
    if (!lasts) away_ = error;
    if (lasts && !ended_) ended_ = error;
    if (lasts) wire = wire_;
  }
  for (auto& [number, call] : calls) call.reply->set_error(error);
  if (!lasts) return;
  stop_.set();
  if (wire) wire->finish(TimePoint::min());
}

void ClientSession::fail_all(const Error& error) { give_up(error, true); }

void ClientSession::leave() {
  std::shared_ptr<RpcClientWire> wire;
  Calls calls;
  const Error cancelled(ErrorCode::kCancelled,
                        concat("rpc: ", *what_, ": the client was ended before the answer came"));
  {
    MutexLock send_lock(send_mutex_);
    {
      MutexLock lock(mutex_);
      wire = wire_;
      calls.swap(calls_);
      if (!ended_) ended_ = cancelled;
    }
    RpcFrame frame;
    frame.kind = RpcFrame::Kind::kGoodBye;
    if (wire) wire->send(std::move(frame));
  }
  for (auto& [number, call] : calls) call.reply->set_error(cancelled);
  stop_.set();
  if (wire) wire->finish(deadline_after(now(), kLongestGoodBye));
  if (thread_) thread_->join();
}

std::optional<std::string> ClientSession::why_away() const {
  MutexLock lock(mutex_);
  if (wire_) return std::nullopt;
  return why_away_;
}

std::optional<TimePoint> ClientSession::away_since() const {
  MutexLock lock(mutex_);
  if (wire_) return std::nullopt;
  return away_since_;
}

bool ClientSession::takes_calls() const {
  MutexLock lock(mutex_);
  return !ended_ && !away_;
}

std::uint64_t ClientSession::server_incarnation() const {
  MutexLock lock(mutex_);
  return server_incarnation_;
}

}  // namespace tutti::internal

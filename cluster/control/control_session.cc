// Connecting, asking, heartbeats, and what happens when the connection or the server is gone.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/control_session.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/control/health_rules.h"
#include "tutti/cluster/control/process_probe.h"
#include "tutti/cluster/tcp/stream.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr Duration kTryAgain = std::chrono::milliseconds(20);
/// Once or twice a damaged handshake may look like it.
constexpr int kRefusals = 3;
constexpr Duration kLongestAttempt = std::chrono::seconds(2);
/// Interfaces, routes and name servers of a machine that has just started may come a little later.
constexpr Duration kHopelessLongEnough = std::chrono::seconds(10);
constexpr Duration kShortestAttempt = std::chrono::milliseconds(50);
/// A server on another machine whose port refuses connections for this long is gone.
constexpr Duration kRefusedLongEnough = std::chrono::milliseconds(150);

TimePoint now() { return Clock::system().now(); }

}  // namespace

ControlSession::ControlSession(const std::string& target, const MemberTask& self,
                               const ControlOptions& options)
    : target_(parse_target(target)), options_(options) {
  const ProcessIdentity& process = this_process();
  joined_.who = {self, options.incarnation, process.host, process.pid, true};
  joined_.start_time = process.start_time;
  joined_.machine = process.machine;
  // One process may be several members (tests): each has its own name.
  joined_.process =
      concat(process.unique, "/", self.to_string(), "/", now().time_since_epoch().count());
  connect_at_start();
  last_heard_ = now();
  thread_ = Executor::system().start("control-client", [this] { run(); });
}

ControlSession::~ControlSession() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (wire_) wire_->wake();
  }
  thread_->join();
}

Attempt ControlSession::connect_once(TimePoint deadline) {
  ConnectParameters parameters;
  parameters.endpoint = target_.endpoint;
  parameters.hello =
      make_hello(ConnectionPurpose::kControl, joined_.who.task.job, joined_.who.task.index);
  parameters.hello.job_id = options_.job_id;
  parameters.hello.incarnation = options_.incarnation;
  parameters.secret = options_.secret;
  parameters.tls = options_.tls;
  parameters.deadline = std::min(deadline, deadline_after(now(), kLongestAttempt));
  if (target_.wire == "tcp") return connect_tcp(parameters);
  Attempt attempt = connect_grpc(parameters);
  if (!attempt.wire && attempt.is_nobody_there) {  // gRPC does not say why
    attempt.is_hopeless = connect_until(parameters.endpoint, parameters.deadline).is_hopeless;
  }
  return attempt;
}

Attempt ControlSession::join_once(TimePoint deadline) {
  Attempt attempt = connect_once(deadline);
  if (!attempt.wire) return attempt;
  {
    MutexLock lock(mutex_);
    joined_.num_verdicts = 0;
    for (const Verdict& v : verdicts_)
      joined_.num_verdicts = std::max(joined_.num_verdicts, v.number);
  }
  attempt.wire->send({1, joined_});
  const TimePoint end = std::min(deadline, deadline_after(now(), kLongestAttempt));
  std::vector<Message> came;
  while (came.empty() && attempt.wire->is_open() && now() < end) came = attempt.wire->receive(end);
  const auto* const reply = came.empty() ? nullptr : std::get_if<JoinReply>(&came.front().body);
  if (reply == nullptr) {
    attempt.wire = nullptr;
    attempt.reason = "it did not answer the request to join";
    return attempt;
  }
  if (reply->code != ErrorCode::kOk) {
    attempt.wire = nullptr;
    attempt.is_final = true;
    attempt.reason = reply->text;
    return attempt;
  }
  welcome_ = *reply;
  if (welcome_.host.task.address.empty()) {
    welcome_.host.task.address = target_.endpoint.to_string();
  }
  {
    MutexLock lock(mutex_);
    wire_ = std::move(attempt.wire);
    for (const auto& [id, question] : questions_) {
      if (!question.answer) wire_->send(question.message);
    }
  }
  for (std::size_t i = 1; i < came.size(); ++i) take(came[i]);
  attempt.reason.clear();
  return attempt;
}

std::string ControlSession::server_name() const {
  return concat("the control server at ", target_.endpoint.to_string(),
                options_.hosted_by.empty() ? "" : concat(" (", options_.hosted_by, ")"));
}

void ControlSession::say_waiting(TimePoint begin, const std::string& reason) const {
  log_info(concat("control: ", joined_.who.task.to_string(), " waits for ", server_name(),
                  " since ", seconds_text(now() - begin), " s: ", reason));
}

void ControlSession::connect_at_start() {
  const TimePoint begin = now();
  const TimePoint deadline = deadline_after(begin, options_.timeout);
  TimePoint say_at = deadline_after(begin, options_.say_every);
  TimePoint last_hope = begin;
  for (;;) {
    const Attempt attempt = join_once(deadline);
    if (attempt.reason.empty()) return;
    if (attempt.is_final) {
      fail(ErrorCode::kFailedPrecondition, "control: ", joined_.who.task.to_string(),
           " cannot join at ", target_.endpoint.to_string(), ": ", attempt.reason);
    }
    if (!attempt.is_hopeless) last_hope = now();
    if (now() - last_hope >= kHopelessLongEnough) {
      fail(ErrorCode::kUnavailable, "control: ", joined_.who.task.to_string(), " cannot reach ",
           server_name(), ": ", attempt.reason, "; waiting does not help; correct ",
           options_.hosted_by.empty() ? "TUTTI_CONTROL" : "its address in the cluster",
           ", or this machine's names, interfaces, routes or range of ports");
    }
    if (now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "control: ", joined_.who.task.to_string(),
           " did not reach ", server_name(), " within ", seconds_text(options_.timeout),
           " s: ", attempt.reason, "; start it, or check the address and its log");
    }
    if (now() >= say_at) {
      say_waiting(begin, attempt.reason);
      say_at = deadline_after(now(), options_.say_every);
    }
    Clock::system().sleep_for(kTryAgain);
  }
}

void ControlSession::run() {
  const Duration every = std::chrono::milliseconds(welcome_.heartbeat_ms);
  TimePoint next_heartbeat = now();
  TimePoint last_round = now();
  for (;;) {
    std::shared_ptr<ClientWire> wire;
    {
      MutexLock lock(mutex_);
      if (stopping_ || ended_) return;
      wire = wire_;
    }
    const std::vector<Message> messages = wire->receive(next_heartbeat);
    const TimePoint time = now();
    // Whoever was paused itself heard nobody meanwhile.
    if (time - last_round > 2 * every)
      last_heard_ = std::min(time, last_heard_ + (time - last_round));
    last_round = time;
    if (!messages.empty()) last_heard_ = time;
    for (const Message& message : messages) take(message);
    if (!wire->is_open()) {
      if (!reconnect()) return;
      last_heard_ = last_round = now();
    }
    if (may_be_cut_off(now())) {
      renew();
      last_round = now();
    }
    if (now() >= next_heartbeat) {
      send_heartbeat();
      next_heartbeat = deadline_after(now(), every);
    }
    if (const auto verdict = judge_server(now())) {
      take_verdict(*verdict);
      end(verdict->code, verdict->message);
    }
  }
}

bool ControlSession::reconnect() {
  const TimePoint begin = now();
  const Duration limit = unreachable_after();
  const bool is_near = welcome_.host_machine == this_process().machine;
  int num_refusals = 0;
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (stopping_ || ended_) return false;
    }
    Attempt attempt;
    try {
      // Half of what is left: where the opening was damaged on its way, or its packets vanished,
      // nothing but the end of the attempt ends it.
      const Duration left = limit - (now() - begin);
      attempt = join_once(deadline_after(
          now(),
          std::clamp(left / 2, kShortestAttempt, std::max(silent_after() / 2, kShortestAttempt))));
    } catch (const Error& error) {  // a certificate that has gone, for example
      attempt.reason = error.message();
    }
    if (attempt.reason.empty()) {
      log_info(concat("control: ", joined_.who.task.to_string(), " is connected to ", server_name(),
                      " again after ", seconds_text(now() - begin), " s"));
      return true;
    }
    const Duration away = now() - begin;
    std::optional<Verdict> verdict;
    if (attempt.is_final && ++num_refusals == kRefusals) {
      verdict = verdict_on_server(VerdictKind::kDead, concat("it refuses: ", attempt.reason));
    } else if (is_near && look_at_process(welcome_.host.pid, welcome_.host_start_time).kind ==
                              ProcessState::Kind::kIsGone) {
      verdict = verdict_on_server(VerdictKind::kDead,
                                  "died: its connection closed and the process is gone");
    } else if (!is_near && attempt.is_nobody_there && away >= kRefusedLongEnough) {
      verdict = verdict_on_server(VerdictKind::kDead,
                                  "died: its connection closed and nobody listens there any more");
    } else if (away >= limit) {
      verdict = verdict_on_server(
          VerdictKind::kDead,
          concat("cannot be reached since ", seconds_text(away), " s: ", attempt.reason));
    }
    if (verdict) {
      take_verdict(*verdict);
      end(verdict->code, verdict->message);
      return false;
    }
    Clock::system().sleep_for(kTryAgain);
  }
}

/// A server in this process is as alive as this thread.
bool ControlSession::hosts_the_server() const {
  return welcome_.host.pid == this_process().pid && welcome_.host_machine == this_process().machine;
}

/// Heartbeats are answered at once. Where packets vanish on the way no end of the connection is
/// ever told: it may be this connection alone, with nothing wrong at its ends.
bool ControlSession::may_be_cut_off(TimePoint time) const {
  return !hosts_the_server() && time - last_heard_ >= silent_after() / 2;
}

/// Tries another connection beside the silent one, until there is more to judge by.
void ControlSession::renew() {
  const Duration silence = now() - last_heard_;
  Attempt attempt;
  try {
    attempt = join_once(deadline_after(now(), silent_after() / 2));
  } catch (const Error& error) {
    attempt.reason = error.message();
  }
  if (!attempt.reason.empty()) return;
  last_heard_ = now();
  log_info(concat("control: ", joined_.who.task.to_string(), " heard nothing from ", server_name(),
                  " for ", seconds_text(silence), " s, and has another connection now"));
}

std::optional<Verdict> ControlSession::judge_server(TimePoint time) const {
  if (hosts_the_server()) return std::nullopt;
  const Duration silence = time - last_heard_;
  if (silence < silent_after()) return std::nullopt;
  ProcessState state;
  if (welcome_.host_machine == this_process().machine) {
    state = look_at_process(welcome_.host.pid, welcome_.host_start_time);
  }
  using Kind = ProcessState::Kind;
  const std::string time_text = seconds_text(silence);
  if (state.kind == Kind::kIsGone) {
    return verdict_on_server(VerdictKind::kDead, "died: the process is gone");
  }
  if (state.kind == Kind::kIsStopped) {
    return verdict_on_server(VerdictKind::kStopped,
                             concat("is stopped: state ", state.letter, ", silent for ", time_text,
                                    " s; try: kill -CONT ", welcome_.host.pid));
  }
  if (silence < longest_silence(state, silent_after(), unreachable_after())) return std::nullopt;
  return verdict_on_server(VerdictKind::kStopped, concat("is silent for ", time_text, " s"));
}

Verdict ControlSession::verdict_on_server(VerdictKind kind, const std::string& what) const {
  Verdict verdict;
  verdict.kind = kind;
  verdict.who = welcome_.host;
  verdict.is_fatal = true;
  verdict.code = ErrorCode::kUnavailable;
  verdict.message = concat(welcome_.host.to_string(), ", which hosts the control server, ", what);
  return verdict;
}

void ControlSession::take(const Message& message) {
  if (const auto* news = std::get_if<VerdictNews>(&message.body)) {
    take_verdict(news->verdict);
  } else if (const auto* proposal = std::get_if<StopProposal>(&message.body)) {
    if (const auto answer = gate_.take(*proposal)) send({0, *answer});
  } else if (std::holds_alternative<ServerLeaves>(message.body)) {
    end(ErrorCode::kUnavailable, concat(server_name(), " has ended"));
  } else if (message.id != 0) {
    MutexLock lock(mutex_);
    const auto found = questions_.find(message.id);
    if (found == questions_.end()) return;
    found->second.answer = message;
    changed_.notify_all();
  }
}

void ControlSession::take_verdict(Verdict verdict) {
  {
    MutexLock lock(mutex_);
    const auto is_it = [&](const Verdict& v) { return v.number == verdict.number; };
    if (verdict.number != 0 && std::ranges::any_of(verdicts_, is_it)) return;
    verdicts_.push_back(verdict);
    if (verdict.is_fatal) changed_.notify_all();
  }
  const bool is_self = verdict.who.task.same_task(joined_.who.task) &&
                       verdict.who.pid == joined_.who.pid &&
                       verdict.who.incarnation == joined_.who.incarnation;
  // What was before this process is told to it, too; its log need not repeat it.
  if (is_self && verdict.kind == VerdictKind::kJoined) knows_history_ = true;
  if ((knows_history_ || verdict.number == 0) &&
      (verdict.is_fatal || verdict.kind == VerdictKind::kStuck)) {
    log_warning(concat("control: ", verdict.message, is_self ? " (this process)" : ""));
  }
  if (!options_.on_verdict) return;
  try {
    options_.on_verdict(verdict);
  } catch (const std::exception& error) {  // not the heartbeats' concern
    log_warning(concat("control: on_verdict threw: ", error.what()));
  }
}

void ControlSession::send(const Message& message) {
  MutexLock lock(mutex_);
  if (wire_) wire_->send(message);
}

void ControlSession::send_heartbeat() {
  Heartbeat heartbeat;
  try {
    if (options_.progress) heartbeat.progress = options_.progress->progress();
  } catch (const std::exception& error) {  // alive it is nevertheless
    heartbeat.progress.phase = concat("unknown: ", error.what());
  }
  heartbeat.progress.step = std::max(heartbeat.progress.step, gate_.current_step());
  send({0, std::move(heartbeat)});
}

void ControlSession::end(ErrorCode code, const std::string& reason) {
  MutexLock lock(mutex_);
  if (!ended_) ended_.emplace(code, concat("control: ", reason));
  changed_.notify_all();
}

const Verdict* ControlSession::fatal_after(std::uint64_t number) const {
  const auto found = std::ranges::find_if(verdicts_, [number](const Verdict& verdict) {
    return verdict.is_fatal && verdict.number > number;
  });
  return found == verdicts_.end() ? nullptr : &*found;
}

Message ControlSession::wait_for_answer(const decltype(Message::body)& body, TimePoint deadline,
                                        const std::string& what,
                                        std::optional<std::uint64_t> last_verdict) {
  MutexLock lock(mutex_);
  if (ended_) throw *ended_;
  const std::uint64_t id = ++num_questions_ + 1;
  Question& question = questions_[id];
  question.message = {id, body};
  wire_->send(question.message);
  const auto lost = [&]() TUTTI_REQUIRES(mutex_) {
    return last_verdict ? fatal_after(*last_verdict) : nullptr;
  };
  const auto is_over = [&]() TUTTI_REQUIRES(mutex_) {
    return question.answer || ended_ || lost() != nullptr;
  };
  changed_.wait_until(mutex_, deadline, is_over);
  std::optional<Message> answer = std::move(question.answer);
  questions_.erase(id);
  if (answer) return *std::move(answer);
  if (ended_) throw *ended_;
  if (std::holds_alternative<StoreRequest>(body)) {
    StoreRequest cancel;
    cancel.action = StoreRequest::Action::kCancelWait;
    wire_->send({id, cancel});
  }
  if (const Verdict* const verdict = lost()) fail(ErrorCode::kUnavailable, verdict->message);
  fail(ErrorCode::kDeadlineExceeded, "control: ", joined_.who.task.to_string(), ": ", what);
}

StoreReply ControlSession::ask(const decltype(Message::body)& body, TimePoint deadline,
                               const std::string& what, std::optional<std::uint64_t> last_verdict) {
  const Message answer = wait_for_answer(body, deadline, what, last_verdict);
  const auto* const reply = std::get_if<StoreReply>(&answer.body);
  TUTTI_CHECK(reply != nullptr, "an answer of another kind");
  if (reply->code != ErrorCode::kOk) throw Error(reply->code, reply->text);
  return *reply;
}

std::vector<Member> ControlSession::members(bool until_all_are_here, TimePoint deadline) {
  const Message answer = wait_for_answer(MembersRequest{until_all_are_here}, deadline,
                                         "no list of members in time", std::nullopt);
  if (const auto* refused = std::get_if<StoreReply>(&answer.body)) {
    throw Error(refused->code, refused->text);
  }
  const auto* const reply = std::get_if<MembersReply>(&answer.body);
  TUTTI_CHECK(reply != nullptr, "an answer of another kind");
  return reply->members;
}

void ControlSession::leave() noexcept {
  try {
    send_heartbeat();  // all its calls: the last regular one may have come before the last of them
    (void)ask(GoodBye{}, deadline_after(now(), std::chrono::seconds(1)), "no answer to good-bye");
  } catch (const Error&) {  // nobody there to say it to
  }
  end(ErrorCode::kFailedPrecondition,
      concat(joined_.who.task.to_string(), " has left the job; ask before leaving"));
}

std::vector<Verdict> ControlSession::verdicts() const {
  MutexLock lock(mutex_);
  return verdicts_;
}

}  // namespace tutti::internal

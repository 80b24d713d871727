// Implements ControlClient with a Join stream, heartbeats, and calls to the server.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/control_client.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>

#include "cluster/control/job_messages.h"
#include "cluster/control/join_job.h"
#include "cluster/control/stop_agreement.h"
#include "cluster/grpc/grpc_channel.h"
#include "cluster/net/handshake.h"
#include "cluster/net/socket.h"
#include "core/names.h"
#include "core/process_probe.h"
#include "job.grpc.pb.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

class JobStream;

/// Membership of this process in its job. Thread-safe.
class ControlSession final : public ControlClient {
 public:
  /// Connects and joins. Throws the same errors as connect_control().
  ControlSession(const std::string& target, const MemberTask& self, const ControlOptions& options);
  ~ControlSession() override;

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key) override;
  std::vector<std::optional<std::string>> get_all(std::span<const std::string> keys) override;
  std::string wait(std::string_view key, TimePoint deadline) override;
  void wait_for_members(TimePoint deadline) override;
  std::vector<Member> members() override;
  Member self() const override { return self_; }
  std::vector<Verdict> verdicts() const override;
  void report_failure(const Error& error) noexcept override;
  void report_disconnection(const MemberTask& peer, std::uint64_t last_verdict,
                            std::string_view why) override;
  void report_unwinding() noexcept override;
  void note_failure(std::string_view text) override;
  void request_stop(std::string_view reason) override;
  std::optional<std::uint64_t> agreed_stop_step() const override { return gate_.final_step(); }
  bool stops_after(std::uint64_t step) override;
  std::string stop_reason() const override { return gate_.reason(); }
  void leave() noexcept override;

 private:
  template <class Request, class Reply>
  using Method = void (v1::Job::Stub::async::*)(grpc::ClientContext*, const Request*, Reply*,
                                                std::function<void(grpc::Status)>);
  /// Calls the server and waits for its reply. If the connection breaks, repeats the call on the
  /// next connection. Throws the server's error; kDeadlineExceeded, which names the call as `what`;
  /// or kUnavailable if the server is lost.
  template <class Request, class Reply>
  Reply call(Method<Request, Reply> method, Request request, TimePoint deadline,
             const std::string& what) {
    request.set_member(member_);
    Reply reply;
    const Start start = [&](v1::Job::Stub& stub, grpc::ClientContext& context,
                            std::function<void(grpc::Status)> done) {
      reply.Clear();
      (stub.async()->*method)(&context, &request, &reply, std::move(done));
    };
    perform(start, deadline, what);
    return reply;
  }

  using Start =
      std::function<void(v1::Job::Stub&, grpc::ClientContext&, std::function<void(grpc::Status)>)>;
  void perform(const Start& start, TimePoint deadline, const std::string& what);

  ConnectAttempt join_once(TimePoint deadline);
  std::string server_name() const;

  void run();
  bool reconnect();
  Duration heartbeat_every() const { return std::chrono::milliseconds(welcome_.heartbeat_ms()); }
  Duration silent_after() const { return std::chrono::milliseconds(welcome_.silent_ms()); }
  Duration unreachable_after() const {
    return std::chrono::milliseconds(welcome_.unreachable_ms());
  }
  bool is_on_its_machine() const;
  bool hosts_the_server() const;
  /// Returns the state of the server's process; unknown if the server is on another machine.
  ProcessState state_of_server() const;
  void renew();
  void take(const v1::JobEvent& event);
  void accept_verdict(Verdict verdict);
  void send(v1::MemberReport report);
  v1::Progress progress() const;
  std::optional<Verdict> judge_server(TimePoint now) const;
  Verdict verdict_on_server(VerdictKind kind, const std::string& what) const;
  void end(ErrorCode code, const std::string& reason);

  const int exceptions_at_begin_ = std::uncaught_exceptions();
  const Endpoint endpoint_;
  const ControlOptions options_;
  Member self_;
  v1::JoinRequest request_;
  // Reply to the last join; written first by the constructor, then by thread_.
  v1::JoinReply welcome_;
  Member host_;
  std::atomic<std::uint64_t> member_{0};  // number that the server assigned to this process
  StopGate gate_;
  Duration join_patience_ = durations::kSilentAfter;  // timeout of the next attempt to join
  TimePoint last_heard_;        // time of the server's last message; used by thread_
  bool knows_history_ = false;  // true once the verdict on this process's join has arrived

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<JobStream> stream_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Verdict> verdicts_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);  // error that later calls throw
  std::string failure_ TUTTI_GUARDED_BY(mutex_);         // last text passed to note_failure()
  bool has_reported_unwinding_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

/// Number of refusals after which a refusal is final; a single one may be due to a damaged
/// handshake.
constexpr int kDamagedHandshakes = 3;

TimePoint now() { return Clock::system().now(); }

/// Returns true if the connection, rather than the request, caused the failure, in which case the
/// call may be repeated.
bool is_of_connection(const grpc::Status& status, const grpc::ClientContext& context) {
  if (is_of_handler(context)) return false;
  const grpc::StatusCode code = status.error_code();
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED ||
         code == grpc::StatusCode::INTERNAL || code == grpc::StatusCode::UNKNOWN;
}

/// This member's Join stream on a separate channel. Thread-safe, but only one thread may be in
/// receive().
class JobStream final : public StreamToServer<v1::MemberReport, v1::JobEvent> {
 public:
  explicit JobStream(const GrpcOptions& options) : stub_(v1::Job::NewStub(open_channel(options))) {
    stub_->async()->Join(&context_, this);
    StartRead(&incoming_);
    start();
  }
  ~JobStream() override { stop(); }

  v1::Job::Stub& stub() { return *stub_; }
  /// Queues a report; drops it if the stream is broken.
  void send(v1::MemberReport report) {
    MutexLock lock(mutex_);
    if (!is_open_ || !can_write_) return;
    unsent_.push_back(std::move(report));
    write_next();
  }
  /// Waits for an event, a wake(), the end of the stream or the deadline. Returns the received
  /// events.
  std::vector<v1::JobEvent> receive(TimePoint deadline) {
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
  /// Returns true if events may still arrive.
  bool is_open() {
    MutexLock lock(mutex_);
    if (!is_open_) release();
    return is_open_ || !received_.empty();
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
    if (!ok) {  // the stream stays open, because the server's last messages may be unread
      can_write_ = false;
      unsent_.clear();
    }
    write_next();
  }

 private:
  void write_next() TUTTI_REQUIRES(mutex_) {
    if (is_writing_ || unsent_.empty() || has_released_) return;
    is_writing_ = true;
    StartWrite(&unsent_.front());
  }

  const std::unique_ptr<v1::Job::Stub> stub_;
  v1::JobEvent incoming_;
  std::vector<v1::JobEvent> received_ TUTTI_GUARDED_BY(mutex_);
  std::deque<v1::MemberReport> unsent_ TUTTI_GUARDED_BY(mutex_);
  bool is_awake_ TUTTI_GUARDED_BY(mutex_) = false;
};

ControlSession::ControlSession(const std::string& target, const MemberTask& self,
                               const ControlOptions& options)
    : endpoint_(parse_grpc_target("control", target)), options_(options) {
  const ProcessIdentity& process = this_process();
  self_ = {self, options.incarnation, process.host, process.pid, true};
  *request_.mutable_member() = to_proto(self_);
  *request_.mutable_build() = make_build(options.job_id, options.secret);
  request_.set_start_time(process.start_time);
  request_.set_machine(proto_text(process.machine));
  // In tests, one process may contain several members, so the name includes the task.
  request_.set_process(
      concat(process.unique, "/", self.to_string(), "/", now().time_since_epoch().count()));
  reach_server(
      {.who = concat("control: ", self_.task),
       .wants = concat("join at ", endpoint_.to_string()),
       .name = server_name(),
       .address_in = options_.hosted_by.empty() ? "TUTTI_CONTROL" : "its address in the cluster",
       .timeout = options_.timeout,
       .say_every = options_.say_every},
      [this](TimePoint deadline) { return join_once(deadline); });
  last_heard_ = now();
  thread_ = Executor::system().start("control-client", [this] { run(); });
}

ControlSession::~ControlSession() {
  report_unwinding();
  leave();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (stream_) stream_->wake();
  }
  thread_->join();
}

ConnectAttempt ControlSession::join_once(TimePoint deadline) {
  const TimePoint end = std::min(deadline, deadline_after(now(), join_patience_));
  const GrpcOptions channel{endpoint_, options_.secret, options_.tls};
  if (auto refusal = probe_listener(channel)) return *std::move(refusal);
  auto stream = std::make_shared<JobStream>(channel);
  {
    MutexLock lock(mutex_);
    std::uint64_t newest = 0;
    for (const Verdict& verdict : verdicts_) newest = std::max(newest, verdict.number);
    request_.set_num_verdicts(newest);
  }
  v1::MemberReport report;
  *report.mutable_join() = request_;
  stream->send(std::move(report));
  std::vector<v1::JobEvent> came;
  while (came.empty() && stream->is_open() && now() < end) came = stream->receive(end);
  if (came.empty() || !came.front().has_joined()) {
    // If many processes join at once on few cores, attempts with a short timeout would keep the
    // server busy without succeeding.
    if (now() >= end) join_patience_ = std::min(2 * join_patience_, durations::kServerPatience);
    const grpc::Status status = stream->wait_for_end(end);
    return failed_attempt(status, stream->is_refused(), channel, end);
  }
  join_patience_ = durations::kSilentAfter;
  welcome_ = came.front().joined();
  member_ = welcome_.member();
  host_ = from_proto(welcome_.host());
  if (host_.task.address.empty()) host_.task.address = endpoint_.to_string();
  {
    MutexLock lock(mutex_);
    stream_ = std::move(stream);
    changed_.notify_all();
  }
  for (std::size_t i = 1; i < came.size(); ++i) take(came[i]);
  return {.is_done = true};
}

std::string ControlSession::server_name() const {
  return concat("the control server at ", endpoint_.to_string(),
                options_.hosted_by.empty() ? "" : concat(" (", options_.hosted_by, ")"));
}

void ControlSession::run() {
  const Duration every = heartbeat_every();
  TimePoint next_heartbeat = now();
  TimePoint last_round = now();
  for (;;) {
    std::shared_ptr<JobStream> stream;
    {
      MutexLock lock(mutex_);
      if (stopping_ || ended_) return;
      stream = stream_;
    }
    const std::vector<v1::JobEvent> events = stream->receive(next_heartbeat);
    const TimePoint time = now();
    // A pause in which this process could not receive messages must not count as the server's
    // silence.
    if (time - last_round > 2 * every)
      last_heard_ = std::min(time, last_heard_ + (time - last_round));
    last_round = time;
    if (!events.empty()) last_heard_ = time;
    for (const v1::JobEvent& event : events) take(event);
    if (!stream->is_open()) {
      if (!reconnect()) return;
      last_heard_ = last_round = now();
    }
    // The server answers heartbeats as soon as the operating system schedules its process.
    const bool is_late = now() - last_heard_ >= silent_after() / 2;
    if (is_late && !hosts_the_server() && state_of_server().is_busy()) {
      // The server is alive; its reply may merely be waiting for a thread of this process to read
      // it.
      last_heard_ = std::max(last_heard_, now() - unreachable_after() + 2 * every);
    } else if (is_late) {
      renew();
      last_round = now();
    }
    if (now() >= next_heartbeat) {
      v1::MemberReport heartbeat;
      *heartbeat.mutable_progress() = progress();
      send(std::move(heartbeat));
      next_heartbeat = deadline_after(now(), every);
    }
    if (const auto verdict = judge_server(now())) {
      accept_verdict(*verdict);
      end(verdict->code, verdict->message);
    }
  }
}

bool ControlSession::reconnect() {
  const TimePoint begin = now();
  const Duration limit = unreachable_after();
  const bool is_near = is_on_its_machine();
  int num_refusals = 0;
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (stopping_ || ended_) return false;
    }
    ConnectAttempt attempt;
    try {
      // Uses half of the remaining time, because an attempt whose packets were damaged or lost ends
      // only at its own deadline.
      const Duration left = limit - (now() - begin);
      attempt = join_once(deadline_after(
          now(), std::clamp(left / 2, durations::kReconnectWithin,
                            std::max(silent_after() / 2, durations::kReconnectWithin))));
    } catch (const Error& error) {  // for example, a missing certificate
      attempt.reason = error.message();
    }
    if (attempt.is_done) {
      log_info(concat("control: ", self_.task.to_string(), " is connected to ", server_name(),
                      " again after ", seconds_text(now() - begin), " s"));
      return true;
    }
    const Duration away = now() - begin;
    std::optional<Verdict> verdict;
    if (attempt.is_final && ++num_refusals == kDamagedHandshakes) {
      verdict = verdict_on_server(VerdictKind::kDead, concat("it refuses: ", attempt.reason));
    } else if (state_of_server().kind == ProcessState::Kind::kIsGone) {
      verdict = verdict_on_server(VerdictKind::kDead,
                                  "died: its connection closed and the process has exited");
    } else if (!is_near && attempt.is_connection_refused && away >= durations::kReconnectWithin) {
      verdict = verdict_on_server(
          VerdictKind::kDead, "died: its connection closed and no process listens at its address");
    } else if (away >= limit) {
      verdict = verdict_on_server(
          VerdictKind::kDead,
          concat("has been unreachable for ", seconds_text(away), " s: ", attempt.reason));
    }
    if (verdict) {
      accept_verdict(*verdict);
      end(verdict->code, verdict->message);
      return false;
    }
    Clock::system().sleep_for(durations::kTryAgain);
  }
}

bool ControlSession::is_on_its_machine() const {
  return welcome_.host_machine() == this_process().machine;
}

/// Returns true if the server runs in this process, and is therefore alive while this thread runs.
bool ControlSession::hosts_the_server() const {
  return host_.pid == this_process().pid && is_on_its_machine();
}

ProcessState ControlSession::state_of_server() const {
  if (!is_on_its_machine()) return {};
  return inspect_process(host_.pid, welcome_.host_start_time());
}

/// Opens a second connection, because the first one is silent. Even if both processes are alive,
/// lost packets may break a connection unnoticed, and a damaged length may block a receiver
/// indefinitely.
void ControlSession::renew() {
  const Duration silence = now() - last_heard_;
  ConnectAttempt attempt;
  try {
    attempt = join_once(deadline_after(now(), silent_after() / 2));
  } catch (const Error& error) {
    attempt.reason = error.message();
  }
  if (!attempt.is_done) return;
  last_heard_ = now();
  log_info(concat("control: ", self_.task.to_string(), " received nothing from ", server_name(),
                  " for ", seconds_text(silence), " s and opened another connection"));
}

std::optional<Verdict> ControlSession::judge_server(TimePoint time) const {
  if (hosts_the_server()) return std::nullopt;
  const Duration silence = time - last_heard_;
  if (silence < silent_after()) return std::nullopt;
  const ProcessState state = state_of_server();
  using Kind = ProcessState::Kind;
  const std::string time_text = seconds_text(silence);
  if (state.kind == Kind::kIsGone) {
    return verdict_on_server(VerdictKind::kDead, "died: the process has exited");
  }
  if (state.kind == Kind::kIsStopped) {
    return verdict_on_server(VerdictKind::kStopped,
                             concat("is stopped: state ", state.letter, ", silent for ", time_text,
                                    " s; try: kill -CONT ", host_.pid));
  }
  if (silence < longest_silence(state, silent_after(), unreachable_after())) return std::nullopt;
  if (state.is_busy()) return std::nullopt;
  return verdict_on_server(VerdictKind::kStopped, concat("has been silent for ", time_text, " s"));
}

Verdict ControlSession::verdict_on_server(VerdictKind kind, const std::string& what) const {
  Verdict verdict;
  verdict.kind = kind;
  verdict.who = host_;
  verdict.is_fatal = true;
  verdict.code = ErrorCode::kUnavailable;
  verdict.message = concat(host_.to_string(), ", which hosts the control server, ", what);
  return verdict;
}

void ControlSession::take(const v1::JobEvent& event) {
  switch (event.event_case()) {
    case v1::JobEvent::kHistory:
      for (const v1::Verdict& verdict : event.history().verdicts()) {
        accept_verdict(from_proto(verdict));
      }
      return;
    case v1::JobEvent::kStopProposal: {
      const auto answer = gate_.take(event.stop_proposal());
      if (!answer) return;
      v1::MemberReport report;
      *report.mutable_stop_answer() = *answer;
      return send(std::move(report));
    }
    case v1::JobEvent::kServerEnds:
      return end(ErrorCode::kUnavailable, concat(server_name(), " has ended"));
    default:  // a heartbeat's answer
      return;
  }
}

void ControlSession::accept_verdict(Verdict verdict) {
  {
    MutexLock lock(mutex_);
    const auto is_it = [&](const Verdict& v) { return v.number == verdict.number; };
    if (verdict.number != 0 && std::ranges::any_of(verdicts_, is_it)) return;
    verdicts_.push_back(verdict);
    if (verdict.is_fatal) changed_.notify_all();
  }
  // The program's own calls throw this verdict, so the program reports it.
  const bool is_thrown =
      verdict.kind == VerdictKind::kFailed || verdict.code == ErrorCode::kInvalidArgument;
  const bool is_self = verdict.who.task.same_task(self_.task) && verdict.who.pid == self_.pid &&
                       verdict.who.incarnation == self_.incarnation;
  // Verdicts from before this process joined are not logged.
  if (is_self && verdict.kind == VerdictKind::kJoined) knows_history_ = true;
  if ((knows_history_ || verdict.number == 0) && !is_thrown &&
      (verdict.is_fatal || verdict.kind == VerdictKind::kStuck)) {
    log_warning(concat("control: ", verdict.message, is_self ? " (this process)" : ""));
  }
  if (!options_.on_verdict) return;
  try {
    options_.on_verdict(verdict);
  } catch (const std::exception& error) {  // an exception must not stop the heartbeats
    log_warning(concat("control: on_verdict threw: ", error.what()));
  }
}

void ControlSession::send(v1::MemberReport report) {
  MutexLock lock(mutex_);
  if (stream_) stream_->send(std::move(report));
}

v1::Progress ControlSession::progress() const {
  MemberProgress progress;
  try {
    if (options_.progress) progress = options_.progress->progress();
  } catch (const std::exception& error) {  // this process is alive even if progress() throws
    progress.phase = concat("unknown: ", error.what());
  }
  progress.step = std::max(progress.step, gate_.current_step());
  return to_proto(progress);
}

void ControlSession::end(ErrorCode code, const std::string& reason) {
  MutexLock lock(mutex_);
  if (!ended_) ended_.emplace(code, concat("control: ", reason));
  changed_.notify_all();
}

void ControlSession::perform(const Start& start, TimePoint deadline, const std::string& what) {
  for (;;) {
    grpc::ClientContext context;
    std::optional<grpc::Status> status;
    std::shared_ptr<JobStream> stream;
    {
      MutexLock lock(mutex_);
      if (ended_) throw *ended_;
      stream = stream_;
    }
    start(stream->stub(), context, [&](grpc::Status result) {
      MutexLock lock(mutex_);
      status = std::move(result);
      changed_.notify_all();
    });
    MutexLock lock(mutex_);
    const auto should_continue = [&]()
                                     TUTTI_REQUIRES(mutex_) { return ended_ || stream != stream_; };
    changed_.wait_until(mutex_, deadline,
                        [&]() TUTTI_REQUIRES(mutex_) { return status || should_continue(); });
    if (!status) {  // gRPC uses the request until the call has ended
      context.TryCancel();
      changed_.wait_until(mutex_, TimePoint::max(),
                          [&]() TUTTI_REQUIRES(mutex_) { return status.has_value(); });
    }
    if (status->ok()) return;
    if (!is_of_connection(*status, context)) throw to_error(*status);
    changed_.wait_until(mutex_, std::min(deadline, deadline_after(now(), durations::kTryAgain)),
                        should_continue);
    if (ended_) throw *ended_;
    if (now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "control: ", self_.task.to_string(), ": ", what);
    }
  }
}

void ControlSession::leave() noexcept {
  try {
    v1::LeaveRequest request;
    *request.mutable_progress() = progress();
    (void)call(&v1::Job::Stub::async::Leave, std::move(request),
               deadline_after(now(), durations::kOneTry), "no answer to the request to leave");
  } catch (const Error&) {  // the server is lost
  }
  end(ErrorCode::kFailedPrecondition,
      concat(self_.task.to_string(), " has left the job; make this call before leave()"));
}

std::vector<Verdict> ControlSession::verdicts() const {
  MutexLock lock(mutex_);
  return verdicts_;
}

}  // namespace
}  // namespace tutti::internal

namespace tutti {
namespace {

using Job = class v1::Job::Stub::async;

TimePoint after(Duration duration) { return deadline_after(Clock::system().now(), duration); }
TimePoint soon() { return after(durations::kServerPatience); }

void check(std::string_view key, std::string_view value = "") {
  internal::check_store_key("control store", key);
  internal::check_store_value("control store", key, value);
}

/// Returns the tasks that never joined; if all tasks joined, returns the tasks that were lost.
std::string missing_names(const std::vector<Member>& members) {
  std::vector<std::string> never, gone;
  for (const Member& member : members) {
    if (!member.is_here) (member.pid == 0 ? never : gone).push_back(member.to_string());
  }
  return join(never.empty() ? gone : never);
}

}  // namespace

namespace internal {

void ControlSession::report_unwinding() noexcept {
  if (std::uncaught_exceptions() <= exceptions_at_begin_) return;
  std::string why;
  {
    MutexLock lock(mutex_);
    if (std::exchange(has_reported_unwinding_, true)) return;
    why = failure_.empty() ? "; see its log" : concat(": ", failure_);
  }
  report_failure(Error(ErrorCode::kAborted, concat("ended by an exception", why)));
}

void ControlSession::note_failure(std::string_view text) {
  MutexLock lock(mutex_);
  failure_ = text;
}

void ControlSession::set(std::string_view key, std::string_view value) {
  check(key, value);
  v1::PutRequest request;
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  (void)call(&Job::Put, std::move(request), soon(), concat("no answer to setting '", key, "'"));
}

std::optional<std::string> ControlSession::get(std::string_view key) {
  check(key);
  v1::GetRequest request;
  request.set_key(std::string(key));
  const auto reply =
      call(&Job::Get, std::move(request), soon(), concat("no answer to reading '", key, "'"));
  if (!reply.has_value()) return std::nullopt;
  return reply.value();
}

std::vector<std::optional<std::string>> ControlSession::get_all(std::span<const std::string> keys) {
  v1::GetRequest request;
  for (const std::string& key : keys) {
    check(key);
    request.add_keys(key);
  }
  const auto reply = call(&Job::Get, std::move(request), soon(),
                          concat("no answer to reading ", keys.size(), " values"));
  std::vector<std::optional<std::string>> values;
  for (const std::string& key : keys) {
    const auto found = reply.values().find(key);
    values.push_back(found == reply.values().end() ? std::nullopt : std::optional(found->second));
  }
  return values;
}

std::string ControlSession::wait(std::string_view key, TimePoint deadline) {
  check(key);
  v1::GetRequest request;
  request.set_key(std::string(key));
  request.set_until_set(true);
  try {
    return call(&Job::Get, std::move(request), deadline,
                concat("control store: no process has set '", key, "' in time"))
        .value();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    // A stored value is returned even after the deadline.
    if (auto value = get(key)) return *std::move(value);
    throw;
  }
}

void ControlSession::wait_for_members(TimePoint deadline) {
  Clock& clock = Clock::system();
  const TimePoint begin = clock.now();
  const std::string self = self_.task.to_string();
  for (;;) {
    const TimePoint say_at = deadline_after(clock.now(), options_.say_every);
    try {
      v1::ListMembersRequest request;
      request.set_until_all_are_here(true);
      (void)call(&Job::ListMembers, std::move(request), std::min(deadline, say_at),
                 "no list of members in time");
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    }
    const std::string missing = missing_names(members());
    if (missing.empty()) return;
    const std::string time = seconds_text(clock.now() - begin);
    if (clock.now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "control: ", self, ": ", missing, " did not join within ",
           time, " s; start the missing tasks, or check their addresses and logs");
    }
    log_warning(concat("control: ", self, " has waited ", time, " s for ", missing));
  }
}

std::vector<Member> ControlSession::members() {
  const auto reply =
      call(&Job::ListMembers, v1::ListMembersRequest(), soon(), "no list of members in time");
  std::vector<Member> members;
  for (const v1::Member& member : reply.members()) members.push_back(from_proto(member));
  return members;
}

void ControlSession::report_failure(const Error& error) noexcept {
  try {
    v1::ReportFailureRequest request;
    request.set_code(static_cast<std::uint32_t>(error.code()));
    request.set_message(proto_text(error.message()));
    (void)call(&Job::ReportFailure, std::move(request), after(durations::kOneTry),
               "no answer to the report of a failure");
  } catch (const std::exception&) {  // the loss of the server is reported separately
  }
}

void ControlSession::report_disconnection(const MemberTask& peer, std::uint64_t last_verdict,
                                          std::string_view why) {
  v1::ReportDisconnectionRequest request;
  request.set_last_verdict(last_verdict);
  request.set_peer_job(proto_text(peer.job));
  request.set_peer_index(static_cast<std::uint32_t>(peer.index));
  request.set_message(proto_text(why));
  (void)call(&Job::ReportDisconnection, std::move(request), after(durations::kOneTry),
             concat("no answer to the report that the connection to ", peer.to_string(), " broke"));
}

void ControlSession::request_stop(std::string_view reason) {
  v1::RequestStopRequest request;
  request.set_reason(proto_text(reason));
  (void)call(&Job::RequestStop, std::move(request), soon(), "no answer to the request to stop");
}

bool ControlSession::stops_after(std::uint64_t step) {
  return gate_.stops_after(step, after(2 * durations::kSilentAfter));
}

}  // namespace internal

std::unique_ptr<ControlClient> connect_control(const std::string& target, const MemberTask& self,
                                               const ControlOptions& options) {
  return std::make_unique<internal::ControlSession>(target, self, options);
}

}  // namespace tutti

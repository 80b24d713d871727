// Implements JobService: joining, reports, failure detection and the methods of the service.
// SPDX-License-Identifier: Apache-2.0
//
// A *record* describes a process that has joined, and exists until the server ends. A *link* is one
// of the process's streams. A process that lost its stream opens a new stream and keeps its record;
// a restarted task is a new process with a new record.
#include "cluster/control/job_service.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>

#include "cluster/control/job_messages.h"
#include "cluster/grpc/grpc_channel.h"
#include "cluster/net/handshake.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::internal {
namespace {

bool may_come(const ControlServerOptions& options, const MemberTask& task) {
  const auto is_it = [&](const MemberTask& other) { return task.same_task(other); };
  return options.expected.empty() || std::ranges::any_of(options.expected, is_it) ||
         std::ranges::any_of(options.welcome, is_it);
}

v1::Build build_of_server(const ControlServerOptions& options) {
  v1::Build build = make_build(options.job_id, options.secret);
  // A launcher does not train, so its processor may differ from those of the members.
  if (options.host.job == "launcher") build.clear_numerics();
  return build;
}

std::uint64_t milliseconds_of(Duration duration) {
  return static_cast<std::uint64_t>(duration / std::chrono::milliseconds(1));
}

v1::JobEvent event_of(const v1::StopProposal& proposal) {
  v1::JobEvent event;
  *event.mutable_stop_proposal() = proposal;
  return event;
}

}  // namespace

JobService::JobService(ControlServerOptions options, ProcessProbe probe, Clock& clock)
    : options_(std::move(options)),
      probe_(std::move(probe)),
      clock_(clock),
      build_(build_of_server(options_)),
      stop_(durations::kSilentAfter) {}

std::string JobService::refusal_of(const v1::Build& build, const JoiningProcess& process) {
  const MemberTask& task = process.who.task;
  const std::string own = options_.host.to_string(), theirs = task.to_string();
  if (auto reason = internal::refusal_of(build_, own, build, theirs); !reason.empty()) {
    return reason;
  }
  if (!may_come(options_, task)) {
    return concat(task.to_string(), " is not a task of this job; expected one of ",
                  tutti::join(options_.expected), "; check the task in TF_CONFIG");
  }
  for (const auto& [number, record] : records_) {
    if (record->status != MemberRecord::Status::kHere) continue;
    v1::Build other = build;
    other.set_numerics(record->numerics);
    auto reason = incompatibility(other, record->joined.who.task.to_string(), build, theirs);
    if (!reason.empty()) return reason;
  }
  const MemberRecord* const before = newest_of(task);
  if (before != nullptr && process.who.incarnation < before->joined.who.incarnation) {
    return concat(task.to_string(), " already runs after restart ", before->joined.who.incarnation,
                  "; this process is from restart ", process.who.incarnation);
  }
  return "";
}

JobService::Link* JobService::find(const MemberLink* link) {
  const auto found =
      std::ranges::find_if(links_, [link](const Link& l) { return l.link.get() == link; });
  return found == links_.end() ? nullptr : &*found;
}

JobService::Link* JobService::find(const MemberRecord& record) {
  const auto found =
      std::ranges::find_if(links_, [&record](const Link& l) { return l.record == &record; });
  return found == links_.end() ? nullptr : &*found;
}

MemberRecord* JobService::newest_of(const MemberTask& task) {
  MemberRecord* newest = nullptr;
  for (const auto& [number, record] : records_) {
    if (record->joined.who.task.same_task(task)) newest = record.get();
  }
  return newest;
}

v1::JoinReply JobService::reply_to(const MemberRecord* record) const {
  const ProcessIdentity& self = this_process();
  v1::JoinReply reply;
  if (record != nullptr) reply.set_member(record->number);
  *reply.mutable_host() = to_proto(Member{options_.host, 0, self.host, self.pid, true});
  reply.set_host_start_time(self.start_time);
  reply.set_host_machine(proto_text(self.machine));
  reply.set_heartbeat_ms(milliseconds_of(options_.health.heartbeat_every));
  reply.set_silent_ms(milliseconds_of(options_.health.silent_after));
  reply.set_unreachable_ms(milliseconds_of(options_.health.unreachable_after));
  return reply;
}

void JobService::add_link(std::shared_ptr<MemberLink> link, MemberRecord* record,
                          std::uint64_t num_verdicts) {
  v1::JobEvent welcome;
  *welcome.mutable_joined() = reply_to(record);
  link->send(welcome);
  const auto num_sent = std::min<std::uint64_t>(num_verdicts, verdicts_.size());
  Link& added = links_.emplace_back(Link{std::move(link), record, num_sent});
  send_verdicts(added);
  if (stop_.current()) added.link->send(event_of(*stop_.current()));
}

grpc::Status JobService::refused(const std::string& why) {
  std::string text = proto_text(why);
  refusals_.note(text, clock_.now());
  return {grpc::StatusCode::FAILED_PRECONDITION, std::move(text)};
}

/// Returns true if the process has left this server for its next strategy. The host runs a new
/// server for each strategy, so the process must retry until the host has also begun its next
/// strategy.
bool JobService::has_left_for_next_server(const MemberRecord& record,
                                          const JoiningProcess& process) const {
  return options_.host.job != "launcher" && record.status == MemberRecord::Status::kLeft &&
         record.joined.who == process.who && record.joined.start_time == process.start_time;
}

grpc::Status JobService::join(std::shared_ptr<MemberLink> link, const v1::JoinRequest& request) {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.now();
  if (request.observes()) {
    add_link(std::move(link), nullptr, request.num_verdicts());
    return grpc::Status::OK;
  }
  const JoiningProcess process = from_proto(request);
  const std::string refusal = refusal_of(request.build(), process);
  if (!refusal.empty()) return refused(refusal);
  MemberRecord* record = newest_of(process.who.task);
  const bool is_same_process = record && record->joined.process == process.process;
  if (is_same_process && record->status != MemberRecord::Status::kHere) {
    return refused(concat(record->joined.who.to_string(),
                          " left the job or was given up, and cannot join again; restart it"));
  }
  if (record && !is_same_process && has_left_for_next_server(*record, process)) {
    return {grpc::StatusCode::UNAVAILABLE,
            concat("the server of the previous strategy, which ", options_.host.to_string(),
                   " has not left yet, is still running")};
  }
  if (record && !is_same_process && record->status == MemberRecord::Status::kHere) {
    const bool is_gone = probe_(record->joined).kind == ProcessState::Kind::kIsGone;
    if (!is_gone && process.who.incarnation <= record->joined.who.incarnation) {
      return refused(concat(record->joined.who.to_string(),
                            " has already joined; expected one process per task; check the task "
                            "index in TF_CONFIG, or end that process"));
    }
    declare(*record, {record->number, VerdictKind::kDead, true, ErrorCode::kUnavailable,
                      concat(record->joined.who.to_string(), " died: a new process has its task")});
  }
  if (!is_same_process) record = &add_record(request.build(), process, now);
  if (Link* const old = find(*record)) {  // the old stream's end has not been detected yet
    old->record = nullptr;
    old->link->close();
  }
  record->is_connected = true;
  record->last_heard = now;
  add_link(std::move(link), record, request.num_verdicts());
  answer_waiting();
  return grpc::Status::OK;
}

MemberRecord& JobService::add_record(const v1::Build& build, const JoiningProcess& process,
                                     TimePoint now) {
  // Clears the predecessor's progress, because the restarted process counts its collectives from 0
  // and must not appear to be late.
  const std::uint64_t restarts = process.who.incarnation;
  MemberRecord* const before = newest_of(process.who.task);
  if (before && before->joined.who.incarnation < restarts) before->progress.groups.clear();
  auto record = std::make_unique<MemberRecord>();
  record->number = records_.size() + 1;
  record->joined = process;
  record->joined.who.is_here = true;
  record->numerics = build.numerics();
  record->progress_at = now;
  MemberRecord& added = *record;
  records_.emplace(added.number, std::move(record));
  declare(added, {added.number, VerdictKind::kJoined, false, ErrorCode::kOk,
                  concat(added.joined.who.to_string(), " joined",
                         restarts > 0 ? concat(" after restart ", restarts) : "")});
  return added;
}

void JobService::note(MemberRecord& record, const MemberProgress& progress) {
  record.has_stood_still = has_same_calls(record.progress, progress);
  record.progress = progress;
  record.progress_at = clock_.now();
}

bool JobService::report(const MemberLink* link, const v1::MemberReport& report) {
  MutexLock lock(mutex_);
  Link* const from = find(link);
  if (from == nullptr || from->record == nullptr) return false;
  MemberRecord& record = *from->record;
  const TimePoint now = clock_.now();
  record.last_heard = now;
  // A member that has left or was given up may have a successor, so its reports must not change
  // anything. If the member left, its Leave call overtook this report and contained the last
  // progress.
  if (record.status != MemberRecord::Status::kHere) return true;
  if (report.has_progress()) {
    note(record, from_proto(report.progress()));
    v1::JobEvent heard;
    heard.mutable_progress();
    from->link->send(heard);
    return true;
  }
  if (!report.has_stop_answer()) return false;
  broadcast(stop_.answer(record.number, report.stop_answer(), now));
  return true;
}

void JobService::closed(const MemberLink* link) {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.now();
  Link* const found = find(link);
  if (found == nullptr) return;
  MemberRecord* const record = found->record;
  links_.erase(links_.begin() + (found - links_.data()));
  if (record == nullptr || record->status != MemberRecord::Status::kHere) return;
  record->is_connected = false;
  record->disconnected_at = now;
  if (record->has_failed) {
    give_up(*record, MemberRecord::Status::kGivenUp);  // the error was already reported
  } else if (const auto finding = judge_silence(*record, now, options_.health, probe_)) {
    declare(*record, *finding);
  }
}

void JobService::tick() {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.now();
  // While the system did not schedule the server, it received no messages, so this time does not
  // count as silence of the members.
  const Duration late = last_tick_ ? now - *last_tick_ - durations::kTryAgain : Duration::zero();
  last_tick_ = now;
  std::vector<MemberRecord*> all;
  for (const auto& [number, record] : records_) {
    if (late > Duration::zero()) {
      record->last_heard = std::min(now, record->last_heard + late);
      record->disconnected_at = std::min(now, record->disconnected_at + late);
    }
    all.push_back(record.get());
  }
  for (MemberRecord* record : all) {
    if (record->status != MemberRecord::Status::kHere) continue;
    const auto finding = judge_silence(*record, now, options_.health, probe_);
    if (finding) declare(*record, *finding);
  }
  if (const auto finding = find_deadlock(all, now)) {
    declare(*records_.at(finding->number), *finding);
  }
  for (const Finding& finding : find_stuck(all, now, options_.health)) {
    declare(*records_.at(finding.number), finding);
  }
  const auto lacks_verdicts = [this](const Link& link) TUTTI_REQUIRES(mutex_) {
    return link.num_sent < verdicts_.size();
  };
  if (now >= send_verdicts_at_ && std::ranges::any_of(links_, lacks_verdicts)) {
    broadcast_verdicts(now);
  }
  broadcast(stop_.tick(now));
  cancel_late_streams(now);
}

void JobService::declare(MemberRecord& record, const Finding& finding) {
  const bool ends_it = finding.kind == VerdictKind::kDead || finding.kind == VerdictKind::kStopped;
  if (ends_it) give_up(record, MemberRecord::Status::kGivenUp);
  Verdict verdict;
  verdict.number = verdicts_.size() + 1;
  verdict.kind = finding.kind;
  verdict.who = member_of(record);
  verdict.is_fatal = finding.is_fatal;
  verdict.code = finding.code;
  verdict.message = finding.message;
  verdicts_.push_back(verdict);
  const bool comes_or_goes =
      verdict.kind == VerdictKind::kJoined || verdict.kind == VerdictKind::kLeft;
  const TimePoint now = clock_.now();
  if (verdict.is_fatal || !comes_or_goes || now >= send_verdicts_at_) broadcast_verdicts(now);
}

void JobService::send_verdicts(Link& link) {
  v1::JobEvent event;
  for (; link.num_sent < verdicts_.size(); ++link.num_sent) {
    *event.mutable_history()->add_verdicts() = to_proto(verdicts_[link.num_sent]);
  }
  if (event.has_history()) link.link->send(event);
}

/// Sends verdicts in batches, because in large jobs all members join and leave within a second. One
/// message per pair of members would take a twelfth of the processor time while 64 processes start.
void JobService::broadcast_verdicts(TimePoint now) {
  for (Link& link : links_) send_verdicts(link);
  const auto eighths = static_cast<int>(links_.size() / 8);
  send_verdicts_at_ = deadline_after(now, durations::kTryAgain * eighths);
}

void JobService::broadcast(const v1::JobEvent& event) {
  for (const Link& link : links_) link.link->send(event);
}

void JobService::broadcast(const std::optional<v1::StopProposal>& proposal) {
  if (proposal) broadcast(event_of(*proposal));
}

bool JobService::has_members() const {
  return std::ranges::any_of(records_, [](const auto& entry) {
    return entry.second->status == MemberRecord::Status::kHere;
  });
}

void JobService::wait_until_all_have_left(TimePoint deadline) {
  MutexLock lock(mutex_);
  (void)left_.wait_until(mutex_, deadline,
                         [this]() TUTTI_REQUIRES(mutex_) { return !has_members(); });
}

Member JobService::member_of(const MemberRecord& record) const {
  Member member = record.joined.who;
  member.is_here = record.status == MemberRecord::Status::kHere;
  return member;
}

std::vector<Member> JobService::list_members() const {
  std::map<std::pair<std::string, int>, Member> by_task;
  for (const MemberTask& task : options_.expected) {
    by_task[{task.job, task.index}] = {task, 0, "", 0, false};
  }
  for (const auto& [number, record] : records_) {  // later records replace earlier ones
    const MemberTask& task = record->joined.who.task;
    by_task[{task.job, task.index}] = member_of(*record);
  }
  std::vector<Member> members;
  for (auto& [task, member] : by_task) members.push_back(std::move(member));
  return members;
}

std::vector<Member> JobService::members() const {
  MutexLock lock(mutex_);
  return list_members();
}

std::vector<Verdict> JobService::verdicts_after(std::uint64_t number) const {
  MutexLock lock(mutex_);
  const auto first = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(number, verdicts_.size()));
  return {verdicts_.begin() + first, verdicts_.end()};
}

namespace {

grpc::Status status_of(grpc::ServerContextBase& context, const Error& error) {
  return to_status(context, Error(error.code(), proto_text(error.message())));
}

Error given_up(const MemberRecord& record) {
  return Error(ErrorCode::kUnavailable,
               concat("control: the job has given up on ", record.joined.who.to_string(),
                      "; restart this process"));
}

}  // namespace

/// A call that is answered as soon as its reply is available. gRPC owns the call until OnDone().
class JobService::WaitingCall final : public Reactor {
 public:
  WaitingCall(JobService& service, Context& context, std::uint64_t member,
              std::function<bool()> fill, bool is_for_all)
      : member(member),
        is_for_all(is_for_all),
        service_(service),
        context_(context),
        fill_(std::move(fill)) {}

  /// Finishes and returns true if the reply is available. May delete this call.
  bool finish_if_ready() {
    const bool is_ready = fill_();
    if (is_ready) Finish(grpc::Status::OK);
    return is_ready;
  }
  void fail(const Error& error) { Finish(status_of(context_, error)); }
  /// Finishes a call whose caller has disconnected, unless it is already answered.
  void OnCancel() override {
    MutexLock lock(service_.mutex_);
    if (std::erase(service_.waiting_, this) > 0) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { const std::unique_ptr<WaitingCall> self(this); }

  const std::uint64_t member;
  const bool is_for_all;

 private:
  JobService& service_;
  Context& context_;
  const std::function<bool()> fill_;
};

MemberRecord& JobService::caller(std::uint64_t member) {
  const auto found = records_.find(member);
  if (found == records_.end()) {
    fail(ErrorCode::kInvalidArgument, "control: there is no member with number ", member,
         "; expected the number that Join returned");
  }
  MemberRecord& record = *found->second;
  record.last_heard = clock_.now();
  if (record.status == MemberRecord::Status::kGivenUp) throw given_up(record);
  return record;
}

JobService::Reactor* JobService::answer(Context* context, std::uint64_t member,
                                        const std::function<void(MemberRecord&)>& body) {
  Reactor* const reactor = context->DefaultReactor();
  MutexLock lock(mutex_);
  try {
    body(caller(member));
    reactor->Finish(grpc::Status::OK);
  } catch (const Error& error) {
    reactor->Finish(status_of(*context, error));
  }
  return reactor;
}

JobService::Reactor* JobService::answer_when(Context* context, std::uint64_t member,
                                             std::function<bool()> fill, bool is_for_all) {
  auto call = std::make_unique<WaitingCall>(*this, *context, member, std::move(fill), is_for_all);
  MutexLock lock(mutex_);
  try {
    if (member != 0) (void)caller(member);
    if (!call->finish_if_ready()) waiting_.push_back(call.get());
  } catch (const Error& error) {
    call->fail(error);
  }
  return call.release();
}

void JobService::answer_waiting() {
  const bool are_all_here = std::ranges::all_of(list_members(), &Member::is_here);
  std::erase_if(waiting_, [&](WaitingCall* call) {
    return (are_all_here || !call->is_for_all) && call->finish_if_ready();
  });
}

void JobService::give_up(MemberRecord& record, MemberRecord::Status status) {
  record.status = status;
  left_.notify_all();
  std::erase_if(waiting_, [&](WaitingCall* call) {
    if (call->member != record.number) return false;
    call->fail(given_up(record));
    return true;
  });
  broadcast(stop_.forget(record.number));
}

JobService::Reactor* JobService::Put(Context* context, const v1::PutRequest* request,
                                     v1::PutReply*) {
  return answer(context, request->member(), [&](MemberRecord&) TUTTI_REQUIRES(mutex_) {
    store_.put(request->key(), request->value());
    answer_waiting();
  });
}

JobService::Reactor* JobService::Get(Context* context, const v1::GetRequest* request,
                                     v1::GetReply* reply) {
  return answer_when(context, request->member(), [=, this]() TUTTI_REQUIRES(mutex_) {
    for (const std::string& key : request->keys()) {
      const std::string* const found = store_.find(key);
      if (found != nullptr) (*reply->mutable_values())[key] = *found;
    }
    if (request->keys_size() > 0) return true;
    const std::string* const value = store_.find(request->key());
    if (value != nullptr) reply->set_value(*value);
    return value != nullptr || !request->until_set();
  });
}

JobService::Reactor* JobService::ListMembers(Context* context,
                                             const v1::ListMembersRequest* request,
                                             v1::ListMembersReply* reply) {
  const auto fill = [=, this]() TUTTI_REQUIRES(mutex_) {
    const std::vector<Member> list = list_members();
    const bool is_ready = !request->until_all_are_here() ||
                          std::ranges::all_of(list, [](const Member& m) { return m.is_here; });
    if (!is_ready) return false;
    for (const Member& member : list) *reply->add_members() = to_proto(member);
    return true;
  };
  return answer_when(context, request->member(), fill, true);
}

std::vector<Member> JobService::missing() const {
  MutexLock lock(mutex_);
  if (std::ranges::none_of(waiting_, &WaitingCall::is_for_all)) return {};
  std::vector<Member> members = list_members();
  std::erase_if(members, [](const Member& member) { return member.is_here; });
  return members;
}

JobService::Reactor* JobService::ReportFailure(Context* context,
                                               const v1::ReportFailureRequest* request,
                                               v1::ReportFailureReply*) {
  return answer(context, request->member(), [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    record.has_failed = true;
    const std::string text = concat(record.joined.who.task.to_string(), ": ", request->message());
    // The report may have been resent after a broken connection.
    const auto is_it = [&](const Verdict& verdict) { return verdict.message == text; };
    if (std::ranges::none_of(verdicts_, is_it)) {
      declare(record, {record.number, VerdictKind::kFailed, true,
                       static_cast<ErrorCode>(request->code()), text});
    }
  });
}

JobService::Reactor* JobService::ReportDisconnection(Context* context,
                                                     const v1::ReportDisconnectionRequest* request,
                                                     v1::ReportDisconnectionReply*) {
  return answer(context, request->member(), [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    const MemberTask task{proto_text(request->peer_job()), static_cast<int>(request->peer_index())};
    const MemberRecord* const peer = newest_of(task);
    const std::string who = record.joined.who.task.to_string();
    if (peer == nullptr || peer == &record) {
      fail(ErrorCode::kInvalidArgument, "control: ", who,
           " reported that it lost its connection to ", task.to_string(),
           "; expected the name of another member of the job");
    }
    if (request->last_verdict() > verdicts_.size()) {
      fail(ErrorCode::kInvalidArgument, "control: ", who, " reported last verdict number ",
           request->last_verdict(), "; expected at most ", verdicts_.size());
    }
    // True for a fatal verdict that this member has not received: either the peer's report of this
    // disconnection, or a verdict with a more precise reason.
    const auto came_since = [&](const Verdict& verdict) {
      return verdict.is_fatal && verdict.number > request->last_verdict();
    };
    const bool both_are_here =
        record.status == MemberRecord::Status::kHere && peer->status == MemberRecord::Status::kHere;
    if (both_are_here && std::ranges::none_of(verdicts_, came_since)) {
      declare(record, {record.number, VerdictKind::kDisconnected, true, ErrorCode::kUnavailable,
                       concat(who, " lost its connection to ", task.to_string(), ": ",
                              request->message())});
    }
  });
}

JobService::Reactor* JobService::RequestStop(Context* context,
                                             const v1::RequestStopRequest* request,
                                             v1::RequestStopReply*) {
  return answer(context, request->member(), [&](MemberRecord& from) TUTTI_REQUIRES(mutex_) {
    std::map<std::uint64_t, std::uint64_t> steps;
    for (const auto& [number, record] : records_) {
      // The agreement starts at step 1, not at the members' progress, because progress includes
      // evaluation steps, which stops_after() does not count. Members at a later step answer with
      // their own step.
      if (record->status == MemberRecord::Status::kHere) steps[number] = 1;
    }
    const std::string reason = concat(from.joined.who.task.to_string(), ": ", request->reason());
    broadcast(stop_.request(proto_text(reason), steps, clock_.now()));
  });
}

JobService::Reactor* JobService::Leave(Context* context, const v1::LeaveRequest* request,
                                       v1::LeaveReply*) {
  return answer(context, request->member(), [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    if (record.status == MemberRecord::Status::kLeft) return;
    if (request->has_progress()) note(record, from_proto(request->progress()));
    give_up(record, MemberRecord::Status::kLeft);
    if (!record.has_failed) {
      declare(record,
              {record.number, VerdictKind::kLeft, false, ErrorCode::kOk,
               concat(record.joined.who.to_string(), " left after step ", record.progress.step)});
    }
  });
}

namespace {

/// Limit on the bytes queued for one member; exceeding it cancels the member's stream.

constexpr std::size_t kMostUnsent = std::size_t{64} << 20;

}  // namespace

/// Join stream of one member. gRPC calls On...() from its threads: one thread at a time for reads,
/// and one for writes. Links may outlive gRPC's use of the stream.
class JobService::Stream final : public grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent>,
                                 public MemberLink,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(JobService& service, Context& context)
      : service_(service),
        context_(context),
        deadline_(deadline_after(Clock::system().now(), durations::kUnreachableAfter)) {}
  void begin() { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    if (ok && (has_joined_ ? service_.report(this, incoming_) : join())) {
      StartRead(&incoming_);
      return;
    }
    if (has_joined_) service_.closed(this);
    // The peer disconnected or sent an invalid message.
    finish(ok ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                             "control: expected a join report first, then other reports")
              : grpc::Status::OK);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    unsent_bytes_ -= unsent_.front().ByteSizeLong();
    unsent_.pop_front();
    if (!ok) unsent_.clear();
    write_next();
  }
  void OnDone() override {
    const auto self = shared_from_this();
    {
      MutexLock lock(mutex_);
      is_done_ = true;
    }
    MutexLock lock(service_.mutex_);
    service_.streams_.erase(self);
  }

  void send(const v1::JobEvent& event) override {
    MutexLock lock(mutex_);
    if (is_done_) return;
    unsent_bytes_ += event.ByteSizeLong();
    if (unsent_bytes_ > kMostUnsent) return context_.TryCancel();  // the member is not reading
    unsent_.push_back(event);
    if (!is_writing_) write_next();
  }
  void close() override {
    MutexLock lock(mutex_);
    if (!is_done_) context_.TryCancel();
  }
  /// Finishes after all queued events have been sent.
  void finish(const grpc::Status& status) {
    MutexLock lock(mutex_);
    if (finish_with_) return;
    finish_with_ = status;
    if (!is_writing_) write_next();
  }
  bool is_late(TimePoint now) const { return !has_joined_ && now >= deadline_; }

 private:
  bool join() {
    if (!incoming_.has_join()) return false;
    const grpc::Status status = service_.join(shared_from_this(), incoming_.join());
    if (!status.ok()) finish(to_status(context_, to_error(status)));
    has_joined_ = status.ok();
    return has_joined_;
  }

  void write_next() TUTTI_REQUIRES(mutex_) {
    if (is_finished_) return;
    is_writing_ = !unsent_.empty();
    if (is_writing_) {
      StartWrite(&unsent_.front());
    } else if (finish_with_) {
      is_finished_ = true;
      Finish(*finish_with_);
    }
  }

  JobService& service_;
  Context& context_;
  const TimePoint deadline_;
  std::atomic<bool> has_joined_{false};
  v1::MemberReport incoming_;

  Mutex mutex_;
  std::deque<v1::JobEvent> unsent_ TUTTI_GUARDED_BY(mutex_);
  std::size_t unsent_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_finished_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_done_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_with_ TUTTI_GUARDED_BY(mutex_);
};

grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent>* JobService::Join(Context* context) {
  const auto stream = std::make_shared<Stream>(*this, *context);
  {
    MutexLock lock(mutex_);
    streams_.insert(stream);
  }
  stream->begin();
  return stream.get();
}

void JobService::cancel_late_streams(TimePoint now) {
  for (const auto& stream : streams_) {
    if (stream->is_late(now)) stream->close();
  }
}

void JobService::announce_server_end() {
  MutexLock lock(mutex_);
  broadcast_verdicts(clock_.now());
  v1::JobEvent event;
  event.mutable_server_ends();
  broadcast(event);
  for (const auto& stream : streams_) stream->finish(grpc::Status::OK);
}

// StoreTable: the values of the control store.

namespace {

constexpr const char* kStoreName = "control store";

}  // namespace

const std::string* StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void StoreTable::put(const std::string& key, const std::string& value) {
  check_store_key(kStoreName, key);
  check_store_value(kStoreName, key, value);
  const std::string* const present = find(key);
  const std::size_t before = present == nullptr ? 0 : key.size() + present->size();
  const std::size_t after = bytes_ - before + key.size() + value.size();
  if (after > most_bytes_) {
    fail(ErrorCode::kResourceExhausted, kStoreName, ": no room for '", key, "'; expected at most ",
         most_bytes_, " bytes in all, got ", after, "; use files for large values");
  }
  bytes_ = after;
  values_[key] = value;
}

}  // namespace tutti::internal

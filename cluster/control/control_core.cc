// Members come, ask, stay away and go, and what follows from it.
// SPDX-License-Identifier: Apache-2.0
//
// A *record* is a process that has joined, for as long as the server lives; a *link* is a stream of
// it. A process that lost its stream opens a new one and goes on with the same record; a task that
// was started anew is a new process with a record of its own.
#include "tutti/cluster/control/control_core.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/control/job_messages.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

bool may_come(const ControlServerOptions& options, const MemberTask& task) {
  const auto is_it = [&](const MemberTask& other) { return task.same_task(other); };
  return options.expected.empty() || std::ranges::any_of(options.expected, is_it) ||
         std::ranges::any_of(options.welcome, is_it);
}

v1::Build build_of_server(const ControlServerOptions& options) {
  v1::Build build = make_build(options.job_id, options.secret);
  // A launcher does not train: its processor may be another one.
  if (options.host.job == "launcher") build.clear_numerics();
  return build;
}

grpc::Status refused(const std::string& why) {
  return {grpc::StatusCode::FAILED_PRECONDITION, proto_text(why)};
}

std::uint64_t milliseconds_of(Duration duration) {
  return static_cast<std::uint64_t>(duration / std::chrono::milliseconds(1));
}

v1::JobEvent event_of(const Verdict& verdict) {
  v1::JobEvent event;
  *event.mutable_verdict() = to_proto(verdict);
  return event;
}

v1::JobEvent event_of(const v1::StopProposal& proposal) {
  v1::JobEvent event;
  *event.mutable_stop_proposal() = proposal;
  return event;
}

}  // namespace

ControlCore::ControlCore(ControlServerOptions options, ProcessProbe probe)
    : options_(std::move(options)),
      probe_(std::move(probe)),
      build_(build_of_server(options_)),
      stop_(durations::kSilentAfter) {}

std::string ControlCore::refusal_of(const v1::Build& build, const JoiningProcess& process) {
  const MemberTask& task = process.who.task;
  const PeerHello theirs = hello_of(build, task);
  if (auto reason = internal::refusal_of(build_, options_.host, build, task); !reason.empty()) {
    return reason;
  }
  if (!may_come(options_, task)) {
    return concat(task.to_string(), " is no task of this job; expected one of ",
                  tutti::join(options_.expected), "; check the task in TF_CONFIG");
  }
  for (const auto& [number, record] : records_) {
    if (record->status != MemberRecord::Status::kHere) continue;
    v1::Build other = build;
    other.set_numerics(record->numerics);
    const auto reason = incompatibility(hello_of(other, record->joined.who.task), theirs);
    if (reason) return *reason;
  }
  const MemberRecord* const before = newest_of(task);
  if (before != nullptr && process.who.incarnation < before->joined.who.incarnation) {
    return concat(task.to_string(), " was restarted ", before->joined.who.incarnation,
                  " times already; this process is an older one (", process.who.incarnation, ")");
  }
  return "";
}

ControlCore::Link* ControlCore::find(const MemberLink* link) {
  const auto found =
      std::ranges::find_if(links_, [link](const Link& l) { return l.link.get() == link; });
  return found == links_.end() ? nullptr : &*found;
}

ControlCore::Link* ControlCore::find(const MemberRecord& record) {
  const auto found =
      std::ranges::find_if(links_, [&record](const Link& l) { return l.record == &record; });
  return found == links_.end() ? nullptr : &*found;
}

MemberRecord* ControlCore::newest_of(const MemberTask& task) {
  MemberRecord* newest = nullptr;
  for (const auto& [number, record] : records_) {
    if (record->joined.who.task.same_task(task)) newest = record.get();
  }
  return newest;
}

v1::JoinReply ControlCore::reply_to(const MemberRecord* record) const {
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

void ControlCore::tell_state(MemberLink& link, std::uint64_t num_verdicts) {
  for (const Verdict& verdict : verdicts_) {
    if (verdict.number > num_verdicts) link.send(event_of(verdict));
  }
  if (stop_.current()) link.send(event_of(*stop_.current()));
}

grpc::Status ControlCore::join(std::shared_ptr<MemberLink> link, const v1::JoinRequest& request,
                               TimePoint now) {
  MutexLock lock(mutex_);
  v1::JobEvent welcome;
  if (request.observes()) {
    *welcome.mutable_joined() = reply_to(nullptr);
    link->send(welcome);
    tell_state(*link, request.num_verdicts());
    links_.push_back({std::move(link), nullptr});
    return grpc::Status::OK;
  }
  const JoiningProcess process = from_proto(request);
  const std::string refusal = refusal_of(request.build(), process);
  if (!refusal.empty()) return refused(refusal);
  MemberRecord* record = newest_of(process.who.task);
  const bool is_same_process = record && record->joined.process == process.process;
  if (is_same_process && record->status != MemberRecord::Status::kHere) {
    return refused(concat(record->joined.who.to_string(),
                          " was given up and cannot come back; start it anew"));
  }
  if (record && !is_same_process && record->status == MemberRecord::Status::kHere) {
    const bool is_gone = probe_(record->joined).kind == ProcessState::Kind::kIsGone;
    if (!is_gone && process.who.incarnation <= record->joined.who.incarnation) {
      return refused(concat(record->joined.who.to_string(),
                            " is here already; expected one process per task; check the task "
                            "index in TF_CONFIG, or end that process"));
    }
    declare(*record, {record->number, VerdictKind::kDead, true, ErrorCode::kUnavailable,
                      concat(record->joined.who.to_string(), " died: a new process has its task")});
  }
  if (!is_same_process) record = &add_record(request.build(), process, now);
  if (Link* const old = find(*record)) {  // its end has not been seen yet
    old->record = nullptr;
    old->link->close();
  }
  record->is_connected = true;
  record->last_heard = now;
  *welcome.mutable_joined() = reply_to(record);
  link->send(welcome);
  // The verdict on its own joining has been broadcast before it had a link.
  tell_state(*link, request.num_verdicts());
  links_.push_back({std::move(link), record});
  answer_if_all_are_here();
  return grpc::Status::OK;
}

MemberRecord& ControlCore::add_record(const v1::Build& build, const JoiningProcess& process,
                                      TimePoint now) {
  // A process that was started again counts its collectives anew: nothing of the one before it is
  // missed.
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

void ControlCore::note(MemberRecord& record, const MemberProgress& progress, TimePoint now) {
  record.has_stood_still = has_same_calls(record.progress, progress);
  record.progress = progress;
  record.progress_at = now;
}

bool ControlCore::report(const MemberLink* link, const v1::MemberReport& report, TimePoint now) {
  MutexLock lock(mutex_);
  Link* const from = find(link);
  if (from == nullptr || from->record == nullptr) return false;
  MemberRecord& record = *from->record;
  record.last_heard = now;
  // Others may have taken the place of one that was given up: it can no longer change anything.
  if (record.status == MemberRecord::Status::kGivenUp) return true;
  if (report.has_progress()) {
    note(record, from_proto(report.progress()), now);
    v1::JobEvent heard;
    heard.mutable_progress();
    from->link->send(heard);
    return true;
  }
  if (!report.has_stop_answer()) return false;
  broadcast(stop_.answer(record.number, report.stop_answer(), now));
  return true;
}

MemberRecord& ControlCore::caller(std::uint64_t member, TimePoint now) {
  const auto found = records_.find(member);
  if (found == records_.end()) {
    fail(ErrorCode::kInvalidArgument, "control: there is no member number ", member,
         "; expected the one that Join gave");
  }
  MemberRecord& record = *found->second;
  record.last_heard = now;
  if (record.status == MemberRecord::Status::kGivenUp) {
    fail(ErrorCode::kUnavailable, "control: ", record.joined.who.to_string(),
         " was given up by the job; start it anew");
  }
  return record;
}

void ControlCore::check_caller_or_observer(std::uint64_t member, TimePoint now) {
  if (member != 0) (void)caller(member, now);
}

grpc::Status ControlCore::answer_to(std::uint64_t member, TimePoint now,
                                    const std::function<void(MemberRecord&)>& body) {
  MutexLock lock(mutex_);
  try {
    body(caller(member, now));
    return grpc::Status::OK;
  } catch (const Error& error) {
    return status_of(error);
  }
}

grpc::Status ControlCore::put(const v1::PutRequest& request, TimePoint now) {
  return answer_to(request.member(), now, [&](MemberRecord&) TUTTI_REQUIRES(mutex_) {
    store_.put({request.member(), request.request()}, request.key(), request.value());
    answer_waiters(request.key());
  });
}

grpc::Status ControlCore::remove(const v1::DeleteRequest& request, v1::DeleteReply& reply,
                                 TimePoint now) {
  return answer_to(request.member(), now, [&](MemberRecord&) TUTTI_REQUIRES(mutex_) {
    reply.set_was_there(store_.remove({request.member(), request.request()}, request.key()));
  });
}

grpc::Status ControlCore::compare_and_set(const v1::CompareAndSetRequest& request,
                                          v1::CompareAndSetReply& reply, TimePoint now) {
  return answer_to(request.member(), now, [&](MemberRecord&) TUTTI_REQUIRES(mutex_) {
    std::optional<std::string> expected;
    if (request.has_expected()) expected = request.expected();
    reply.set_is_set(store_.compare_and_set({request.member(), request.request()}, request.key(),
                                            expected, request.value()));
    answer_waiters(request.key());
  });
}

void ControlCore::get(const v1::GetRequest& request, v1::GetReply& reply, const Answer& answer,
                      TimePoint now) {
  MutexLock lock(mutex_);
  try {
    check_caller_or_observer(request.member(), now);
  } catch (const Error& error) {
    return answer(status_of(error));
  }
  const std::string* const value = store_.find(request.key());
  if (value == nullptr && request.until_set()) {
    key_waiters_.push_back({request.member(), request.key(), &reply, answer});
    return;
  }
  if (value != nullptr) reply.set_value(*value);
  answer(grpc::Status::OK);
}

void ControlCore::answer_waiters(const std::string& key) {
  const std::string* const value = store_.find(key);
  if (value == nullptr) return;
  for (const KeyWaiter& waiter : key_waiters_) {
    if (waiter.key != key) continue;
    waiter.reply->set_value(*value);
    waiter.answer(grpc::Status::OK);
  }
  std::erase_if(key_waiters_, [&key](const KeyWaiter& waiter) { return waiter.key == key; });
}

void ControlCore::list_members(const v1::ListMembersRequest& request, v1::ListMembersReply& reply,
                               const Answer& answer, TimePoint now) {
  MutexLock lock(mutex_);
  try {
    check_caller_or_observer(request.member(), now);
  } catch (const Error& error) {
    return answer(status_of(error));
  }
  if (request.until_all_are_here()) {
    members_waiters_.push_back({request.member(), &reply, answer});
    return answer_if_all_are_here();
  }
  for (const Member& member : list_members()) *reply.add_members() = to_proto(member);
  answer(grpc::Status::OK);
}

void ControlCore::answer_if_all_are_here() {
  const std::vector<Member> list = list_members();
  if (!std::ranges::all_of(list, [](const Member& member) { return member.is_here; })) return;
  for (const MembersWaiter& waiter : std::exchange(members_waiters_, {})) {
    for (const Member& member : list) *waiter.reply->add_members() = to_proto(member);
    waiter.answer(grpc::Status::OK);
  }
}

void ControlCore::cancel(const void* reply) {
  MutexLock lock(mutex_);
  const auto ends = [reply](const auto& waiter) {
    if (waiter.reply != reply) return false;
    waiter.answer(grpc::Status::CANCELLED);
    return true;
  };
  std::erase_if(key_waiters_, ends);
  std::erase_if(members_waiters_, ends);
}

void ControlCore::closed(const MemberLink* link, TimePoint now) {
  MutexLock lock(mutex_);
  Link* const found = find(link);
  if (found == nullptr) return;
  MemberRecord* const record = found->record;
  links_.erase(links_.begin() + (found - links_.data()));
  if (record == nullptr || record->status != MemberRecord::Status::kHere) return;
  record->is_connected = false;
  record->disconnected_at = now;
  if (record->has_failed) {
    give_up(*record, MemberRecord::Status::kGivenUp);  // the others know already
  } else if (const auto finding = judge_silence(*record, now, options_.health, probe_)) {
    declare(*record, *finding);
  }
}

void ControlCore::tick(TimePoint now) {
  MutexLock lock(mutex_);
  // A server that was paused itself heard nothing meanwhile, for which no member is to blame.
  const Duration pause = last_tick_ ? now - *last_tick_ : Duration::zero();
  last_tick_ = now;
  const bool was_paused = pause > 4 * durations::kTick;
  std::vector<MemberRecord*> all;
  for (const auto& [number, record] : records_) {
    if (was_paused) {
      record->last_heard = std::min(now, record->last_heard + pause);
      record->disconnected_at = std::min(now, record->disconnected_at + pause);
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
  broadcast(stop_.tick(now));
}

Duration ControlCore::poll_after() const {
  MutexLock lock(mutex_);
  const bool one_is_away = std::ranges::any_of(records_, [](const auto& entry) {
    return entry.second->status == MemberRecord::Status::kHere && !entry.second->is_connected;
  });
  return one_is_away ? durations::kTryAgain : durations::kTick;
}

void ControlCore::declare(MemberRecord& record, const Finding& finding) {
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
  broadcast(event_of(verdict));
}

void ControlCore::give_up(MemberRecord& record, MemberRecord::Status status) {
  record.status = status;
  left_.notify_all();
  store_.forget(record.number);
  const auto ends = [&](const auto& waiter) {
    if (waiter.member != record.number) return false;
    waiter.answer(status_of(
        Error(ErrorCode::kUnavailable, concat("control: ", record.joined.who.to_string(),
                                              " was given up by the job; start it anew"))));
    return true;
  };
  std::erase_if(key_waiters_, ends);
  std::erase_if(members_waiters_, ends);
  broadcast(stop_.forget(record.number));
}

void ControlCore::broadcast(const v1::JobEvent& event) {
  for (const Link& link : links_) link.link->send(event);
}

void ControlCore::broadcast(const std::optional<v1::StopProposal>& proposal) {
  if (proposal) broadcast(event_of(*proposal));
}

bool ControlCore::is_anybody_here() const {
  return std::ranges::any_of(records_, [](const auto& entry) {
    return entry.second->status == MemberRecord::Status::kHere;
  });
}

void ControlCore::wait_until_all_have_left(TimePoint deadline) {
  MutexLock lock(mutex_);
  (void)left_.wait_until(mutex_, deadline,
                         [this]() TUTTI_REQUIRES(mutex_) { return !is_anybody_here(); });
}

void ControlCore::say_server_ends() {
  MutexLock lock(mutex_);
  v1::JobEvent event;
  event.mutable_server_ends();
  broadcast(event);
}

Member ControlCore::member_of(const MemberRecord& record) const {
  Member member = record.joined.who;
  member.is_here = record.status == MemberRecord::Status::kHere;
  return member;
}

std::vector<Member> ControlCore::list_members() const {
  std::map<std::pair<std::string, int>, Member> by_task;
  for (const MemberTask& task : options_.expected) {
    by_task[{task.job, task.index}] = {task, 0, "", 0, false};
  }
  for (const auto& [number, record] : records_) {  // later ones replace earlier ones
    const MemberTask& task = record->joined.who.task;
    by_task[{task.job, task.index}] = member_of(*record);
  }
  std::vector<Member> members;
  for (auto& [task, member] : by_task) members.push_back(std::move(member));
  return members;
}

std::vector<Member> ControlCore::members() const {
  MutexLock lock(mutex_);
  return list_members();
}

std::vector<Member> ControlCore::missing() const {
  MutexLock lock(mutex_);
  if (members_waiters_.empty()) return {};
  std::vector<Member> members = list_members();
  std::erase_if(members, [](const Member& member) { return member.is_here; });
  return members;
}

std::vector<Verdict> ControlCore::verdicts_after(std::uint64_t number) const {
  MutexLock lock(mutex_);
  const auto first = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(number, verdicts_.size()));
  return {verdicts_.begin() + first, verdicts_.end()};
}

}  // namespace tutti::internal

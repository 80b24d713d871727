// Messages of members, taken one at a time, and what follows from them.
// SPDX-License-Identifier: Apache-2.0
//
// A *record* is a process that has joined, for as long as the server lives; a *link* is a
// connection of it. A process that lost its connection opens a new one and goes on with the same
// record; a task that was started anew is a new process with a record of its own.
#include "tutti/cluster/control/control_core.h"

#include <algorithm>
#include <utility>

#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(50);
constexpr Duration kTickWhileSomebodyIsAway = std::chrono::milliseconds(10);

bool may_come(const ControlServerOptions& options, const std::string& job, int index) {
  const auto is_it = [&](const MemberTask& task) { return task.job == job && task.index == index; };
  return options.expected.empty() || std::ranges::any_of(options.expected, is_it) ||
         std::ranges::any_of(options.welcome, is_it);
}

}  // namespace

ControlCore::ControlCore(ControlServerOptions options, ProcessProbe probe)
    : options_(std::move(options)),
      probe_(std::move(probe)),
      stop_(options_.health.acknowledge_within) {}

std::string ControlCore::refusal_of(const PeerHello& hello) {
  MutexLock lock(mutex_);
  const std::string who = concat(hello.job, " ", hello.index);
  if (!may_come(options_, hello.job, hello.index)) {
    return concat(who, " is no task of this job; expected one of ", join(options_.expected),
                  "; check the task in TF_CONFIG");
  }
  for (const auto& [number, record] : records_) {
    const bool counts = record->status == MemberRecord::Status::kHere && !record->numerics.empty();
    if (!counts || hello.numerics.empty() || record->numerics == hello.numerics) continue;
    PeerHello other = hello;
    other.job = record->joined.who.task.job;
    other.index = record->joined.who.task.index;
    other.numerics = record->numerics;
    return incompatibility(other, hello).value_or("numerics differ");
  }
  MemberRecord* const before = newest_of(hello.job, hello.index);
  if (before == nullptr) return "";
  if (hello.incarnation < before->joined.who.incarnation) {
    return concat(who, " was restarted ", before->joined.who.incarnation,
                  " times already; this process is an older one (", hello.incarnation, ")");
  }
  return "";
}

void ControlCore::opened(std::shared_ptr<MemberLink> link, const PeerHello& hello) {
  MutexLock lock(mutex_);
  links_.push_back({std::move(link), hello, nullptr});
}

ControlCore::Link* ControlCore::find(const MemberLink* link) {
  const auto found =
      std::ranges::find_if(links_, [link](const Link& l) { return l.link.get() == link; });
  return found == links_.end() ? nullptr : &*found;
}

ControlCore::Link* ControlCore::find(std::uint64_t member) {
  const auto found = std::ranges::find_if(links_, [member](const Link& l) {
    return l.record != nullptr && l.record->number == member;
  });
  return found == links_.end() ? nullptr : &*found;
}

MemberRecord* ControlCore::newest_of(const std::string& job, int index) {
  MemberRecord* newest = nullptr;
  for (const auto& [number, record] : records_) {
    const MemberTask& task = record->joined.who.task;
    if (task.job == job && task.index == index) newest = record.get();
  }
  return newest;
}

bool ControlCore::received(const MemberLink* link, const Message& message, TimePoint now) {
  MutexLock lock(mutex_);
  Link* const from = find(link);
  if (from == nullptr) return false;
  const bool is_join = std::holds_alternative<JoinRequest>(message.body);
  if (is_join == (from->record != nullptr)) return false;  // first, and only then
  if (from->record) from->record->last_heard = now;
  if (is_fenced(*from, message)) return true;
  return std::visit(
      [&](const auto& body) TUTTI_REQUIRES(mutex_) {
        if constexpr (requires { take(*from, message.id, body, now); }) {
          take(*from, message.id, body, now);
          return true;
        } else {
          return false;  // what only a server says
        }
      },
      message.body);
}

bool ControlCore::is_fenced(const Link& link, const Message& message) {
  const MemberRecord* const record = link.record;
  if (!record || record->status != MemberRecord::Status::kGivenUp) return false;
  // Others may have taken its place meanwhile: it can no longer change anything.
  if (message.id != 0) {
    link.link->send({message.id, StoreReply{ErrorCode::kUnavailable,
                                            concat("control: ", record->joined.who.to_string(),
                                                   " was given up by the job; start it anew"),
                                            std::nullopt, false}});
  }
  return true;
}

void ControlCore::take(Link& link, std::uint64_t id, const JoinRequest& request, TimePoint now) {
  JoinReply reply;
  reply.host.task = options_.host;
  reply.host.pid = this_process().pid;
  reply.host.host = this_process().host;
  reply.host_start_time = this_process().start_time;
  reply.host_machine = this_process().machine;
  reply.heartbeat_ms =
      static_cast<std::uint64_t>(options_.health.heartbeat_every / std::chrono::milliseconds(1));
  reply.silent_ms =
      static_cast<std::uint64_t>(options_.health.silent_after / std::chrono::milliseconds(1));
  reply.unreachable_ms =
      static_cast<std::uint64_t>(options_.health.unreachable_after / std::chrono::milliseconds(1));
  const MemberTask& task = request.who.task;
  const auto refuse = [&](const std::string& why) TUTTI_REQUIRES(mutex_) {
    reply.code = ErrorCode::kFailedPrecondition;
    reply.text = why;
    link.link->send({id, reply});
  };
  if (task.job != link.hello.job || task.index != link.hello.index) {
    return refuse("the task is not the one of the handshake");
  }
  MemberRecord* record = newest_of(task.job, task.index);
  const bool is_same_process = record && record->joined.process == request.process;
  if (is_same_process && record->status != MemberRecord::Status::kHere) {
    return refuse(concat(record->joined.who.to_string(),
                         " was given up and cannot come back; "
                         "start it anew"));
  }
  if (record && !is_same_process && record->status == MemberRecord::Status::kHere) {
    const bool is_gone = probe_(record->joined).kind == ProcessState::Kind::kIsGone;
    if (!is_gone && request.who.incarnation <= record->joined.who.incarnation) {
      return refuse(concat(record->joined.who.to_string(),
                           " is here already; expected one process per task; check the task index "
                           "in TF_CONFIG, or end that process"));
    }
    declare(*record, {record->number, VerdictKind::kDead, true, ErrorCode::kUnavailable,
                      concat(record->joined.who.to_string(), " died: a new process has its task")});
  }
  if (!is_same_process) record = &add_record(link, request, now);
  if (Link* const old = find(record->number)) {  // its end has not been seen yet
    old->record = nullptr;
    old->link->close();
  }
  link.record = record;
  record->is_connected = true;
  record->last_heard = now;
  link.link->send({id, reply});
  let_in(link, request);
}

MemberRecord& ControlCore::add_record(const Link& link, const JoinRequest& request, TimePoint now) {
  // A process that was started again counts its collectives anew: nobody misses the one before it.
  const MemberTask& task = request.who.task;
  MemberRecord* const before = newest_of(task.job, task.index);
  if (before && before->joined.who.incarnation < request.who.incarnation) {
    before->progress.groups.clear();
  }
  auto record = std::make_unique<MemberRecord>();
  record->number = ++num_joined_;
  record->joined = request;
  record->joined.who.is_here = true;
  record->numerics = link.hello.numerics;
  record->progress_at = now;
  MemberRecord& added = *record;
  records_.emplace(added.number, std::move(record));
  const std::uint64_t restarts = request.who.incarnation;
  declare(added, {added.number, VerdictKind::kJoined, false, ErrorCode::kOk,
                  concat(added.joined.who.to_string(), " joined",
                         restarts > 0 ? concat(" after restart ", restarts) : "")});
  return added;
}

void ControlCore::let_in(Link& link, const JoinRequest& request) {
  // The verdict on its own joining has been broadcast before it had a link.
  for (const Verdict& verdict : verdicts_) {
    if (verdict.number > request.num_verdicts) link.link->send({0, VerdictNews{verdict}});
  }
  if (stop_.current()) link.link->send({0, *stop_.current()});
  answer_if_all_are_here();
}

void ControlCore::take(Link& link, std::uint64_t id, const StoreRequest& request, TimePoint) {
  for (const StoreTable::Answer& answer : store_.apply(link.record->number, id, request)) {
    if (Link* const to = find(answer.member)) to->link->send({answer.id, answer.reply});
  }
}

void ControlCore::take(Link& link, std::uint64_t id, const MembersRequest& request, TimePoint) {
  if (!request.until_all_are_here) {
    link.link->send({id, MembersReply{list_members()}});
    return;
  }
  const std::uint64_t member = link.record->number;
  const auto is_it = [&](const Waiter& w) { return w.member == member && w.id == id; };
  if (std::ranges::none_of(waiters_, is_it)) waiters_.push_back({member, id});
  answer_if_all_are_here();
}

void ControlCore::answer_if_all_are_here() {
  const std::vector<Member> list = list_members();
  if (!std::ranges::all_of(list, [](const Member& member) { return member.is_here; })) return;
  for (const Waiter& waiter : std::exchange(waiters_, {})) {
    if (Link* const to = find(waiter.member)) to->link->send({waiter.id, MembersReply{list}});
  }
}

void ControlCore::take(Link& link, std::uint64_t, const Heartbeat& heartbeat, TimePoint now) {
  MemberRecord& record = *link.record;
  record.has_stood_still = has_same_calls(record.progress, heartbeat.progress);
  record.progress = heartbeat.progress;
  record.progress_at = now;
  link.link->send({0, HeartbeatReply{}});
}

void ControlCore::take(Link& link, std::uint64_t id, const FailureReport& report, TimePoint) {
  MemberRecord& record = *link.record;
  record.has_failed = true;
  const std::string text = concat(record.joined.who.task.to_string(), ": ", report.text);
  // After a broken connection it may come twice.
  const auto is_it = [&](const Verdict& verdict) { return verdict.message == text; };
  if (std::ranges::none_of(verdicts_, is_it)) {
    declare(record, {record.number, VerdictKind::kFailed, true, report.code, text});
  }
  link.link->send({id, StoreReply{}});
}

void ControlCore::take(Link& link, std::uint64_t id, const StopRequest& request, TimePoint now) {
  std::map<std::uint64_t, std::uint64_t> steps;
  for (const auto& [number, record] : records_) {
    // Not the progress: its steps count evaluation, too, those of stops_after() do not. Members
    // that are further answer with their own step.
    if (record->status == MemberRecord::Status::kHere) steps[number] = 1;
  }
  const std::string reason = concat(link.record->joined.who.task.to_string(), ": ", request.reason);
  broadcast(stop_.request(reason, steps, now));
  link.link->send({id, StoreReply{}});
}

void ControlCore::take(Link& link, std::uint64_t, const StopAnswer& answer, TimePoint now) {
  broadcast(stop_.answer(link.record->number, answer, now));
}

void ControlCore::take(Link& link, std::uint64_t id, const GoodBye&, TimePoint) {
  MemberRecord& record = *link.record;
  const std::string who = record.joined.who.to_string();
  give_up(record, MemberRecord::Status::kLeft);
  if (!record.has_failed) {
    declare(record, {record.number, VerdictKind::kLeft, false, ErrorCode::kOk,
                     concat(who, " left after step ", record.progress.step)});
  }
  link.link->send({id, StoreReply{}});
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
  // A server that was paused itself heard nobody meanwhile, which is nobody's fault.
  const Duration pause = last_tick_ ? now - *last_tick_ : Duration::zero();
  last_tick_ = now;
  const bool was_paused = pause > 4 * kTick;
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
  if (const auto finding = find_deadlock(all, now, options_.health)) {
    declare(*records_.at(finding->number), *finding);
  }
  for (const Finding& finding : find_stuck(all, now, options_.health)) {
    declare(*records_.at(finding.number), finding);
  }
  broadcast(stop_.tick(now));
}

Duration ControlCore::poll_after() const {
  MutexLock lock(mutex_);
  const bool somebody_is_away = std::ranges::any_of(records_, [](const auto& entry) {
    return entry.second->status == MemberRecord::Status::kHere && !entry.second->is_connected;
  });
  return somebody_is_away ? kTickWhileSomebodyIsAway : kTick;
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
  broadcast(Message{0, VerdictNews{verdict}});
}

void ControlCore::give_up(MemberRecord& record, MemberRecord::Status status) {
  record.status = status;
  left_.notify_all();
  store_.forget(record.number);
  std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.member == record.number; });
  broadcast(stop_.forget(record.number));
}

void ControlCore::broadcast(const Message& message) {
  for (const Link& link : links_) {
    if (link.record != nullptr) link.link->send(message);
  }
}

void ControlCore::broadcast(const std::optional<StopProposal>& proposal) {
  if (proposal) broadcast(Message{0, *proposal});
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

void ControlCore::say_server_leaves() {
  MutexLock lock(mutex_);
  broadcast(Message{0, ServerLeaves{}});
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
  if (waiters_.empty()) return {};
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

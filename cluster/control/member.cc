// Implements Member, ProgressTracker and the rules of failure detection.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/member.h"

#include <algorithm>

#include "core/names.h"

namespace tutti {

std::string MemberTask::to_string() const { return concat(job, " ", index); }

std::string Member::to_string() const {
  std::string text = task.to_string();
  const bool is_elsewhere = !host.empty() && host != internal::this_process().host;
  std::string details = task.address;
  const auto add = [&details](const std::string& part) {
    details += concat(details.empty() ? "" : ", ", part);
  };
  if (is_elsewhere) add(concat("on ", host));
  if (pid != 0) add(concat("pid ", pid));
  return details.empty() ? text : concat(text, " (", details, ")");
}

std::string_view to_string(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::kDead:
      return "dead";
    case VerdictKind::kStopped:
      return "stopped";
    case VerdictKind::kStuck:
      return "stuck";
    case VerdictKind::kFailed:
      return "failed";
    case VerdictKind::kLeft:
      return "left";
    case VerdictKind::kJoined:
      return "joined";
    case VerdictKind::kDisconnected:
      return "disconnected";
  }
  return "unknown";
}

Error to_error(const Verdict& verdict) { return Error(verdict.code, verdict.message); }

void ProgressTracker::set_step(std::uint64_t step) {
  MutexLock lock(mutex_);
  step_ = step;
}

void ProgressTracker::set_phase(std::string_view phase) {
  MutexLock lock(mutex_);
  phase_ = phase;
}

void ProgressTracker::watch(const std::string& group, std::function<GroupProgress()> source) {
  MutexLock lock(mutex_);
  ended_.erase(group);
  const auto old = sources_.find(group);
  if (!source && old != sources_.end()) {
    GroupProgress last = old->second();
    last.group = group;
    last.finished = last.entered;  // so that this process does not appear to be waiting
    ended_[group] = std::move(last);
  }
  if (old != sources_.end()) sources_.erase(old);
  if (source) sources_[group] = std::move(source);
}

void ProgressTracker::remove_ended() {
  MutexLock lock(mutex_);
  ended_.clear();
}

MemberProgress ProgressTracker::progress() {
  MutexLock lock(mutex_);
  MemberProgress progress{step_, phase_, {}};
  for (const auto& [group, source] : sources_) {
    progress.groups.push_back(source());
    progress.groups.back().group = group;
  }
  for (const auto& [group, last] : ended_) progress.groups.push_back(last);
  return progress;
}

}  // namespace tutti

namespace tutti::internal {

namespace {

using Kind = ProcessState::Kind;

/// Grace period after a rank has left, during which its last calls may still be running.
constexpr Duration kLeaversGrace = durations::kHeartbeatEvery;

Finding dead(const MemberRecord& record, const std::string& how) {
  return {record.number, VerdictKind::kDead, true, ErrorCode::kUnavailable,
          concat(record.joined.who.to_string(), " died: ", how)};
}

std::optional<Finding> judge_disconnected(const MemberRecord& record, TimePoint now,
                                          const HealthOptions& options, const ProcessState& state) {
  const Duration away = now - record.disconnected_at;
  if (state.kind == Kind::kIsGone) {
    return dead(record, "its connection closed and the process has exited");
  }
  // If the process is still running on this machine, it has only lost its connection and may
  // reconnect.
  const Duration limit = state.kind == Kind::kUnknown ? durations::kReconnectWithin
                                                      : longest_silence(state, options.silent_after,
                                                                        options.unreachable_after);
  if (away < limit) return std::nullopt;
  const std::string letter =
      state.kind == Kind::kUnknown ? "" : concat(" (its process is in state ", state.letter, ")");
  return dead(record, concat("its connection closed, and it did not open a new one within ",
                             seconds_text(away), " s", letter));
}

/// Position of a member in the sequence of calls of one group, at one point in time.
struct Position {
  MemberRecord* record = nullptr;
  const GroupProgress* group = nullptr;
  Duration since{};  // time since the member entered or finished its last collective
  bool is_inside() const { return group->entered > group->finished; }
  std::string name() const { return record->joined.who.task.to_string(); }
};

std::string place_of(const Position& position, TimePoint now) {
  const std::string time = seconds_text(position.since);
  if (position.is_inside()) {
    return concat("has waited ", time, " s in ", position.group->call);
  }
  for (const GroupProgress& other : position.record->progress.groups) {
    if (other.entered <= other.finished) continue;
    const Duration since = other.since + (now - position.record->progress_at);
    return concat("has waited ", seconds_text(since), " s in ", other.call, " of group '",
                  other.group, "'");
  }
  const std::string& phase = position.record->progress.phase;
  return concat("has been in user code for ", time, " s",
                phase.empty() ? "" : concat(" (", phase, ")"),
                position.group->call.empty() ? ", before its first collective"
                                             : concat(", after ", position.group->call));
}

struct Wait {
  std::vector<std::string> waiters;
  std::string call;
  std::uint64_t number = 0;
  Duration longest{};
};

/// Returns the waiting members of the group's newest collective.
std::optional<Wait> newest_wait(const std::vector<Position>& positions) {
  Wait wait;
  for (const Position& p : positions) wait.number = std::max(wait.number, p.group->entered);
  for (const Position& p : positions) {
    const bool waits = p.group->entered == wait.number && p.is_inside() &&
                       p.record->status == MemberRecord::Status::kHere;
    if (!waits) continue;
    wait.waiters.push_back(p.name());
    wait.call = p.group->call;
    wait.longest = std::max(wait.longest, p.since);
  }
  if (wait.waiters.empty()) return std::nullopt;
  std::ranges::sort(wait.waiters);  // the order of joining is random
  return wait;
}

std::string describe_wait(const Wait& wait) {
  return concat(join(wait.waiters), wait.waiters.size() == 1 ? " waits" : " wait", " in ",
                wait.call);
}

std::optional<Finding> judge_missing(const Position& p, const Wait& wait, TimePoint now,
                                     const HealthOptions& options) {
  MemberRecord& record = *p.record;
  const std::pair<std::string, std::uint64_t> key{p.group->group, wait.number};
  const std::string who = record.joined.who.to_string();
  if (record.status == MemberRecord::Status::kLeft) {
    if (wait.longest < kLeaversGrace || !record.aborted.insert(key).second) return std::nullopt;
    return Finding{
        record.number, VerdictKind::kLeft, true, ErrorCode::kUnavailable,
        concat(who, " has left the job in step ", record.progress.step, ", but ",
               describe_wait(wait),
               " for it; it ended normally; expected the same number of steps on all workers")};
  }
  const bool is_fatal = wait.longest >= options.abort_stuck_after;
  if (!is_fatal && wait.longest < options.warn_stuck_after) return std::nullopt;
  if (!(is_fatal ? record.aborted : record.warned).insert(key).second) return std::nullopt;
  return Finding{
      record.number, VerdictKind::kStuck, is_fatal, ErrorCode::kDeadlineExceeded,
      concat(who, is_fatal ? " did not join: " : " is late: ", join(wait.waiters),
             wait.waiters.size() == 1 ? " has" : " have", " waited ", seconds_text(wait.longest),
             " s in ", wait.call, " (group '", p.group->group, "', step ", record.progress.step,
             "); ", p.name(), " ", place_of(p, now))};
}

}  // namespace

Duration longest_silence(const ProcessState& state, Duration silent_after,
                         Duration unreachable_after) {
  const bool is_known = state.kind == Kind::kIsStopped || state.kind == Kind::kIsGone;
  // In other states, the cause may be temporary: a busy processor, a process that has just been
  // continued, or a silent link.
  return is_known ? silent_after : unreachable_after;
}

std::optional<Finding> judge_silence(const MemberRecord& record, TimePoint now,
                                     const HealthOptions& options, const ProcessProbe& probe) {
  if (!record.is_connected) return judge_disconnected(record, now, options, probe(record.joined));
  const Duration silence = now - record.last_heard;
  if (silence < options.silent_after) return std::nullopt;
  const ProcessState state = probe(record.joined);
  const std::string who = record.joined.who.to_string();
  const std::string time = seconds_text(silence);
  if (state.kind == Kind::kIsGone) return dead(record, "the process has exited");
  if (state.kind == Kind::kIsStopped) {
    return Finding{record.number, VerdictKind::kStopped, true, ErrorCode::kUnavailable,
                   concat(who, " is stopped: state ", state.letter, ", no heartbeat for ", time,
                          " s; try: kill -CONT ", record.joined.who.pid)};
  }
  if (silence < longest_silence(state, options.silent_after, options.unreachable_after)) {
    return std::nullopt;
  }
  if (state.is_busy()) return std::nullopt;  // the process may be too busy to send heartbeats
  const std::string letter = state.kind == Kind::kRuns
                                 ? concat(", though its process is in state ", state.letter)
                                 : std::string(", and its process is on another machine");
  return Finding{record.number, VerdictKind::kStopped, true, ErrorCode::kUnavailable,
                 concat(who, " is silent: no heartbeat for ", time, " s", letter)};
}

std::vector<Finding> find_stuck(const std::vector<MemberRecord*>& records, TimePoint now,
                                const HealthOptions& options) {
  std::map<std::string, std::vector<Position>> by_group;
  for (MemberRecord* record : records) {
    if (record->status == MemberRecord::Status::kGivenUp) continue;
    const Duration age = now - record->progress_at;
    for (const GroupProgress& group : record->progress.groups) {
      by_group[group.group].push_back({record, &group, group.since + age});
    }
  }
  std::vector<Finding> findings;
  for (const auto& [name, positions] : by_group) {
    const auto wait = newest_wait(positions);
    if (!wait) continue;
    for (const Position& position : positions) {
      if (position.group->entered >= wait->number) continue;
      if (auto finding = judge_missing(position, *wait, now, options)) {
        findings.push_back(*std::move(finding));
      }
    }
  }
  return findings;
}

namespace {

// Deadlocks: members that wait for each other in different collectives.
//
// Every member must make the same calls in the same order across all groups. If two members wait
// for each other, one of them has skipped a call or made an extra one. In a correct program, no
// such wait is ever reported, even if the reports are from different times, provided that each
// report is consistent in itself.

bool is_inside(const GroupProgress& group) { return group.entered > group.finished; }

/// A member, and the calls in which it has waited long enough to be considered stuck.
struct Waiter {
  MemberRecord* record = nullptr;
  std::vector<const GroupProgress*> calls;
};

Duration time_in(const GroupProgress& call, const MemberRecord& record, TimePoint now) {
  return call.since + (now - record.progress_at);
}

std::vector<Waiter> waiters_of(const std::vector<MemberRecord*>& records, TimePoint now) {
  std::vector<Waiter> waiters;
  for (MemberRecord* const record : records) {
    const bool counts = record->status == MemberRecord::Status::kHere && record->has_stood_still;
    if (!counts) continue;
    Waiter waiter{record, {}};
    for (const GroupProgress& group : record->progress.groups) {
      const bool waits =
          is_inside(group) && time_in(group, *record, now) >= durations::kAbortDeadlockAfter;
      if (waits) waiter.calls.push_back(&group);
    }
    if (!waiter.calls.empty()) waiters.push_back(std::move(waiter));
  }
  return waiters;
}

/// Returns, for each group, the smallest `entered` count among the waiters that are not in a call
/// of the group.
std::map<std::string_view, std::uint64_t> last_outside(const std::vector<Waiter>& waiters) {
  std::map<std::string_view, std::uint64_t> last;
  for (const Waiter& waiter : waiters) {
    for (const GroupProgress& group : waiter.record->progress.groups) {
      if (is_inside(group)) continue;
      const auto [place, is_new] = last.emplace(group.group, group.entered);
      if (!is_new) place->second = std::min(place->second, group.entered);
    }
  }
  return last;
}

/// Returns the members of `waiters` that wait for other members of `waiters`, and the calls in
/// which they wait.
std::vector<Waiter> find_mutual_waiters(std::vector<Waiter> waiters) {
  for (std::size_t before = 0; before != waiters.size();) {
    before = waiters.size();
    const auto last = last_outside(waiters);
    for (Waiter& waiter : waiters) {
      std::erase_if(waiter.calls, [&](const GroupProgress* call) {
        const auto place = last.find(call->group);
        return place == last.end() || place->second >= call->entered;
      });
    }
    std::erase_if(waiters, [](const Waiter& waiter) { return waiter.calls.empty(); });
  }
  return waiters;
}

std::vector<std::string> names_of(const std::vector<Waiter>& waiters) {
  std::vector<std::string> names;
  for (const Waiter& waiter : waiters) names.push_back(waiter.record->joined.who.task.to_string());
  return names;
}

/// Returns "worker 0 has waited 1.2 s for worker 1 in ...".
std::string describe(const GroupProgress& call, const std::vector<Waiter>& all, TimePoint now) {
  std::vector<Waiter> inside, missing;
  Duration longest{};
  for (const Waiter& waiter : all) {
    for (const GroupProgress& own : waiter.record->progress.groups) {
      if (own.group != call.group) continue;
      if (is_inside(own) && own.entered == call.entered) {
        inside.push_back(waiter);
        longest = std::max(longest, time_in(own, *waiter.record, now));
      }
      if (!is_inside(own) && own.entered < call.entered) missing.push_back(waiter);
    }
  }
  return concat(brief_list(names_of(inside)), inside.size() == 1 ? " has" : " have", " waited ",
                seconds_text(longest), " s for ", brief_list(names_of(missing)), " in ", call.call);
}

}  // namespace

bool has_same_calls(const MemberProgress& a, const MemberProgress& b) {
  return std::ranges::equal(a.groups, b.groups, [](const GroupProgress& x, const GroupProgress& y) {
    return x.group == y.group && x.entered == y.entered && x.finished == y.finished;
  });
}

std::optional<Finding> find_deadlock(const std::vector<MemberRecord*>& records, TimePoint now) {
  std::vector<Waiter> waiters = find_mutual_waiters(waiters_of(records, now));
  std::ranges::sort(waiters, {}, [](const Waiter& waiter) {
    const MemberTask& task = waiter.record->joined.who.task;
    return std::pair(task.job, task.index);
  });
  std::map<std::pair<std::string_view, std::uint64_t>, const GroupProgress*> calls;
  bool is_new = false;
  for (const Waiter& waiter : waiters) {
    for (const GroupProgress* call : waiter.calls) {
      calls.emplace(std::pair(std::string_view(call->group), call->entered), call);
      is_new |= waiter.record->aborted.emplace(call->group, call->entered).second;
    }
  }
  if (!is_new) return std::nullopt;
  std::vector<std::string> sentences;
  for (const auto& [place, call] : calls) sentences.push_back(describe(*call, waiters, now));
  return Finding{
      waiters.front().record->number, VerdictKind::kStuck, true, ErrorCode::kInvalidArgument,
      concat(brief_list(names_of(waiters)), " wait for each other: ", join(sentences, "; "),
             "; expected the same calls in the same order on every worker; make "
             "these calls on all workers, not only where is_chief() is true")};
}

}  // namespace tutti::internal

// Members and verdicts as text, and the board from which heartbeats are written.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/member.h"

#include <utility>

#include "core/process_probe.h"

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

// The board from which heartbeats are written.

void ProgressBoard::set_step(std::uint64_t step) {
  MutexLock lock(mutex_);
  step_ = step;
}

void ProgressBoard::set_phase(std::string_view phase) {
  MutexLock lock(mutex_);
  phase_ = phase;
}

void ProgressBoard::watch(const std::string& group, std::function<GroupProgress()> source) {
  MutexLock lock(mutex_);
  ended_.erase(group);
  const auto old = sources_.find(group);
  if (!source && old != sources_.end()) {
    GroupProgress last = old->second();
    last.group = group;
    last.finished = last.entered;  // it waits for nobody any more
    ended_[group] = std::move(last);
  }
  if (old != sources_.end()) sources_.erase(old);
  if (source) sources_[group] = std::move(source);
}

void ProgressBoard::forget_ended() {
  MutexLock lock(mutex_);
  ended_.clear();
}

MemberProgress ProgressBoard::progress() {
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

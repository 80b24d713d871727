// The board from which heartbeats are written.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/progress_board.h"

#include <utility>

namespace tutti {

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

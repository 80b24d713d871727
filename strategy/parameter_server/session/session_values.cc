// Values by number, and those who wait for them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/session_values.h"

#include <utility>

namespace tutti::internal {

void SessionValues::set(std::uint64_t op, OpOutcome outcome) {
  std::vector<Told> asked;
  {
    const MutexLock lock(mutex_);
    if (ended_) return;
    if (const auto found = asked_.find(op); found != asked_.end()) {
      asked.swap(found->second);
      asked_.erase(found);
    }
    there_.insert_or_assign(op, outcome);
  }
  for (const Told& told : asked) told(outcome);
}

void SessionValues::when_there(std::uint64_t op, Told told) {
  OpOutcome outcome;
  {
    const MutexLock lock(mutex_);
    const auto found = there_.find(op);
    if (ended_) {
      outcome.error = ended_;
    } else if (found != there_.end()) {
      outcome = found->second;
    } else {
      asked_[op].push_back(std::move(told));
      return;
    }
  }
  told(outcome);
}

std::optional<OpOutcome> SessionValues::find(std::uint64_t op) const {
  const MutexLock lock(mutex_);
  const auto found = there_.find(op);
  if (found == there_.end()) return std::nullopt;
  return found->second;
}

void SessionValues::release(std::uint64_t op) {
  OpOutcome released;  // destroyed without the lock
  const MutexLock lock(mutex_);
  const auto found = there_.find(op);
  if (found == there_.end()) return;
  released = std::move(found->second);
  there_.erase(found);
}

void SessionValues::end(const Error& error) {
  std::map<std::uint64_t, std::vector<Told>> asked;
  std::map<std::uint64_t, OpOutcome> there;
  {
    const MutexLock lock(mutex_);
    ended_ = error;
    asked.swap(asked_);
    there.swap(there_);
  }
  for (const auto& [op, all] : asked) {
    for (const Told& told : all) told({{}, error});
  }
}

std::size_t SessionValues::num_held() const {
  const MutexLock lock(mutex_);
  return there_.size();
}

}  // namespace tutti::internal

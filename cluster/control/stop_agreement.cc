// Implements both sides of the stop agreement.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/stop_agreement.h"

#include <algorithm>

namespace tutti::internal {

std::optional<v1::StopProposal> StopAgreement::request(
    const std::string& reason, const std::map<std::uint64_t, std::uint64_t>& steps, TimePoint now) {
  if (proposal_) return std::nullopt;
  std::uint64_t latest = 0;
  for (const auto& [member, step] : steps) {
    has_accepted_[member] = false;
    latest = std::max(latest, step);
  }
  proposal_.emplace();
  proposal_->set_reason(reason);
  return propose(latest, now);
}

v1::StopProposal StopAgreement::propose(std::uint64_t step, TimePoint now) {
  // Members may pass a proposed step before the message arrives, so each round adds a larger
  // margin: 0, 1, 3, 7, ... steps.
  const std::uint64_t room =
      (std::uint64_t{1} << std::min<std::uint64_t>(proposal_->round(), 20)) - 1;
  proposal_->set_round(proposal_->round() + 1);
  proposal_->set_step(step + room);
  deadline_ = deadline_after(now, acknowledge_within_);
  for (auto& [member, accepted] : has_accepted_) accepted = false;
  return *proposal_;
}

std::optional<v1::StopProposal> StopAgreement::answer(std::uint64_t member,
                                                      const v1::StopAnswer& answer, TimePoint now) {
  if (!proposal_ || proposal_->is_final() || answer.round() != proposal_->round())
    return std::nullopt;
  if (!answer.accepts())
    return propose(std::max(answer.current_step(), proposal_->step() + 1), now);
  has_accepted_[member] = true;
  return finish_if_agreed();
}

std::optional<v1::StopProposal> StopAgreement::forget(std::uint64_t member) {
  has_accepted_.erase(member);
  return finish_if_agreed();
}

std::optional<v1::StopProposal> StopAgreement::tick(TimePoint now) {
  if (!proposal_ || proposal_->is_final() || now < deadline_) return std::nullopt;
  proposal_->set_is_final(true);
  return proposal_;
}

std::optional<v1::StopProposal> StopAgreement::finish_if_agreed() {
  if (!proposal_ || proposal_->is_final()) return std::nullopt;
  const bool all =
      std::ranges::all_of(has_accepted_, [](const auto& entry) { return entry.second; });
  if (!all) return std::nullopt;
  proposal_->set_is_final(true);
  return proposal_;
}

std::optional<v1::StopAnswer> StopGate::take(const v1::StopProposal& proposal) {
  MutexLock lock(mutex_);
  // Ignore an old proposal, which a new connection may deliver again.
  if (proposal_ && (proposal.round() < proposal_->round() || proposal_->is_final()))
    return std::nullopt;
  const bool accepts = proposal.is_final() || current_step_ <= proposal.step();
  if (accepts) proposal_ = proposal;
  changed_.notify_all();
  if (proposal.is_final()) return std::nullopt;
  v1::StopAnswer answer;
  answer.set_round(proposal.round());
  answer.set_current_step(current_step_);
  answer.set_accepts(accepts);
  return answer;
}

bool StopGate::stops_after(std::uint64_t step, TimePoint deadline) {
  MutexLock lock(mutex_);
  const auto is_decided = [this, step]() TUTTI_REQUIRES(mutex_) {
    return !proposal_ || proposal_->is_final() || proposal_->step() != step;
  };
  changed_.wait_until(mutex_, deadline, is_decided);
  const bool stops = proposal_ && proposal_->is_final() && step >= proposal_->step();
  if (!stops) current_step_ = std::max(current_step_, step + 1);
  return stops;
}

std::optional<std::uint64_t> StopGate::final_step() const {
  MutexLock lock(mutex_);
  if (!proposal_ || !proposal_->is_final()) return std::nullopt;
  return proposal_->step();
}

std::string StopGate::reason() const {
  MutexLock lock(mutex_);
  return proposal_ ? proposal_->reason() : "";
}

std::uint64_t StopGate::current_step() const {
  MutexLock lock(mutex_);
  return current_step_;
}

}  // namespace tutti::internal

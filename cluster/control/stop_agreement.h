// Agreement of all members on one step after which they stop and save.
// SPDX-License-Identifier: Apache-2.0
//
// The server proposes a step. A member accepts unless it is already past this step. If it accepts,
// it waits at the end of the step for the final decision. If a member is past the step, the server
// proposes a later step in a new *round*. The step is final when all remaining members have
// accepted it, or when the time limit for answers passes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "job.pb.h"
#include "tutti/core/clock.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Server side of the agreement. Callers must send returned proposals to all members. Not
/// thread-safe.
class StopAgreement {
 public:
  explicit StopAgreement(Duration acknowledge_within) : acknowledge_within_(acknowledge_within) {}

  /// Starts negotiating the step after which all members stop; `steps` maps members to their
  /// current steps. Later requests have no effect.
  std::optional<v1::StopProposal> request(const std::string& reason,
                                          const std::map<std::uint64_t, std::uint64_t>& steps,
                                          TimePoint now);
  std::optional<v1::StopProposal> answer(std::uint64_t member, const v1::StopAnswer& answer,
                                         TimePoint now);
  /// Removes a lost member. Returns the final proposal if only this member's answer was missing.
  std::optional<v1::StopProposal> forget(std::uint64_t member);
  std::optional<v1::StopProposal> tick(TimePoint now);
  /// Returns the newest proposal, pending or final, for a member that is joining; nullopt before
  /// the first request.
  const std::optional<v1::StopProposal>& current() const { return proposal_; }

 private:
  v1::StopProposal propose(std::uint64_t step, TimePoint now);
  std::optional<v1::StopProposal> finish_if_agreed();

  const Duration acknowledge_within_;
  std::optional<v1::StopProposal> proposal_;
  TimePoint deadline_;
  std::map<std::uint64_t, bool> has_accepted_;  // keyed by member
};

/// Member's side of the stop agreement. Thread-safe.
class StopGate {
 public:
  /// Returns the answer to a proposal; nullopt if the proposal is final.
  std::optional<v1::StopAnswer> take(const v1::StopProposal& proposal);
  /// See ControlClient::stops_after().
  bool stops_after(std::uint64_t step, TimePoint deadline);
  std::optional<std::uint64_t> final_step() const;
  std::string reason() const;
  std::uint64_t current_step() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t current_step_ TUTTI_GUARDED_BY(mutex_) = 1;
  std::optional<v1::StopProposal> proposal_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal

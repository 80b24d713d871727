// Implements ReplicaSteps: assigns a worker's gradients to the servers' steps.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/replica_steps.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti::internal {

void ReplicaSteps::begin_step() {
  given_.clear();
  seen_.clear();
  step_.reset();
}

void ReplicaSteps::Range::add(const Range& other) {
  least = std::min(least, other.least);
  greatest = std::max(greatest, other.greatest);
}

void ReplicaSteps::note_read(const Variable& variable, std::span<const std::uint64_t> num_steps) {
  if (step_) return;  // reads after this step's updates do not count
  Range range;
  for (const std::uint64_t each : num_steps) range.add({each, each});
  seen_[variable] = range;
}

void ReplicaSteps::note_rows(const Variable& variable, std::uint64_t num_steps) {
  if (!step_) seen_[variable].add({num_steps, num_steps});
}

/// Returns the lowest and highest step of the values read, across the participating variables. In a
/// worker's first step, any variable may participate.
ReplicaSteps::Range ReplicaSteps::range_of_parts() const {
  Range all;
  for (const auto& [variable, range] : seen_) {
    if (next_.empty() || next_.contains(variable)) all.add(range);
  }
  return all;
}

std::optional<std::uint64_t> ReplicaSteps::is_behind(
    std::span<const std::shared_ptr<ReadCache>> variables) const {
  Range all;
  for (const auto& variable : variables) {
    const auto seen = seen_.find(variable);
    if (seen != seen_.end() && next_.contains(variable)) all.add(seen->second);
  }
  if (step_ || all.is_one()) return std::nullopt;
  return all.greatest;
}

std::uint64_t ReplicaSteps::at_least(const Variable& variable) const {
  const auto found = next_.find(variable);
  return found == next_.end() ? 0 : found->second;
}

void ReplicaSteps::decide() {
  const Range all = range_of_parts();
  step_.emplace(all.is_one() ? std::optional(all.greatest) : std::nullopt);
}

std::optional<SyncSpec> ReplicaSteps::assign_step(const Variable& variable) {
  if (!given_.insert(variable).second) {
    fail(ErrorCode::kUnimplemented, "a step updates a variable twice, but servers count one ",
         "gradient per worker; expected one update; "
         "sync_replicas does not support moving averages of weights");
  }
  if (!step_) decide();
  std::uint64_t& next = next_[variable];
  if (!*step_) return std::nullopt;
  next = **step_ + 1;
  // The sum of num_to_aggregate_ gradients serves as an estimate of the sum over all workers, so it
  // is divided by the fraction of workers that contributed.
  const double divisor = static_cast<double>(num_to_aggregate_) / num_ranks_;
  return SyncSpec{**step_, rank_, num_ranks_, num_to_aggregate_, divisor};
}

}  // namespace tutti::internal

// Whether the variables of all workers are the same: when they are made, and later.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "strategy/variables/distributed_variable.h"

namespace tutti::internal {

/// Compares the values of mirrored variables every so many steps: they are never exchanged after
/// they were made, so a bit that flips in one worker's memory stays, and spreads through the
/// gradients. Adds a note about each variable to the workers' ConsistencyCheck.
/// Threads: one at a time.
class StateDigest {
 public:
  /// `every`: steps between two comparisons; 0: never. Throws kInvalidArgument below.
  StateDigest(std::string who, int every);

  /// Called by all workers in the same order. Variables that may differ do not count.
  void add(const std::shared_ptr<const DistributedStorage>& variable);
  /// Called by all workers when `num_steps` are done. Throws kDataLoss on all of them, naming the
  /// first variable that differs, and the worker whose differs from most.
  void compare_when_due(std::uint64_t num_steps, WorkerTeam& team) const;

 private:
  const std::string who_;
  const int every_;
  std::vector<std::weak_ptr<const DistributedStorage>> variables_;
};

/// "'w' float32 [3, 4], values <hash>".
std::string describe_variable(const std::string& name, const Tensor& initial_value);

/// Called by all workers with what each makes. Throws kInvalidArgument on all of them naming the
/// first worker whose description differs from worker 0's, and both.
void require_same_variable(std::string_view who, WorkerTeam& team, const std::string& description);

}  // namespace tutti::internal

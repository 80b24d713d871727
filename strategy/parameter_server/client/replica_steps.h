// Worker side of UpdateMode::kSyncReplicas: determines the step to which each gradient belongs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "strategy/parameter_server/protocol/operation.h"
#include "tutti/core/clock.h"
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"

namespace tutti::internal {

struct ReadCache;

/// Pace of a worker that trains independently of the other workers.
struct WorkerPace {
  UpdateMode mode = UpdateMode::kAsync;  // never kSync
  int worker = 0;
  int num_workers = 1;
  // The following members are used by kSyncReplicas only.
  int num_to_aggregate = 1;
  /// Minimum time for which a read waits for other workers.
  Duration patience = Duration::zero();
};

/// Worker's side of UpdateMode::kSyncReplicas. Values arrive with the number of steps applied to
/// them, and the worker's gradients belong to the next step. A worker for which the other workers
/// do not wait can read values from different steps; its gradients then belong to no step and are
/// left out. A variable participates after its first update. Not thread-safe.
class ReplicaSteps {
 public:
  using Variable = std::shared_ptr<const ReadCache>;

  ReplicaSteps(int rank, int num_ranks, int num_to_aggregate)
      : rank_(rank), num_ranks_(num_ranks), num_to_aggregate_(num_to_aggregate) {}

  void begin_step();
  /// Records that all shards of the variable were read, with these counts of applied steps.
  /// Replaces earlier reads.
  void note_read(const Variable& variable, std::span<const std::uint64_t> num_steps);
  /// Same as note_read(), but for rows of one shard, and keeps earlier reads.
  void note_rows(const Variable& variable, std::uint64_t num_steps);
  /// Returns the newest step among these variables, which were read together, if some of them have
  /// values from older steps; otherwise nullopt.
  std::optional<std::uint64_t> is_behind(
      std::span<const std::shared_ptr<ReadCache>> variables) const;
  /// Returns the number of steps that a read waits for: the steps up to this worker's last
  /// gradient.
  std::uint64_t at_least(const Variable& variable) const;
  /// Returns the step for an update; nullopt if the update must be skipped. Throws kUnimplemented
  /// for the second update of a variable in a step, because servers count one gradient per worker.
  std::optional<SyncSpec> assign_step(const Variable& variable);

 private:
  struct Range {
    std::uint64_t least = ~std::uint64_t{0};
    std::uint64_t greatest = 0;
    bool is_one() const { return least >= greatest; }
    void add(const Range& other);
  };
  Range range_of_parts() const;
  void decide();

  const int rank_, num_ranks_, num_to_aggregate_;
  std::set<Variable> given_;                          // variables updated in this step
  std::map<Variable, Range> seen_;                    // range of steps whose values were read
  std::map<Variable, std::uint64_t> next_;            // step to wait for, by participating variable
  std::optional<std::optional<std::uint64_t>> step_;  // result of decide() in this step
};

}  // namespace tutti::internal

// Which step of the servers a worker's gradients belong to, where these add up those of several.
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

/// How a worker keeps pace with others that it does not meet.
struct WorkerPace {
  UpdateMode mode = UpdateMode::kAsync;  // not kSync
  int worker = 0;
  int num_workers = 1;
  // kSyncReplicas.
  int num_to_aggregate = 1;
  /// For how long a read waits for other workers, if that is longer than for any answer.
  Duration patience = Duration::zero();
};

/// A worker's side of UpdateMode::kSyncReplicas. The values that it reads say how many steps were
/// applied to them; its gradients are for the step that comes next. A worker that others do not
/// wait for can meet values of different steps: its gradients would belong to none, and are left
/// out. Which variables take part shows when they are first updated. Not synchronised.
class ReplicaSteps {
 public:
  using Variable = std::shared_ptr<const ReadCache>;

  ReplicaSteps(int rank, int num_ranks, int num_to_aggregate)
      : rank_(rank), num_ranks_(num_ranks), num_to_aggregate_(num_to_aggregate) {}

  void begin_step();
  /// Its shards were read, to which so many steps had been applied; an earlier read of all of them
  /// does not count any more.
  void note_read(const Variable& variable, std::span<const std::uint64_t> num_steps);
  /// The same for rows of a shard; earlier reads count, too.
  void note_rows(const Variable& variable, std::uint64_t num_steps);
  /// The step that these variables, read together, should have come to; nothing when they are all
  /// of one step.
  std::optional<std::uint64_t> is_behind(
      std::span<const std::shared_ptr<ReadCache>> variables) const;
  /// For how many steps a read of the variable waits: one more than this worker gave for.
  std::uint64_t at_least(const Variable& variable) const;
  /// For an update of this step; nothing: leave it out. Throws kUnimplemented for a second one of
  /// a variable in a step: servers count who gave.
  std::optional<SyncSpec> give(const Variable& variable);
  /// Steps of this worker that were left out.
  std::uint64_t num_left_out() const { return num_left_out_; }

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
  std::set<Variable> given_;                          // in this step
  std::map<Variable, Range> seen_;                    // in this step
  std::map<Variable, std::uint64_t> next_;            // those that take part: what reads wait for
  std::optional<std::optional<std::uint64_t>> step_;  // of this step's gradients, once it is known
  std::uint64_t num_left_out_ = 0;
};

}  // namespace tutti::internal

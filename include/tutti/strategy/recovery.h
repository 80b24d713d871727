// Continues training after a worker dies or a connection between two workers breaks: from the last
// committed step, with the same bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/core/clock.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

/// Returns the options of checkpoints of `strategy`. With several workers only the chief writes and
/// reads: it chooses the version, and all workers restore its values, even if they do not see
/// its disk. Each worker writes and reads its own part of variables that are sharded over workers,
/// if all see one folder (CheckpointManagerOptions::sharded). Save and restore are collective. The
/// strategy must outlive the checkpoint.
CheckpointOptions checkpoint_options(Strategy& strategy);

namespace internal {
class WorkerTeam;
}  // namespace internal

struct RecoveryOptions {
  /// Time to wait until a launcher has restarted a worker that died.
  Duration rejoin_timeout = std::chrono::seconds(300);
  /// Called on all workers if all of them were restarted, so that none has the state; may restore a
  /// checkpoint. If it is empty or finds no checkpoint, they start from the beginning.
  std::function<void()> restore_from_disk = {};
};

/// Returns true if a launcher restarts workers that die (`tutti run --max-restarts`, which sets
/// TUTTI_MAX_RESTARTS), so that the others should wait for them.
bool starts_workers_again();

/// Runs a training loop that can be repeated. `state` is everything that the loop continues from:
/// weights, optimizer, the strategy, positions of datasets, records. Every worker keeps the state
/// of its last two commits in memory, shared with the variables until a step changes them. If a
/// worker is lost, the others wait until it is restarted. All go back to the last step that all
/// have committed, the new process receives that state from one of them, and the loop is called
/// again on all. If a connection between two workers breaks, they reconnect at once and go back in
/// the same way.
///
///     Recovery recovery(strategy, state);
///     recovery.run([&] {
///       for (const PerReplica<Batch>& batch : batches) {   // begins at the position in `state`
///         strategy.run(step, batch);
///         recovery.commit(++number);
///       }
///     });
///
/// With strategies of one process run() calls the loop and commit() does nothing. Not thread-safe.
class Recovery {
 public:
  /// The strategy must outlive this object.
  Recovery(Strategy& strategy, Checkpoint state, RecoveryOptions options = {});

  /// Rethrows exceptions of the loop, unless a worker or a connection was lost; it also rethrows
  /// those after 20 repeats of the work that follows one commit. Throws kDeadlineExceeded naming
  /// the workers that did not return.
  void run(const std::function<void()>& loop);
  /// Stores the state after `step`. Collective: every worker must call it after each step that a
  /// loss must not repeat. If the loss occurs during the call, it throws, yet the step may count;
  /// the loop then continues after it, without the code that follows the call.
  void commit(std::int64_t step, const SourceLocation& where = SourceLocation::current());
  /// Returns true if this process replaces a worker that died: run() gets its state from the
  /// others, so restore nothing before.
  bool is_replacement() const;
  /// Returns how often run() went back to a commit.
  int num_recoveries() const { return num_recoveries_; }

 private:
  struct Kept {
    std::int64_t step = 0;
    CheckpointSnapshot state;
  };

  bool is_of_a_loss(const std::exception& error) const;
  void roll_back();
  bool try_roll_back(TimePoint deadline);
  void restore(std::int64_t step, const std::vector<std::string>& commits);
  void restart();

  internal::WorkerTeam* const team_;  // of the strategy
  const Checkpoint state_;
  const RecoveryOptions options_;
  std::deque<Kept> kept_;  // the oldest first, two at most
  int num_recoveries_ = 0;
  int num_repeats_ = 0;  // since the last commit
};

}  // namespace tutti

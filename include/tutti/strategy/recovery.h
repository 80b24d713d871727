// Continues training from the last committed step, with bit-identical results, after a worker dies
// or a connection between two workers breaks.
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

/// Returns options for checkpoints under `strategy`. With several workers, only the chief writes
/// and reads: it chooses the version, and all workers restore its values, even if they cannot
/// access its disk. Variables that are sharded across workers are an exception: each worker writes
/// and reads its own part, if all workers can access one folder
/// (CheckpointManagerOptions::sharded). Saving and restoring are collective. The strategy must
/// outlive the checkpoint.
CheckpointOptions checkpoint_options(Strategy& strategy);

namespace internal {
class WorkerTeam;
}  // namespace internal

struct RecoveryOptions {
  /// Maximum time to wait for a launcher to restart a worker that died.
  Duration rejoin_timeout = std::chrono::seconds(300);
  /// Called on all workers if all of them were restarted, so that no worker has the state; it may
  /// restore a checkpoint. If the function is empty or finds no checkpoint, training starts from
  /// the beginning.
  std::function<void()> restore_from_disk = {};
};

/// Returns true if a launcher restarts workers that die (`tutti run --max-restarts`, which sets
/// TUTTI_MAX_RESTARTS), in which case the other workers should wait for them.
bool starts_workers_again();

/// Runner of a training loop that can be repeated from a commit. `state` includes everything that
/// the loop needs to continue, such as weights, the optimizer, the strategy and dataset positions.
/// Every worker keeps a copy of the state of its last two commits. The copy shares memory with the
/// variables until a step changes them. If a worker is lost, the others wait until it is restarted.
/// All workers return to the last step that all of them have committed, the new process receives
/// that state from another worker, and the loop is called again on all workers. If a connection
/// between two workers breaks, they reconnect at once and return to that step in the same way.
///
///     Recovery recovery(strategy, state);
///     recovery.run([&] {
///       for (const PerReplica<Batch>& batch : batches) {   // begins at the position in `state`
///         strategy.run(step, batch);
///         recovery.commit(++number);
///       }
///     });
///
/// With a strategy of one process, run() only calls the loop, and commit() does nothing. Not
/// thread-safe.
class Recovery {
 public:
  /// The strategy must outlive this object.
  Recovery(Strategy& strategy, Checkpoint state, RecoveryOptions options = {});

  /// Rethrows exceptions from the loop. An exception caused by the loss of a worker or a connection
  /// is rethrown only after the work that follows one commit has been repeated 20 times. Throws
  /// kDeadlineExceeded, naming the lost workers, if they do not rejoin within rejoin_timeout.
  void run(const std::function<void()>& loop);
  /// Stores the state after `step`. Collective: every worker must call it after each step that must
  /// not be repeated when a worker is lost. If a worker is lost during the call, commit() throws,
  /// but the step may have been committed; the loop then continues with the next step and does not
  /// run the code that follows the call.
  void commit(std::int64_t step, const SourceLocation& where = SourceLocation::current());
  /// Returns true if this process replaces a worker that died. Do not restore a checkpoint on it
  /// before run(), which gets the state from the other workers.
  bool is_replacement() const;
  /// Returns the number of times that run() rolled back to a commit.
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

  internal::WorkerTeam* const team_;  // team of the strategy
  const Checkpoint state_;
  const RecoveryOptions options_;
  std::deque<Kept> kept_;  // oldest first, two at most
  int num_recoveries_ = 0;
  int num_repeats_ = 0;  // number of repeats since the last commit
};

}  // namespace tutti

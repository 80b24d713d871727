// Goes on with training when a worker dies, or a connection between two breaks: from the last
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

/// With several workers the chief alone writes and reads: it chooses the version, and all restore
/// what it has read, also those that do not see its disk. Variables that are cut over workers each
/// worker writes and reads in part, where all see one folder
/// (CheckpointManagerOptions::sharded). All workers call save and restore. The strategy must
/// outlive the checkpoint.
CheckpointOptions checkpoint_options(Strategy& strategy);

namespace internal {
class WorkerTeam;
}  // namespace internal

struct RecoveryOptions {
  /// How long the others wait for a worker that died to be started again, by a launcher.
  Duration rejoin_timeout = std::chrono::seconds(300);
  /// Called on all workers when all of them were started again, so that none has the state: may
  /// restore a checkpoint. Without it, or when that finds none, they begin anew.
  std::function<void()> restore_from_disk = {};
};

/// Whether a launcher starts workers that die again (`tutti run --max-restarts`, which says so in
/// TUTTI_MAX_RESTARTS), so that the others should wait for them.
bool starts_workers_again();

/// Runs a training loop that can be begun again. `state` is all that the loop goes on from:
/// weights, optimizer, the strategy, positions of datasets, records. Every worker keeps the state
/// of the last two commits in memory (shared with the variables until a step changes them). When a
/// worker is lost, the others wait until it is started again, all go back to the last step that all
/// have committed, the new process gets it from one of them, and the loop is called again on all.
/// When a connection between two workers breaks, nobody is waited for: they connect anew, and go
/// back and on in the same way.
///
///     Recovery recovery(strategy, state);
///     recovery.run([&] {
///       for (const PerReplica<Batch>& batch : batches) {   // begins where `state` says
///         strategy.run(step, batch);
///         recovery.commit(++number);
///       }
///     });
///
/// With strategies of one process run() calls the loop and commit() does nothing. One thread.
class Recovery {
 public:
  /// The strategy must outlive it.
  Recovery(Strategy& strategy, Checkpoint state, RecoveryOptions options = {});

  /// Throws what the loop throws, unless a worker or a connection was lost (and also then when what
  /// follows one commit has failed 20 times); kDeadlineExceeded naming the workers that did not
  /// come back.
  void run(const std::function<void()>& loop);
  /// Keeps the state after `step`. A call of all workers, after each step that is to count: a loss
  /// repeats what came after the last one. If the loss comes during the call, it throws, and the
  /// step may count all the same: the loop then goes on after it, without what follows the call.
  void commit(std::int64_t step, const SourceLocation& where = SourceLocation::current());
  /// Whether this process takes the place of one that died: run() gets its state from the others,
  /// and nothing is to be restored before.
  bool is_replacement() const;
  /// How often run() went back.
  int num_recoveries() const { return num_recoveries_; }

 private:
  struct Kept {
    std::int64_t step = 0;
    CheckpointSnapshot state;
  };

  bool is_of_a_loss(const std::exception& error) const;
  void go_back();
  bool go_back_once(TimePoint deadline);
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

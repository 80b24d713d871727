// Options for a coordinator: closure scheduling, and its checkpoint.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti {

/// Options for a coordinator's scheduling, retries and checkpoints. The coordinator's constructor
/// throws kInvalidArgument if most_queued, window or most_attempts is below 1; start() throws it if
/// checkpoint_interval is not positive.
struct ClusterCoordinatorOptions {
  /// Number of queued closures at which schedule() blocks.
  std::size_t most_queued = 4096;
  /// Number of closures assigned at a time to a worker in another process, so that the next closure
  /// has already arrived when one ends. Near the end of the queue, a worker gets one closure at a
  /// time, so that no worker is idle. Workers in this process always get one.
  int window = 2;
  /// Maximum number of attempts to run a closure. If an infrastructure error ends each of them, the
  /// closure fails, because it may itself cause these errors.
  int most_attempts = 4;
  /// Start delay: worker i receives its first closure after min(i * start_delay, most_start_delay).
  Duration start_delay = Duration::zero();
  Duration most_start_delay = durations::kJoinTimeout;
  /// Time for which start() waits for all workers in other processes. After that it continues with
  /// the workers that have joined.
  Duration join_timeout = durations::kJoinTimeout;
  /// Time without a live worker after which the first queued closure fails and the other queued
  /// closures are cancelled.
  Duration most_absence = std::chrono::hours(1);
  /// Time without a finished closure after which a watchdog logs the work in progress and the
  /// stacks of all threads; zero or less disables it.
  Duration watchdog_timeout = Duration::zero();
  /// Folder for the job's checkpoint (docs/checkpoints.md). If empty, no checkpoint is saved, and
  /// the loss of a server process ends the run. With a folder, all servers return to the last
  /// version if a server is lost, and the closures since that version are repeated; a restarted
  /// coordinator continues from the last version (num_scheduled()). Only the coordinator accesses
  /// the folder; each coordinator needs a separate one.
  std::string checkpoint_folder = {};
  /// Time between versions of the checkpoint. Saving a version waits for running closures; if they
  /// take longer than this, the delay is logged.
  Duration checkpoint_interval = std::chrono::seconds(30);
  /// Maximum total size, in bytes, of the finished closures that are held until a checkpoint
  /// version contains them. When this limit is reached, a new version is saved at once.
  std::size_t most_held_bytes = std::size_t{256} << 20;
};

}  // namespace tutti

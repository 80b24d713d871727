// Options of a coordinator: how it hands out closures, and where it keeps its checkpoint.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti {

/// Scheduling, retries and checkpoints of a coordinator. Its constructor throws kInvalidArgument if
/// most_queued, window or most_attempts is below 1, its start() if checkpoint_interval is not
/// positive.
struct ClusterCoordinatorOptions {
  /// Number of queued closures at which schedule() waits.
  std::size_t most_queued = 4096;
  /// Closures that a worker in another process has at a time, so that the next one is there when
  /// the last ends. Near the end of the queue it has one, so that no worker is idle. Workers of
  /// this process have one.
  int window = 2;
  /// A closure fails after this many attempts that infrastructure ended: it may be the cause.
  int most_attempts = 4;
  /// Upper bound of the delays: worker i gets its first closure after min(i * start_delay,
  /// most_start_delay).
  Duration start_delay = Duration::zero();
  Duration most_start_delay = durations::kJoinTimeout;
  /// Time for which start() waits for all workers in other processes; then it continues with those
  /// that have joined.
  Duration join_timeout = durations::kJoinTimeout;
  /// Time without a live worker after which the first queued closure fails and the others are
  /// cancelled.
  Duration most_absence = std::chrono::hours(1);
  /// Time without a finished closure after which a watchdog logs the work in progress and the
  /// stacks of all threads; zero or less disables it.
  Duration watchdog_timeout = Duration::zero();
  /// Folder for the checkpoint of the job (docs/checkpoints.md). If empty, none is kept, and a lost
  /// server process ends the run. With a folder, a lost server takes all servers back to the last
  /// version, and the closures since then are repeated; a restarted coordinator continues from it
  /// (num_scheduled()). Only the coordinator reads and writes it. One coordinator per folder.
  std::string checkpoint_folder = {};
  /// Time between versions. Longer closures delay a version, and are logged.
  Duration checkpoint_interval = std::chrono::seconds(30);
  /// A version is saved at once when the arguments of closures that the last one does not contain
  /// reach this many bytes.
  std::size_t most_held_bytes = std::size_t{256} << 20;
};

}  // namespace tutti

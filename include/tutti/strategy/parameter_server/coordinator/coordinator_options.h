// Options of a coordinator: how it hands out closures, and where it keeps its checkpoint.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti {

/// Says what everybody does when nothing finishes for too long.
struct WatchdogOptions {
  /// Zero or less: no watchdog, no thread.
  Duration timeout = Duration::zero();
  /// What is under way, in lines: logged with the stacks.
  std::function<std::string()> describe = {};
  /// Called after the log, each time.
  std::function<void()> on_timeout = {};
};

/// How a coordinator hands out closures, how often it tries again, and what it keeps. What
/// makes no sense is kInvalidArgument when the coordinator is made.
struct ClusterCoordinatorOptions {
  /// schedule() waits while so many closures are queued.
  std::size_t most_queued = 4096;
  /// Closures that a worker in another process has at a time: the next one is there when the last
  /// ends. Near the end of the queue it has one, so that no worker is idle. Workers of this process
  /// have one.
  int window = 2;
  /// Attempts that infrastructure may end, and different workers that may die of a closure, before
  /// it fails.
  int most_attempts = 4;
  int most_workers_lost = 2;
  /// Worker i gets its first closure after min(i * start_delay, most_start_delay).
  Duration start_delay = Duration::zero();
  Duration most_start_delay = durations::kJoinTimeout;
  /// For workers in other processes: start() waits for all; after this long it goes on with
  /// those that came.
  Duration join_timeout = durations::kJoinTimeout;
  /// When all workers have been gone for so long, what is queued fails.
  Duration most_absence = std::chrono::hours(1);
  /// `describe` is filled in.
  WatchdogOptions watchdog = {};
  /// Folder for the checkpoint of the job (docs/checkpoints.md); empty: none is kept, and a server
  /// process that is lost ends the run. With a folder, a lost server takes all servers back to the
  /// last version, and the closures since then are done again; a coordinator that is started again
  /// continues from it (num_scheduled()). The coordinator alone reads and writes it. One
  /// coordinator per folder.
  std::string checkpoint_folder = {};
  /// From version to version. Closures that are longer delay a version, and are named.
  Duration checkpoint_interval = std::chrono::seconds(30);
  /// A version is due at once when the arguments of closures that the last one does not contain
  /// take so many bytes.
  std::size_t most_held_bytes = std::size_t{256} << 20;
};

}  // namespace tutti

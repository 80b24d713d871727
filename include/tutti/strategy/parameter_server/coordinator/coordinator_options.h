// What a coordinator can be told: how it gives closures out, and where it keeps what it needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti {

/// With a folder, a lost server or coordinator loses nothing: a server that is started again has
/// all that it confirmed (its last snapshot, and a log of what came since), steps under way are
/// done again under their numbers, and a coordinator that is made anew with the same folder goes on
/// where the last one was. One coordinator has a folder at a time.
struct SnapshotOptions {
  /// Keeps the coordinator's journal and servers' snapshots; empty: nothing is kept. A server in
  /// another process writes into the folder of this name (as the coordinator sees it, absolute) on
  /// its own machine: a shared one, or one per machine if each server is started again on its own.
  std::string folder = {};
  /// A cut (a snapshot of all servers, with which logs begin anew) is taken when so many closures
  /// have ended since the last one, or after this time if any has.
  std::uint64_t every_closures = 1000;
  Duration every = std::chrono::seconds(60);
  /// A journal that has grown by so much is begun anew with the state it led to.
  std::uint64_t most_journal_bytes = std::uint64_t{4} << 20;
};

/// Says what everybody does when nothing finishes for too long.
struct WatchdogOptions {
  /// Zero or less: no watchdog, no thread.
  Duration timeout = Duration::zero();
  /// What is under way, in lines: logged with the stacks.
  std::function<std::string()> describe = {};
  /// Called after the log, each time.
  std::function<void()> on_timeout = {};
};

/// How a coordinator gives closures out, how often it tries again, and what it keeps. What
/// makes no sense is kInvalidArgument when the coordinator is made.
struct ClusterCoordinatorOptions {
  /// schedule() waits while so many closures are queued.
  std::size_t most_queued = 4096;
  /// Closures that one worker has at a time.
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
  /// Whether a closure that a server's failure ended is tried again, as one that a worker's did, or
  /// fails.
  enum class ServerErrors { kRaise, kRetry } server_errors = ServerErrors::kRaise;
  /// `describe` is filled in.
  WatchdogOptions watchdog = {};
  /// Gets each record of the journal before anybody acts on it; empty: none is kept.
  std::function<void(std::span<const std::byte>)> journal = {};
  /// What is kept on the disk, so that lost servers and coordinators lose nothing. Servers in
  /// processes of their own: ParameterServerOptions::durability.
  SnapshotOptions snapshots = {};
};

}  // namespace tutti

// Where a coordinator keeps what it needs to go on, and how often.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tutti/core/clock.h"

namespace tutti {

/// With a folder, a lost server or coordinator loses nothing: a server that is started again has
/// all that it confirmed (its last snapshot, and a log of what came since), steps under way are
/// done again under their numbers, and a coordinator that is made anew with the same folder goes on
/// where the last one was. One coordinator has a folder at a time.
struct SnapshotOptions {
  /// Of the coordinator's journal and the servers' snapshots; empty: nothing is kept. A server in
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

}  // namespace tutti

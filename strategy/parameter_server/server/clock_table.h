// How many steps each worker has ended, and who must wait for whom.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "tutti/strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

/// The rule of stale-synchronous training (TellClock). A worker is known by the number of its
/// client, so that one that was started again is another one. A value that depends on nothing but
/// the calls.
class ClockTable {
 public:
  /// What TellClock asks for. Throws kInvalidArgument naming both workers for a staleness other
  /// than that of those who are there, kFailedPrecondition for a clock that goes back.
  OperationAnswer tell(std::uint64_t client, const TellClock& tell);
  /// Whether it was there.
  bool leave(std::uint64_t client) { return workers_.erase(client) != 0; }
  /// Numbers of workers that said that they end (kLeave) and have not joined since. One whose
  /// connection broke is not among them: it may be started again.
  const std::set<int>& ended() const { return ended_; }

  /// The clock that all workers must have reached before this client may read; 0: any.
  std::uint64_t wanted_by(std::uint64_t client) const;
  /// By how much the client is ahead of the slowest worker; nothing for one that has not joined, or
  /// that nothing bounds.
  std::optional<std::uint64_t> lead_of(std::uint64_t client) const;
  /// 0 without workers.
  std::uint64_t slowest() const;
  /// By worker; of two with one number the slower one.
  std::map<int, std::uint64_t> clocks() const;

 private:
  struct Worker {
    int number = 0;
    std::uint64_t clock = 0;
    std::uint64_t staleness = TellClock::kUnboundedStaleness;
  };
  Worker& join(std::uint64_t client, const TellClock& tell, std::uint64_t clock);
  Tensor all() const;

  std::map<std::uint64_t, Worker> workers_;  // by client
  std::set<int> ended_;
};

}  // namespace tutti::internal

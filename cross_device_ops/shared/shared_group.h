// Where ranks of one process meet: seats, arrival and departure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/core/spin_wait.h"
#include "tutti/cross_device_ops/collective_header.h"

namespace tutti::internal {

/// Shared by the ranks of a group. A *round* is one collective: every rank arrives, then all work
/// on each other's memory, then every rank departs. Either all ranks see a round as complete, or
/// none does: a rank that gives up closes the group for this and all later rounds, unless the last
/// one arrived before.
class SharedGroup {
 public:
  explicit SharedGroup(int size);

  int size() const { return static_cast<int>(seats_.size()); }
  /// What rank `rank` brought to the round: from arrive() of all to depart() of all.
  const CollectiveCall& call(int rank) const { return *seat(rank).call; }
  const CollectiveHeader& header(int rank) const { return *seat(rank).header; }
  std::uint64_t fingerprint(int rank) const { return seat(rank).fingerprint; }

  /// Sits down and waits for all. Throws the reason for which the group is closed, or closes it
  /// with kDeadlineExceeded naming the ranks that did not come.
  void arrive(int rank, const CollectiveCall& call, const CollectiveHeader& header,
              TimePoint deadline);
  /// Waits until all have done their work: never long, for nothing in it waits.
  void depart(int rank);
  /// Ends arrivals, running and later, with this reason. The first one counts.
  void close(const Error& reason) noexcept;

  /// The group of some of the ranks, the same object for all of them.
  std::shared_ptr<SharedGroup> subgroup(const std::vector<int>& ranks, std::uint32_t number);

  void set_state(int rank, std::function<std::string()> state);
  std::vector<std::string> states() const;

 private:
  struct alignas(64) Seat {
    const CollectiveCall* call = nullptr;
    const CollectiveHeader* header = nullptr;
    std::uint64_t fingerprint = 0;
    std::uint64_t round = 0;  // that the rank is in or was in last, from 1
    std::atomic<std::uint64_t> arrived{0};
  };
  // Arrivals are counted in steps of two; bit 0 says that the group is closed.
  static constexpr std::uint64_t kClosed = 1;

  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }
  const Seat& seat(int rank) const { return seats_[static_cast<std::size_t>(rank)]; }
  bool count_arrival();
  [[noreturn]] void throw_reason() const;
  std::string missing(std::uint64_t round) const;

  std::vector<Seat> seats_;
  alignas(64) std::atomic<std::uint64_t> arrivals_{0};
  alignas(64) std::atomic<std::uint64_t> departures_{0};
  SpinWait wait_;

  mutable Mutex mutex_;
  std::unique_ptr<Error> reason_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::function<std::string()>> states_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::pair<std::uint32_t, std::vector<int>>, std::weak_ptr<SharedGroup>> subgroups_
      TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal

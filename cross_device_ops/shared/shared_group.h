// Where ranks of one process meet: seats, arrival and departure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/core/spin_wait.h"
#include "tutti/cross_device_ops/collective_header.h"
#include "tutti/cross_device_ops/shared/group_parts.h"

namespace tutti::internal {

/// Shared by the ranks of a group. A *round* is one collective: every rank arrives, the round's
/// *parts*, one per rank, are worked on with all ranks' memory, and a rank leaves when all parts
/// are done. Either all ranks see a round as complete, or none does: a rank that gives up closes
/// the group for this and all later rounds, unless the last one arrived before.
class SharedGroup {
 public:
  explicit SharedGroup(int size);

  int size() const { return static_cast<int>(seats_[0].size()); }
  struct alignas(64) Seat {
    // What others wait for and read in every call lies in one cache line.
    std::atomic<std::uint64_t> arrived{0};  // the round; written last
    std::uint64_t fingerprint = 0;
    std::span<const Elements> outputs;
    std::byte* first_output = nullptr;  // of a single buffer all that others read
    bool in_place = false;
    /// Read only by ranks none of which leaves before all have called finish_part(), own part or
    /// not.
    const CollectiveHeader* header = nullptr;
    CollectiveCall call;
  };
  /// What rank `other` brought to the round that rank `own` is in; while a part is not done.
  const Seat& seat(int own, int other) const {
    return seats_[round_of(own) % 2][static_cast<std::size_t>(other)];
  }

  /// Sits down and waits for all. Throws the reason for which the group is closed, or closes it
  /// with kDeadlineExceeded naming the ranks that did not come.
  void arrive(int rank, const CollectiveCall& call, const CollectiveHeader& header,
              TimePoint deadline);
  /// Whether any rank may do any part: with more ranks than cores those that run do not wait for
  /// those that do not. Otherwise rank r does part r.
  bool shares_parts() const { return shares_parts_; }
  /// A part that nobody has taken; -1: none is left. If shares_parts().
  int take_part(int rank);
  /// For a round in which every rank does its own part.
  void take_own_part(int rank);
  void finish_part(int rank);
  /// Waits until all parts are done: never long, for nothing in a part waits.
  void leave(int rank);
  /// Ends arrivals, running and later, with this reason. The first one counts.
  void close(const Error& reason) noexcept;

  /// The group of some of the ranks, the same object for all of them.
  std::shared_ptr<SharedGroup> subgroup(const std::vector<int>& ranks, std::uint32_t number);

  void set_state(int rank, std::function<std::string()> state);
  std::vector<std::string> states() const;

 private:
  struct alignas(64) Progress {
    std::uint64_t round = 0;                 // that the rank is in or was in last, from 1; its own
    std::atomic<std::uint64_t> finished{0};  // the round whose part the rank has done
  };

  std::uint64_t round_of(int rank) const { return progress_[static_cast<std::size_t>(rank)].round; }
  bool all_arrived(std::uint64_t round) const;
  bool all_finished(std::uint64_t round) const;
  std::string missing(std::uint64_t round) const;

  // Two rows of seats, for a rank may sit down for the next round before all have left this one.
  std::array<std::vector<Seat>, 2> seats_;
  std::vector<Progress> progress_;
  const bool shares_parts_;
  // Written when the group closes: until then every rank has a copy in its cache.
  alignas(64) std::atomic<bool> closed_{false};
  const int num_lanes_;
  PartLanes parts_taken_;
  alignas(64) std::atomic<std::uint64_t> parts_done_{0};
  SpinWait wait_;

  mutable Mutex mutex_;
  std::unique_ptr<Error> reason_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t first_failed_round_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<std::function<std::string()>> states_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::pair<std::uint32_t, std::vector<int>>, std::weak_ptr<SharedGroup>> subgroups_
      TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal

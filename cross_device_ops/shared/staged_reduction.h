// All-reduce of buffers that no other process can read, through windows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "cross_device_ops/shared/window_group.h"

namespace tutti::internal {

/// Element i of a call is element i of its buffers, one after the other. *Slice* r is what rank r
/// combines; slices are worked on in *steps* of at most a slot. In step k a rank
///   - copies its values of every other rank's slice into its slots (`sent`),
///   - combines all ranks' values of its own slice into its output and a slot (`reduced`),
///   - copies the other ranks' results into its output (`collected`),
/// three steps being under way at once, so that slots stay in caches and ranks seldom wait. The
/// numbers of steps go on from call to call. One thread.
class StagedReduction {
 public:
  explicit StagedReduction(WindowGroup& group);
  /// After all have arrived.
  void run(const CollectiveCall& call, TimePoint deadline);

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  Range slice(int rank) const;
  Range segment(int rank, std::size_t step) const;
  void contribute(std::size_t step, TimePoint deadline);
  void combine(std::size_t step, TimePoint deadline);
  void collect(std::size_t step, TimePoint deadline);
  /// Calls body(buffer, first, at, count) for the pieces of elements that lie in one buffer:
  /// `count` from `first` of it, which are `at` of the range.
  template <class Body>
  void for_each_piece(Range range, const Body& body) const;

  WindowGroup& group_;
  const CollectiveCall* call_ = nullptr;
  std::size_t element_ = 0;          // bytes
  std::size_t step_ = 0;             // elements
  std::uint64_t base_ = 0;           // steps of earlier calls
  std::vector<std::size_t> firsts_;  // of the buffers
  std::vector<const std::byte*> inputs_;
};

}  // namespace tutti::internal

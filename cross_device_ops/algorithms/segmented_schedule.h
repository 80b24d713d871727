// A schedule that works on a buffer segment by segment.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "cross_device_ops/algorithms/algorithm.h"

namespace tutti::internal {

/// A schedule that works on a buffer segment by segment. Before its first message a rank verifies:
/// who has heard of all ranks knows that all have.
class SegmentedSchedule {
 public:
  explicit SegmentedSchedule(const CallShape& shape) : shape_(shape) {}

  Schedule schedule;
  std::size_t num_segments() const {
    return internal::num_segments(shape_.count, shape_.segment());
  }
  Range segment(Space space, std::size_t k) const {
    return segment_of({space, 0, shape_.count}, k, shape_.segment());
  }
  void send(int peer, Range range) {
    if (!verified_ && shape_.size > 2) schedule.verify();
    verified_ = true;
    schedule.send(peer, range);
  }

 protected:
  /// Segments that are in scratch memory at once, and room for one.
  static constexpr std::size_t kGenerations = 2;
  std::size_t slot() const { return std::min(shape_.count, shape_.segment()); }

  const CallShape& shape_;

 private:
  bool verified_ = false;
};

}  // namespace tutti::internal

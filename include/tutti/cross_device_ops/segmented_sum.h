// A sum of values that lie where they were computed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/dtype.h"

namespace tutti {

/// The sum of a bucket of gradients, or of a slice of it, over the replicas of this process, on
/// CPUs. Elements are numbered in the bucket; each replica has the values of a segment somewhere
/// else. What CrossDeviceOps::sum_segments() gets; valid until it returns.
struct SegmentedSum {
  /// Elements [begin, end) of the bucket that belong to one variable.
  struct Segment {
    std::size_t variable = 0;  // of the caller's list
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t count() const { return end - begin; }
  };

  std::uint64_t id = 0;        // of the bucket, as in ReplicaBuffer
  std::string_view name = {};  // of the bucket
  DType dtype = DType::kFloat32;
  /// Of the sums: `dtype`, or float32 for 16-bit values that are not to be rounded yet.
  DType sum_dtype = DType::kFloat32;
  std::span<const Device> replicas = {};
  /// Elements [begin, end) hold all segments, and gaps between them.
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<Segment> segments = {};  // increasing
  /// Which replicas a sum is of. Operations other than "canonical" are asked for the sum of all.
  std::span<const CanonicalNode> nodes = {};
  std::vector<std::byte*> sums = {};  // [segment][node]: where the segment's first element goes

  /// Where a replica's values of a block (a part of a segment) are; any alignment. `copy` has room
  /// for them, and may be nullptr where `in_blocks` is false. `clean`: with zeros in place of what
  /// is not finite, if the caller wants these.
  std::function<const std::byte*(std::size_t replica, const Segment& block, bool clean,
                                 std::byte* copy)>
      values = {};
  /// Called with the sum of a block over all replicas, which it may change. Returns whether the
  /// block is to be summed again from clean values. Empty: nobody looks.
  std::function<bool(const Segment& block, std::byte* sum, bool clean)> check = {};
  /// Values are copied or sums are looked at, so that blocks should stay in a cache.
  bool in_blocks = false;
  /// Values are clean from the beginning: to read them twice would count them twice.
  bool clean_first = false;
};

}  // namespace tutti

// Where the ranges of a schedule lie in memory, and what its steps do there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tutti/cross_device_ops/algorithms/schedule.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

/// A run of bytes, to find out who is in whose way.
struct ByteRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
  bool operator==(const ByteRange&) const = default;
};

/// The memory of one rank in one call. Nothing is owned.
struct RankMemory {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* scratch = nullptr;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;

  const std::byte* read(const Range& range) const;
  /// Not of Space::kInput.
  std::byte* write(const Range& range) const;
  ByteRange bytes_of(const Range& range) const;
  std::size_t num_bytes(const Range& range) const { return range.count * size_of(dtype); }

  /// What a kReceiveOnLeft or kReceiveOnRight step does with a message that lies at `received`, and
  /// a kReceive step (copies).
  void take(const Step& step, const std::byte* received) const;
  /// A kCombine or kCopy step.
  void apply(const Schedule& schedule, const Step& step) const;
};

/// Whether a step changes its range in this rank's memory.
inline bool writes(const Step& step) {
  return step.kind != StepKind::kSend && step.kind != StepKind::kVerify;
}
inline bool receives(const Step& step) {
  return step.kind == StepKind::kReceive || step.kind == StepKind::kReceiveOnLeft ||
         step.kind == StepKind::kReceiveOnRight;
}

}  // namespace tutti::internal

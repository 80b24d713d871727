// Schedules: the steps of one rank in a collective call, executed over messages or in local memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/buffer.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

/// Memory spaces of a rank: its input, its output, and scratch. Input and output may be the same
/// memory.
enum class Space : std::uint8_t { kInput, kOutput, kScratch };

/// Consecutive elements of a memory space.
struct Range {
  Space space = Space::kOutput;
  std::size_t first = 0;
  std::size_t count = 0;
};

enum class StepKind : std::uint8_t {
  kSend,           // sends `range` to `peer`
  kReceive,        // receives `range` from `peer`
  kReceiveOnLeft,  // receives values from `peer`; range = received op own
  kCombine,        // range = combination of the operands along the canonical tree
  kCopy,           // range = own
  kVerify,         // waits for the left neighbour's header and compares it
};

struct Step {
  StepKind kind = StepKind::kVerify;
  int peer = -1;
  Range range = {};
  Range own = {};
  std::uint32_t first_operand = 0;
  std::uint32_t num_operands = 0;
};

/// Returns true if the step changes its range in this rank's memory.
inline bool writes(const Step& step) {
  return step.kind != StepKind::kSend && step.kind != StepKind::kVerify;
}
inline bool receives(const Step& step) {
  return step.kind == StepKind::kReceive || step.kind == StepKind::kReceiveOnLeft;
}

/// Steps of a rank, executed in order; a receive waits for its message, but a send does not wait.
/// Messages between two ranks are received in the order in which they were sent. Before a step
/// writes memory, it waits for earlier sends from that memory.
struct Schedule {
  std::vector<Step> steps;
  std::vector<Range> operands;       // operands of kCombine steps
  std::size_t scratch_elements = 0;  // size of Space::kScratch

  std::span<const Range> operands_of(const Step& step) const {
    return std::span(operands).subspan(step.first_operand, step.num_operands);
  }

  void send(int peer, Range range);
  void receive(int peer, Range range);
  void receive_and_combine(int peer, Range range, Range own);
  void combine(Range range, const std::vector<Range>& from);
  void copy(Range range, Range own);
  void verify();
};

/// Description of a collective call for the algorithms: equal on all ranks except for `rank` and
/// the counts of all_to_all.
struct CallShape {
  Collective collective = Collective::kAllReduce;
  int size = 1;
  int rank = 0;
  int root = 0;
  std::size_t count = 0;          // see CollectiveHeader::count
  std::size_t element_bytes = 4;  // size of one element, in bytes
  std::size_t segment_bytes = 256 * 1024;
  std::span<const std::size_t> counts = {};          // see CollectiveCall
  std::span<const std::size_t> receive_counts = {};  // all_to_all

  std::size_t num_bytes() const { return count * element_bytes; }
  int peer(int distance) const { return ((rank + distance) % size + size) % size; }
  /// Returns the number of elements in a segment, at least one.
  std::size_t segment() const;
  /// Returns the number of elements in 64 bytes, at least 1; slices begin at multiples of this
  /// number.
  std::size_t line() const { return element_bytes < 64 ? 64 / element_bytes : 1; }
};

/// Returns segment `k` of a range that is divided into segments of `segment` elements (the last may
/// have fewer); empty if the range has no segment `k`.
Range segment_of(Range range, std::size_t k, std::size_t segment);
/// Returns the number of segments into which `count` elements are divided; 1 for an empty range.
std::size_t num_segments(std::size_t count, std::size_t segment);
/// Returns true if `range`, which is segment `k`, is sent. An empty segment is sent only if `k` is
/// 0, to show its sender's progress.
inline bool travels(const Range& range, std::size_t k) { return range.count > 0 || k == 0; }

/// Returns true if a rank begins by sending a message to `right`. That message then carries the
/// header.
bool begins_with_send(const Schedule& schedule, int right);

/// A range of bytes, used to detect overlaps.
struct ByteRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
  bool operator==(const ByteRange&) const = default;
};

/// View of one rank's memory in one call; it does not own the memory.
struct RankMemory {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* scratch = nullptr;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;

  const std::byte* read(const Range& range) const;
  /// Requires: `range` is not in Space::kInput.
  std::byte* write(const Range& range) const;
  ByteRange bytes_of(const Range& range) const;
  std::size_t num_bytes(const Range& range) const { return range.count * size_of(dtype); }

  /// Executes a kReceive step (a copy) or a kReceiveOnLeft step (a combination). `received` points
  /// to the message.
  void take(const Step& step, const std::byte* received) const;
  /// Executes a kCombine or kCopy step.
  void apply(const Schedule& schedule, const Step& step) const;
};

}  // namespace tutti::internal

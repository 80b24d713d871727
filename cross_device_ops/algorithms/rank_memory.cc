// What the steps of a schedule do in memory.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/algorithms/rank_memory.h"

#include <cstring>

#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/element_arithmetic.h"

namespace tutti::internal {

const std::byte* RankMemory::read(const Range& range) const {
  const std::size_t place = range.first * size_of(dtype);
  if (range.space == Space::kInput) return input + place;
  return (range.space == Space::kOutput ? output : scratch) + place;
}

std::byte* RankMemory::write(const Range& range) const {
  TUTTI_CHECK(range.space != Space::kInput, "a schedule writes to its input");
  return (range.space == Space::kOutput ? output : scratch) + range.first * size_of(dtype);
}

ByteRange RankMemory::bytes_of(const Range& range) const {
  if (range.count == 0) return {};
  const std::byte* const begin = read(range);
  return {begin, begin + num_bytes(range)};
}

void RankMemory::take(const Step& step, const std::byte* received) const {
  const Range& range = step.range;
  if (range.count == 0) return;
  if (step.kind == StepKind::kReceive) {
    std::memmove(write(range), received, num_bytes(range));
  } else if (step.kind == StepKind::kReceiveOnLeft) {
    combine(op, dtype, received, read(step.own), write(range), range.count);
  } else {
    combine(op, dtype, read(step.own), received, write(range), range.count);
  }
}

void RankMemory::apply(const Schedule& schedule, const Step& step) const {
  if (step.kind == StepKind::kCopy) {
    if (read(step.own) != write(step.range)) {
      std::memmove(write(step.range), read(step.own), num_bytes(step.range));
    }
    return;
  }
  const std::span<const Range> operands = schedule.operands_of(step);
  if (operands.size() == 2) {  // the tree of two, in place without a copy of the result
    return combine(op, dtype, read(operands[0]), read(operands[1]), write(step.range),
                   step.range.count);
  }
  std::vector<const std::byte*> inputs;
  for (const Range& operand : operands) inputs.push_back(read(operand));
  reduce_along_tree(op, dtype, inputs, write(step.range), step.range.count);
}

}  // namespace tutti::internal

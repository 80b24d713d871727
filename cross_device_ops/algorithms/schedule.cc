// Construction of schedules, and execution of their steps in memory.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/schedule.h"

#include <algorithm>
#include <cstring>

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

void Schedule::send(int peer, Range range) {
  steps.push_back({.kind = StepKind::kSend, .peer = peer, .range = range});
}
void Schedule::receive(int peer, Range range) {
  steps.push_back({.kind = StepKind::kReceive, .peer = peer, .range = range});
}
void Schedule::receive_and_combine(int peer, Range range, Range own) {
  steps.push_back({.kind = StepKind::kReceiveOnLeft, .peer = peer, .range = range, .own = own});
}
void Schedule::combine(Range range, const std::vector<Range>& from) {
  steps.push_back({.kind = StepKind::kCombine,
                   .range = range,
                   .first_operand = static_cast<std::uint32_t>(operands.size()),
                   .num_operands = static_cast<std::uint32_t>(from.size())});
  operands.insert(operands.end(), from.begin(), from.end());
}
void Schedule::copy(Range range, Range own) {
  if (range.count == 0) return;
  steps.push_back({.kind = StepKind::kCopy, .range = range, .own = own});
}
void Schedule::verify() { steps.push_back({.kind = StepKind::kVerify}); }

std::size_t CallShape::segment() const {
  const std::size_t lines = segment_bytes / (line() * element_bytes);
  return std::max<std::size_t>(1, lines * line());
}

Range segment_of(Range range, std::size_t k, std::size_t segment) {
  const std::size_t begin = std::min(range.count, k * segment);
  const std::size_t end = std::min(range.count, begin + segment);
  return {range.space, range.first + begin, end - begin};
}

std::size_t num_segments(std::size_t count, std::size_t segment) {
  return std::max<std::size_t>(1, (count + segment - 1) / segment);
}

bool begins_with_send(const Schedule& schedule, int right) {
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::kCopy) continue;
    return step.kind == StepKind::kSend && step.peer == right;
  }
  return false;
}

const std::byte* RankMemory::read(const Range& range) const {
  const std::size_t place = range.first * size_of(dtype);
  if (range.space == Space::kInput) return input + place;
  return (range.space == Space::kOutput ? output : scratch) + place;
}

std::byte* RankMemory::write(const Range& range) const {
  TUTTI_CHECK(range.space != Space::kInput, "a schedule must not write to its input");
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
  } else {
    combine(op, dtype, received, read(step.own), write(range), range.count);
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
  if (operands.size() == 2) {  // writes the result directly to its destination
    return combine(op, dtype, read(operands[0]), read(operands[1]), write(step.range),
                   step.range.count);
  }
  std::vector<const std::byte*> inputs;
  for (const Range& operand : operands) inputs.push_back(read(operand));
  reduce_along_tree(op, dtype, inputs, write(step.range), step.range.count);
}

}  // namespace tutti::internal

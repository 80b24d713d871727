// Building schedules, and what they cost.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/algorithms/schedule.h"

#include <algorithm>

namespace tutti::internal {

void Schedule::send(int peer, Range range) {
  steps.push_back({.kind = StepKind::kSend, .peer = peer, .range = range});
}
void Schedule::receive(int peer, Range range) {
  steps.push_back({.kind = StepKind::kReceive, .peer = peer, .range = range});
}
void Schedule::receive_and_combine(int peer, Range range, Range own, StepKind side) {
  steps.push_back({.kind = side, .peer = peer, .range = range, .own = own});
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

Traffic traffic_of(const Schedule& schedule) {
  Traffic traffic;
  for (const Step& step : schedule.steps) {
    if (step.kind != StepKind::kSend) continue;
    ++traffic.messages;
    traffic.elements += step.range.count;
  }
  return traffic;
}

bool greets_with_data(const Schedule& schedule, int right) {
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::kCopy) continue;
    return step.kind == StepKind::kSend && step.peer == right;
  }
  return false;
}

}  // namespace tutti::internal

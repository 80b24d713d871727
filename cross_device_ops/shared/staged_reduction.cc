// The steps of an all-reduce through windows.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/staged_reduction.h"

#include <algorithm>
#include <cstring>

#include "cross_device_ops/reduce_to_all.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kGrain = 64;  // elements

}  // namespace

StagedReduction::StagedReduction(WindowGroup& group)
    : group_(group), inputs_(static_cast<std::size_t>(group.size())) {}

StagedReduction::Range StagedReduction::slice(int rank) const {
  const auto r = static_cast<std::size_t>(rank), n = static_cast<std::size_t>(group_.size());
  const std::size_t begin = call_->count * r / n / kGrain * kGrain;
  const std::size_t end = r + 1 == n ? call_->count : call_->count * (r + 1) / n / kGrain * kGrain;
  return {begin, end - begin};
}

StagedReduction::Range StagedReduction::segment(int rank, std::size_t step) const {
  const Range all = slice(rank);
  const std::size_t begin = std::min(all.count, step * step_);
  return {all.begin + begin, std::min(step_, all.count - begin)};
}

template <class Body>
void StagedReduction::for_each_piece(Range range, const Body& body) const {
  if (range.count == 0) return;
  const auto after = std::ranges::upper_bound(firsts_, range.begin);
  auto buffer = static_cast<std::size_t>(after - firsts_.begin()) - 1;
  for (std::size_t at = 0; at < range.count; ++buffer) {
    const std::size_t first = range.begin + at - firsts_[buffer];
    const std::size_t count = std::min(range.count - at, call_->outputs[buffer].count - first);
    if (count > 0) body(buffer, first, at, count);
    at += count;
  }
}

void StagedReduction::run(const CollectiveCall& call, TimePoint deadline) {
  call_ = &call;
  element_ = size_of(call.dtype);
  firsts_.clear();
  std::size_t first = 0;
  for (const Elements& output : call.outputs) {
    firsts_.push_back(first);
    first += output.count;
  }
  std::size_t longest = 0;
  for (int r = 0; r < group_.size(); ++r) longest = std::max(longest, slice(r).count);
  // Short slices in a few steps, so that ranks work at the same time, but of 16 KiB, for shorter
  // ones cost more than they hide; long ones in steps that fit the caches.
  const std::size_t most = group_.layout().slot_bytes / element_;
  step_ = std::clamp((longest / 4 + kGrain - 1) / kGrain * kGrain, std::min(most, 16384 / element_),
                     longest * element_ > (std::size_t{8} << 20) ? most : (most + 1) / 2);
  const std::size_t num_steps = (longest + step_ - 1) / step_;
  for (std::size_t k = 0; k < num_steps + 2; ++k) {
    if (k < num_steps) contribute(k, deadline);
    if (k >= 1 && k - 1 < num_steps) combine(k - 1, deadline);
    if (k >= 2) collect(k - 2, deadline);
  }
  base_ += num_steps;
}

void StagedReduction::contribute(std::size_t step, TimePoint deadline) {
  const std::uint64_t now = base_ + step;
  // The slots' former content must have been used.
  group_.wait_for("combine", deadline, [&] {
    for (int r = 0; r < group_.size(); ++r) {
      const auto& reduced = group_.window(r).progress().reduced;
      if (r != group_.rank() && reduced.load() + WindowLayout::kDepth < now + 1) return false;
    }
    return true;
  });
  for (int d = 1; d < group_.size(); ++d) {
    const int to = (group_.rank() + d) % group_.size();
    std::byte* const slot = group_.own().slot(static_cast<std::size_t>(to), now);
    for_each_piece(segment(to, step),
                   [&](std::size_t buffer, std::size_t first, std::size_t at, std::size_t count) {
                     std::memcpy(slot + at * element_,
                                 call_->inputs[buffer].data + first * element_, count * element_);
                   });
  }
  group_.own().progress().sent.store(now + 1);
  group_.notify();
}

void StagedReduction::combine(std::size_t step, TimePoint deadline) {
  const std::uint64_t now = base_ + step;
  group_.wait_for("send their values", deadline, [&] {
    for (int r = 0; r < group_.size(); ++r) {
      const WindowProgress& other = group_.window(r).progress();
      if (r == group_.rank()) continue;
      if (other.sent.load() < now + 1) return false;
      if (other.collected.load() + WindowLayout::kDepth < now + 1) return false;
    }
    return true;
  });
  const auto own = static_cast<std::size_t>(group_.rank());
  std::byte* const result = group_.own().slot(own, now);
  for_each_piece(segment(group_.rank(), step), [&](std::size_t buffer, std::size_t first,
                                                   std::size_t at, std::size_t count) {
    for (std::size_t r = 0; r < inputs_.size(); ++r) {
      inputs_[r] = r == own ? call_->inputs[buffer].data + first * element_
                            : group_.window(static_cast<int>(r)).slot(own, now) + at * element_;
    }
    std::byte* const outputs[] = {call_->outputs[buffer].data + first * element_,
                                  result + at * element_};
    reduce_to_all(call_->op, call_->dtype, inputs_, outputs, count);
  });
  group_.own().progress().reduced.store(now + 1);
  group_.notify();
}

void StagedReduction::collect(std::size_t step, TimePoint deadline) {
  const std::uint64_t now = base_ + step;
  for (int d = 1; d < group_.size(); ++d) {
    const int from = (group_.rank() + d) % group_.size();
    const Window& window = group_.window(from);
    group_.wait_for("combine", deadline,
                    [&] { return window.progress().reduced.load() >= now + 1; });
    const std::byte* const slot = window.slot(static_cast<std::size_t>(from), now);
    for_each_piece(segment(from, step),
                   [&](std::size_t buffer, std::size_t first, std::size_t at, std::size_t count) {
                     std::memcpy(call_->outputs[buffer].data + first * element_,
                                 slot + at * element_, count * element_);
                   });
  }
  group_.own().progress().collected.store(now + 1);
  group_.notify();
}

}  // namespace tutti::internal

// Plans of the calls of a rank, kept for the next call like it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/algorithms/call_plans.h"

#include <algorithm>

namespace tutti::internal {

bool CallPlans::Entry::is_for(const Algorithm& other, const CollectiveCall& call) const {
  return algorithm == &other && collective == call.collective && count == call.count &&
         element_bytes == size_of(call.dtype) && root == call.root &&
         std::ranges::equal(counts, call.counts) &&
         std::ranges::equal(receive_counts, call.receive_counts);
}

const CallPlan& CallPlans::plan_for(const Algorithm& algorithm, int rank, int size,
                                    const CollectiveCall& call) {
  for (const auto& entry : entries_) {
    if (entry->is_for(algorithm, call)) return entry->plan;
  }
  CallShape shape{.collective = call.collective,
                  .size = size,
                  .rank = rank,
                  .root = call.root,
                  .count = call.count,
                  .element_bytes = size_of(call.dtype),
                  .segment_bytes = segment_bytes_,
                  .counts = call.counts,
                  .receive_counts = call.receive_counts};
  CallPlan plan{.schedule = make_schedule(algorithm, shape)};
  shape.rank = (rank + size - 1) % size;
  plan.left_greets_with_data = size > 1 && greets_with_data(make_schedule(algorithm, shape), rank);
  auto entry =
      std::make_unique<Entry>(Entry{&algorithm,
                                    call.collective,
                                    size_of(call.dtype),
                                    call.count,
                                    call.root,
                                    {call.counts.begin(), call.counts.end()},
                                    {call.receive_counts.begin(), call.receive_counts.end()},
                                    std::move(plan)});
  if (entries_.size() < kKept) entries_.emplace_back();
  auto& place = entries_[next_++ % kKept];
  place = std::move(entry);
  return place->plan;
}

}  // namespace tutti::internal

// Gradients of a synchronous step: who gave, who disagrees, and their sum.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/sync_accumulator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti::internal {
namespace {

bool are_equal(const UpdateScalars& a, const UpdateScalars& b) {
  return a.learning_rate == b.learning_rate && a.iteration == b.iteration &&
         a.gradient_scale == b.gradient_scale && a.weight_decay == b.weight_decay;
}

/// What is different, or nullptr.
const char* difference(const UpdateShard& a, const UpdateShard& b) {
  if (a.rule != b.rule) return "the rule";
  if (!are_equal(a.scalars, b.scalars)) return "the scalars (learning rate, iteration, ...)";
  if (a.slots != b.slots) return "the slots";
  if (a.rows.has_value() != b.rows.has_value()) return "whether the gradient is sparse";
  const SyncSpec &x = *a.sync, &y = *b.sync;
  if (x.num_ranks != y.num_ranks) return "the number of ranks";
  if (x.num_to_aggregate != y.num_to_aggregate) return "how many ranks are aggregated";
  if (x.divisor != y.divisor) return "the divisor";
  const bool must_be_equal = a.rule == kAddOnce;
  if (must_be_equal && !std::ranges::equal(a.gradient.bytes(), b.gradient.bytes())) {
    return "what is added";
  }
  return nullptr;
}

}  // namespace

SyncAccumulator::Taken SyncAccumulator::take(const UpdateShard& update, std::uint64_t num_steps) {
  const SyncSpec& sync = *update.sync;
  if (sync.step < num_steps) return Taken::kStale;
  if (sync.step - num_steps > kMostStepsAhead) {
    fail(ErrorCode::kFailedPrecondition, "rank ", sync.rank, " gives a gradient of step ",
         sync.step, " while step ", num_steps, " is the next one; expected at most step ",
         num_steps + kMostStepsAhead, "; try reading with at_least_steps before each step");
  }
  const auto held = steps_.find(sync.step);
  if (held != steps_.end()) {
    if (held->second.count(sync.rank) != 0) return Taken::kDuplicate;
    const auto& [rank, first] = *held->second.begin();
    if (const char* what = difference(*first, update)) {
      fail(ErrorCode::kInvalidArgument, "ranks ", rank, " and ", sync.rank, " disagree about step ",
           sync.step, ": ", what, " differs");
    }
  }
  steps_[sync.step].emplace(sync.rank, std::make_shared<const UpdateShard>(update));
  return Taken::kHeld;
}

bool SyncAccumulator::is_complete(std::uint64_t num_steps) const {
  const auto held = steps_.find(num_steps);
  if (held == steps_.end()) return false;
  const auto wanted = held->second.begin()->second->sync->num_to_aggregate;
  return static_cast<int>(held->second.size()) >= wanted;
}

bool SyncAccumulator::drop_complete(std::uint64_t num_steps) {
  return is_complete(num_steps) && steps_.erase(num_steps) > 0;
}

std::optional<UpdateShard> SyncAccumulator::take_complete(std::uint64_t num_steps,
                                                          const Shape& shape) {
  if (!is_complete(num_steps)) return std::nullopt;
  const GivenByRank given = std::exchange(steps_[num_steps], {});
  steps_.erase(num_steps);
  UpdateShard update = *given.begin()->second;
  const auto divided = [divisor = update.sync->divisor](const Tensor& sum) {
    return divisor == 1.0 ? sum : divide_by(sum, divisor).dense();
  };
  if (update.rule == kAddOnce) {
    // The first one's value stands for all.
  } else if (update.rows) {
    std::vector<IndexedSlices> slices;
    for (const auto& [rank, each] : given) {
      slices.push_back({each->gradient, *each->rows, shape});
    }
    const IndexedSlices sum = sum_slices_canonically(slices, Device{});
    update.rows = sum.indices;
    update.gradient = divided(sum.values);
  } else {
    std::vector<Tensor> values;
    for (const auto& [rank, each] : given) values.push_back(each->gradient);
    update.gradient = divided(reduce_tensors_along_tree(ReduceOp::kSum, values, Device{}));
  }
  update.sync.reset();
  return update;
}

bool SyncAccumulator::has_given(std::uint64_t step, int rank) const {
  const auto held = steps_.find(step);
  return held != steps_.end() && held->second.contains(rank);
}

std::vector<std::shared_ptr<const UpdateShard>> SyncAccumulator::held() const {
  std::vector<std::shared_ptr<const UpdateShard>> updates;
  for (const auto& [step, given] : steps_) {
    for (const auto& [rank, update] : given) updates.push_back(update);
  }
  return updates;
}

}  // namespace tutti::internal

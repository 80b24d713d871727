// The part of a global dataset that one of several workers reads, and how its steps are cut.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/strategy/input/input_plan.h"

namespace tutti::internal {

/// What a worker iterates.
struct InputPart {
  Dataset dataset;
  InputCut cut = InputCut::kSplit;
  /// What this is a part of: shows what an empty batch looks like to workers without elements.
  Dataset whole;
  /// Steps of an epoch and rows of a full one over all workers, if known.
  std::optional<std::int64_t> steps = std::nullopt;
  std::optional<std::int64_t> global_batch_size = std::nullopt;
};

/// Checks and completes `plan`, and applies its sharding rule to `dataset`. Throws kInvalidArgument
/// for numbers that contradict each other, kFailedPrecondition where rows_of_workers is missing,
/// kUnimplemented for place_dataset_on_device; errors of auto_shard().
InputPart part_of_worker(const Dataset& dataset, InputPlan& plan);

/// Throws kInvalidArgument naming `who` where `cardinality` is that of data that never end, for
/// calls that read to the end; `remedy`: what to try.
void require_end(std::string_view who, std::optional<std::int64_t> cardinality,
                 std::string_view remedy);

/// Makes steps, one element per replica of this worker, of what a part yields. `plan` and `part`
/// must outlive it. Used by one thread.
class StepCutter {
 public:
  StepCutter(const InputPlan& plan, const InputPart& part) : plan_(plan), part_(part) {}

  /// Nothing at the end, which is that of all workers. With several workers, steps that none of
  /// them has a row for are left out.
  std::optional<std::vector<Element>> next(ElementIterator& elements);
  /// Steps since the last call, those left out included.
  std::int64_t take_steps() { return std::exchange(steps_, 0); }

 private:
  std::optional<std::vector<Element>> cut_next(ElementIterator& elements);
  std::optional<std::vector<Element>> whole_next(ElementIterator& elements);
  std::vector<std::int64_t> ask_workers(std::int64_t rows) const;
  const Element& pattern();

  const InputPlan& plan_;
  const InputPart& part_;
  std::int64_t steps_ = 0;
  bool is_first_batch_ = true;
  std::optional<Element> pattern_;  // some element, whose rows do not matter
};

}  // namespace tutti::internal

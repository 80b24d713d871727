// The part of a global dataset that one worker reads, and its division into steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/strategy/input/input_plan.h"

namespace tutti::internal {

/// Data that one worker reads.
struct InputPart {
  Dataset dataset;
  InputCut cut = InputCut::kSplit;
  /// The full dataset; workers without elements derive the structure of an empty batch from it.
  Dataset whole;
  /// Steps per epoch, and rows per full step across all workers, if known.
  std::optional<std::int64_t> steps = std::nullopt;
  std::optional<std::int64_t> global_batch_size = std::nullopt;
};

/// Checks and completes `plan`, and applies its sharding rule to `dataset`. Throws kInvalidArgument
/// for contradictory options, kFailedPrecondition if rows_of_workers is missing, kUnimplemented for
/// place_dataset_on_device, and any error that auto_shard() throws.
InputPart part_of_worker(const Dataset& dataset, InputPlan& plan);

/// Throws kInvalidArgument, naming `who`, if `cardinality` is infinite. For calls that read to the
/// end. `remedy` is a suggestion for the message.
void require_end(std::string_view who, std::optional<std::int64_t> cardinality,
                 std::string_view remedy);

/// Splits the elements of a part into steps, with one element per replica of this worker. `plan`
/// and `part` must outlive this object. Not thread-safe.
class StepCutter {
 public:
  StepCutter(const InputPlan& plan, const InputPart& part) : plan_(plan), part_(part) {}

  /// Returns the next step's elements, one per replica of this worker; nullopt at the end, which
  /// all workers reach at the same step. With several workers, skips steps in which no worker has
  /// rows.
  std::optional<std::vector<Element>> next(ElementIterator& elements);
  /// Returns the number of steps since the last call, including skipped ones.
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
  std::optional<Element> pattern_;  // any element; only its structure matters
};

}  // namespace tutti::internal

// Steps of several replicas, and of several workers, from the elements of a dataset.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tutti/core/logging.h"
#include "tutti/strategy/input_parts.h"
#include "tutti/strategy/rebatch.h"

namespace tutti::internal {
namespace {

std::vector<std::int64_t> sizes_of(const Element& batch, const InputPlan& plan) {
  std::vector<double> weights = plan.current_weights ? plan.current_weights() : plan.weights;
  if (weights.empty() && plan.max_rows.empty()) {
    return replica_rows(batch.rows(), plan.num_replicas_in_sync);
  }
  weights.resize(static_cast<std::size_t>(plan.num_replicas_in_sync), 1.0);
  return plan.max_rows.empty() ? weighted_replica_rows(batch.rows(), weights)
                               : capped_replica_rows(batch.rows(), weights, plan.max_rows);
}

bool is_batched(const Element& element) { return element.size() > 0 && element[0].rank() > 0; }

std::int64_t rows_in(const std::vector<Element>& pieces) {
  std::int64_t rows = 0;
  for (const Element& piece : pieces) rows += piece.rows();
  return rows;
}

// Says which rows of the step's global batch the pieces are.
void place(std::vector<Element>& pieces, std::int64_t first_row, std::int64_t global_rows) {
  for (Element& piece : pieces) {
    const std::int64_t rows = piece.rows();
    piece = piece.placed_in(first_row, global_rows);
    first_row += rows;
  }
}

// A scalar has no empty form: as in tf the pass ends when a replica lacks an element.
void warn_of_left_out_scalars(std::size_t count) {
  if (count == 0) return;
  log_warning_once(concat("distribute_datasets_from_function: the last ", count,
                          " elements do not reach all replicas and are left out; batch() the "
                          "dataset to use them"));
}

}  // namespace

std::optional<std::vector<Element>> StepCutter::next(ElementIterator& elements) {
  for (;;) {
    auto pieces = part_.cut == InputCut::kSplit ? cut_next(elements) : whole_next(elements);
    if (!pieces) return std::nullopt;
    ++steps_;
    // Rotated sizes may leave a step to nobody: training on no row would still move momenta.
    const bool nobody = is_batched(pieces->front()) && pieces->front().global_rows() == 0;
    if (plan_.num_workers == 1 || !nobody) return pieces;
  }
}

std::optional<std::vector<Element>> StepCutter::cut_next(ElementIterator& elements) {
  std::optional<Element> batch = elements.next();
  if (!batch) return std::nullopt;
  for (const Tensor& tensor : batch->tensors()) {
    if (tensor.rank() == 0) {
      fail(ErrorCode::kInvalidArgument,
           "distribute_dataset: the dataset is not batched; expected elements whose first "
           "dimension is the global batch, got a scalar; try dataset.batch(global_batch_size)");
    }
  }
  const std::vector<std::int64_t> sizes = sizes_of(*batch, plan_);
  const auto own = sizes.begin() + plan_.first_replica;
  std::int64_t first = 0;
  for (auto size = sizes.begin(); size != own; ++size) first += *size;
  std::vector<Element> pieces;
  for (auto size = own; size != own + std::ssize(plan_.replica_devices); ++size) {
    pieces.push_back(batch->slice_rows(first, *size));
    first += *size;
  }
  return pieces;
}

std::optional<std::vector<Element>> StepCutter::whole_next(ElementIterator& elements) {
  const std::size_t replicas = plan_.replica_devices.size();
  std::vector<Element> pieces;
  while (pieces.size() < replicas) {
    std::optional<Element> element = elements.next();
    if (!element) break;
    pieces.push_back(std::move(*element));
  }
  if (!pieces.empty()) pattern_ = pieces.front();
  const bool scalars = !pieces.empty() && !is_batched(pieces.front());
  const bool no_more = pieces.empty() || (scalars && pieces.size() < replicas);
  const std::int64_t own = no_more ? kNoMoreRows : (scalars ? std::ssize(pieces) : rows_in(pieces));
  const std::vector<std::int64_t> all = ask_workers(own);
  const auto ended = std::count(all.begin(), all.end(), kNoMoreRows);
  if (ended == std::ssize(all) || (ended > 0 && !is_batched(pattern()))) {
    if (scalars) warn_of_left_out_scalars(pieces.size());
    return std::nullopt;
  }
  if (scalars) return pieces;
  while (pieces.size() < replicas) pieces.push_back(pattern().slice_rows(0, 0));
  std::int64_t first = 0, total = 0;
  for (std::size_t w = 0; w < all.size(); ++w) {
    if (static_cast<int>(w) == plan_.worker) first = total;
    total += std::max<std::int64_t>(all[w], 0);
  }
  place(pieces, first, total);
  return pieces;
}

std::vector<std::int64_t> StepCutter::ask_workers(std::int64_t rows) const {
  if (plan_.num_workers == 1) return {rows};
  std::vector<std::int64_t> all = plan_.rows_of_workers(rows);
  TUTTI_CHECK(std::ssize(all) == plan_.num_workers);
  return all;
}

const Element& StepCutter::pattern() {
  if (!pattern_) pattern_ = part_.whole.iterate(0)->next();
  if (!pattern_) {
    fail(ErrorCode::kFailedPrecondition, "distribute_dataset: worker ", plan_.worker,
         " has no element while others have, so that what an empty batch looks like is not known; "
         "expected at least one element on every worker");
  }
  return *pattern_;
}

}  // namespace tutti::internal

// Implements StepWarnings.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/replicas/step_warnings.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tensor/op_checks.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

std::string result_warning(std::string_view replicas, std::uint64_t step, std::string_view strategy,
                           double result) {
  return concat("replica ", replicas, ", step ", step, ": the step of '", strategy, "' returned ",
                std::isnan(result) ? "nan" : (result > 0 ? "inf" : "-inf"),
                "; expected a finite loss; try a smaller learning rate, clipnorm, or "
                "CommunicationOptions::non_finite to find or skip such gradients; logged once");
}

void StepWarnings::check_step(std::span<const ReplicaNotes> notes, const NotedStep& step) {
  if (!has_warned_of_rows_) check_rows(notes, step);
  if (!has_warned_of_results_) check_results(notes, step);
  if (!has_warned_of_means_ && step.num_exchanging > 1) check_means(notes, step);
}

void StepWarnings::check_rows(std::span<const ReplicaNotes> notes, const NotedStep& step) {
  const auto differs = [&](const ReplicaNotes& note) {
    return note.assumed_rows != notes.front().assumed_rows;
  };
  if (std::ranges::none_of(notes, differs)) return;
  std::vector<std::int64_t> rows;
  for (const ReplicaNotes& note : notes) rows.push_back(note.assumed_rows.value_or(0));
  has_warned_of_rows_ = true;
  log_warning(concat("compute_average_loss in step ", step.number, " of '", step.strategy,
                     "': replicas have different numbers of rows, [", join(rows),
                     "], so rows times replicas is not the global batch and the sum over "
                     "replicas is not the mean; call compute_average_loss(losses, "
                     "batch.global_rows())"));
}

void StepWarnings::check_results(std::span<const ReplicaNotes> notes, const NotedStep& step) {
  std::vector<int> replicas, without_rows;
  double result = 0.0;
  for (std::size_t r = 0; r < notes.size(); ++r) {
    if (!notes[r].non_finite_result) continue;
    const int replica = step.first_replica + static_cast<int>(r);
    if (notes[r].batch_rows == 0) {
      without_rows.push_back(replica);
      continue;
    }
    if (replicas.empty()) result = *notes[r].non_finite_result;
    replicas.push_back(replica);
  }
  if (!without_rows.empty() && !std::exchange(told_of_empty_batches_, true)) {
    log_warning(concat(
        "replica ", join(without_rows), ", step ", step.number, ": the step of '", step.strategy,
        "' returned a number that is not finite, because its batch "
        "has no rows, and a mean over no rows is not a number; expected a finite "
        "loss; call compute_average_loss(per_example, batch.global_rows()), which is "
        "0 for no rows; logged once"));
  }
  if (replicas.empty()) return;
  has_warned_of_results_ = true;
  log_warning(result_warning(join(replicas), step.number, step.strategy, result));
}

/// Ignores means over a number of rows other than the batch's, because such means may serve any
/// purpose.
void StepWarnings::check_means(std::span<const ReplicaNotes> notes, const NotedStep& step) {
  const auto is_of_batch = [](const ReplicaNotes& note) {
    return note.summed_mean && note.batch_rows.value_or(0) > 1 &&
           note.summed_mean->rows == note.batch_rows;
  };
  const auto found = std::ranges::find_if(notes, is_of_batch);
  if (found == notes.end()) return;
  has_warned_of_means_ = true;
  const int count = step.num_exchanging;
  log_warning(concat(who("reduce_mean", found->summed_mean->where), " in step ", step.number,
                     " of '", step.strategy, "': the loss is a mean over this replica's ",
                     *found->batch_rows, " rows, but gradients are summed over ", count,
                     " replicas: they are ", count,
                     " times those of the mean over the global batch; call "
                     "compute_average_loss(per_example, batch.global_rows()); logged once"));
}

}  // namespace tutti::internal

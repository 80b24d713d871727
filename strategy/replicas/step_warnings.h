// Warnings about mistakes in training loops, detected from what replicas record during a run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/autograd/replica_group.h"

namespace tutti::internal {

/// Notes of one replica. All fields except the first describe the last run.
struct ReplicaNotes {
  double communication_seconds = 0.0;
  std::optional<std::int64_t> assumed_rows;
  std::optional<std::int64_t> batch_rows;  // number of rows in the batch passed to the step
  std::optional<double> non_finite_result;
  std::optional<MeanOfRows> summed_mean;
  bool draws = false;  // true if the replica drew random numbers or called an optimizer
};

struct NotedStep {
  std::string_view strategy;
  std::uint64_t number = 0;
  int first_replica = 0;   // global index of this process's first replica
  int num_exchanging = 1;  // replicas that exchange values, not those that train independently
};

/// Checks steps for user mistakes. Logs each kind of mistake once, because every later step repeats
/// it. Not thread-safe.
class StepWarnings {
 public:
  void check_step(std::span<const ReplicaNotes> notes, const NotedStep& step);

 private:
  void check_rows(std::span<const ReplicaNotes> notes, const NotedStep& step);
  void check_results(std::span<const ReplicaNotes> notes, const NotedStep& step);
  void check_means(std::span<const ReplicaNotes> notes, const NotedStep& step);

  bool has_warned_of_rows_ = false;
  bool has_warned_of_results_ = false;
  bool told_of_empty_batches_ = false;
  bool has_warned_of_means_ = false;
};

/// Returns a warning that steps of `strategy` return non-finite results, such as `result`.
std::string result_warning(std::string_view replicas, std::uint64_t step, std::string_view strategy,
                           double result);

}  // namespace tutti::internal

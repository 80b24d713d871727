// In which order a stage of a pipeline works on micro-batches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

namespace tutti {

/// kAllForwardFirst: GPipe's. All micro-batches go forward, then all go back: simple, and each
/// stage keeps what all of them need. kOneForwardOneBackward: a stage goes back as soon as it can
/// and keeps at most as many micro-batches as there are stages from it to the end. Both go back
/// in the order 0, 1, ..., so that gradients have the same bits.
enum class PipelineOrder { kAllForwardFirst, kOneForwardOneBackward };

std::string_view to_string(PipelineOrder order);

/// What a stage does at one time.
struct PipelineTask {
  bool is_forward = true;
  int micro_batch = 0;
  bool operator==(const PipelineTask&) const = default;
};

/// The tasks of stage `stage` of `num_stages`, each micro-batch forward once and backward once.
/// Throws kInvalidArgument for numbers out of range.
std::vector<PipelineTask> pipeline_schedule(PipelineOrder order, int stage, int num_stages,
                                            int num_micro_batches);

}  // namespace tutti

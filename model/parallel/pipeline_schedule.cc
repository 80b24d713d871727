// The two orders of a pipeline.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/pipeline_schedule.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti {

std::string_view to_string(PipelineOrder order) {
  return order == PipelineOrder::kAllForwardFirst ? "all forward first"
                                                  : "one forward, one backward";
}

std::vector<PipelineTask> pipeline_schedule(PipelineOrder order, int stage, int num_stages,
                                            int num_micro_batches) {
  if (stage < 0 || stage >= num_stages || num_micro_batches < 1) {
    fail(ErrorCode::kInvalidArgument, "pipeline_schedule: expected a stage of 0 .. ",
         num_stages - 1, " and one micro-batch or more, got stage ", stage, " and ",
         num_micro_batches);
  }
  // How many micro-batches a stage has begun, and not finished, while it alternates.
  const int ahead = order == PipelineOrder::kAllForwardFirst
                        ? num_micro_batches
                        : std::min(num_stages - stage, num_micro_batches);
  std::vector<PipelineTask> tasks;
  for (int forward = 0, backward = 0; backward < num_micro_batches;) {
    if (forward < num_micro_batches && forward - backward < ahead) {
      tasks.push_back({true, forward++});
    } else {
      tasks.push_back({false, backward++});
    }
  }
  return tasks;
}

}  // namespace tutti

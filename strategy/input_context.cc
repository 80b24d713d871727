// Batch sizes and text of an input pipeline's context.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/input_context.h"

#include "tutti/core/error.h"

namespace tutti {

std::int64_t InputContext::get_per_replica_batch_size(std::int64_t global_batch_size) const {
  if (num_replicas_in_sync < 1 || global_batch_size % num_replicas_in_sync != 0) {
    fail(ErrorCode::kInvalidArgument,
         "InputContext::get_per_replica_batch_size: the global batch does not divide; expected a "
         "multiple of num_replicas_in_sync = ",
         num_replicas_in_sync, ", got ", global_batch_size);
  }
  return global_batch_size / num_replicas_in_sync;
}

std::string InputContext::to_string() const {
  return concat("input pipeline id ", input_pipeline_id, ", total: ", num_input_pipelines);
}

}  // namespace tutti

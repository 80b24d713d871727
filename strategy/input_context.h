// What functions that make input or values are told.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// tf.distribute.InputContext.
struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;
  int num_replicas_in_sync = 1;

  /// global_batch_size / num_replicas_in_sync; throws kInvalidArgument naming both when it does not
  /// divide.
  std::int64_t get_per_replica_batch_size(std::int64_t global_batch_size) const;
  /// "input pipeline id 1, total: 3".
  std::string to_string() const;
};

/// tf.distribute.experimental.ValueContext.
struct ValueContext {
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
};

}  // namespace tutti

// Flags that define a task, as in the programs of the Distributed TensorFlow guide.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/core/flags.h"

namespace tutti::examples {

/// Flags --ps_hosts a:1,b:1 --worker_hosts c:1,d:1 --job_name ps|worker --task_index 0|1.
struct TaskFlags {
  std::string ps_hosts, worker_hosts, job_name;
  std::int64_t task_index = 0;

  void add_to(Flags& flags);
  /// Returns the cluster resolver that the flags describe. Without flags, returns the resolver for
  /// the environment (TF_CONFIG, `tutti run`). Throws kInvalidArgument if there are hosts but no
  /// job name.
  std::unique_ptr<ClusterResolver> resolver() const;
};

}  // namespace tutti::examples

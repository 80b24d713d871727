// Decides whether and when a failed process is started again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/launch/exit_status.h"
#include "tutti/core/clock.h"

namespace tutti::launch {

struct RestartLimits {
  int per_task = 0;
  int per_job = 0;
  /// A process that lives shorter has failed at once; after `quick_failures` such ends in a row it
  /// is not started again. In between the launcher waits longer each time.
  Duration quick = std::chrono::seconds(1);
  int quick_failures = 5;
};

/// What is left of the limits. Threads: one.
class RestartBudget {
 public:
  struct Decision {
    std::optional<Duration> delay;  // start again after that; empty: do not
    std::string reason;             // why not
  };

  RestartBudget(RestartLimits limits, int num_tasks);
  /// To be called once per failure; counts a restart when it allows one.
  Decision decide(int rank, const ExitStatus& status, Duration lived);
  int num_restarts(int rank) const;

 private:
  struct Task {
    int restarts = 0;
    int quick_failures = 0;  // in a row
  };
  RestartLimits limits_;
  std::vector<Task> tasks_;
  int restarts_ = 0;
};

}  // namespace tutti::launch

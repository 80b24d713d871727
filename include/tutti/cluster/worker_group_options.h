// How the workers of a job find, reach and watch each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/cluster/net/job_durations.h"

namespace tutti {

/// The same on all workers, but for addresses.
struct WorkerGroupOptions {
  /// How long the workers wait for each other at the start.
  Duration join_timeout = durations::kJoinTimeout;
  /// How bytes get from worker to worker.
  ConnectOptions::Way way = ConnectOptions::Way::kAuto;
  /// Where this worker listens for the others' messages ("0.0.0.0:5000"), and where they reach it
  /// ("203.0.113.7:31000"): for ports that are mapped on the way. Empty: as TUTTI_DATA_LISTEN and
  /// TUTTI_DATA_ADDRESS say; without those a free port of the task's own address.
  std::string listen_at = "";
  std::string reached_at = "";
  /// Secret, health, where the control server is: see there.
  JoinOptions join = {};
  /// For a group in a larger job, which begins anew as a whole: nobody is a replacement there. Gets
  /// every verdict, by a thread of the job, and returns whether that ends the group's calls. Those
  /// on its own workers do so anyhow.
  std::function<bool(const Verdict&)> ends_calls = {};
};

}  // namespace tutti

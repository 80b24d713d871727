// Messages between a coordinator and a worker in another process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "tutti/cluster/rpc/packet.h"

namespace tutti::internal {

/// The first request: both must define the same steps (StepRegistry::text()).
struct WorkerHello {
  std::string steps = {};
};
/// Answered with the outcome, when there is one.
struct RunTask {
  std::uint64_t call = 0;  // unique among those of the client
  std::uint64_t finished_below = 0;
  WorkerTask task = {};  // watermark and token do not travel
};
struct CancelTask {
  std::uint64_t call = 0;
};
struct ReleaseValue {
  PerWorkerHandle handle = {};
};
using WorkerRequest = std::variant<WorkerHello, RunTask, CancelTask, ReleaseValue>;

/// Messages of cluster/proto/worker.proto. Throws as encode_nest().
Packet encode(const WorkerRequest& request);
/// Throws kDataLoss for packets that encode() does not write.
WorkerRequest decode_worker_request(const Packet& packet);

Packet encode(const TaskOutcome& outcome);
TaskOutcome decode_outcome(const Packet& packet);

}  // namespace tutti::internal

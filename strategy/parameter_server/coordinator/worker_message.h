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

/// First request: both must define the same steps (StepRegistry::text()).
struct WorkerHello {
  std::string steps = {};
};
/// Request to run a task, answered with its outcome.
struct RunTask {
  std::uint64_t call = 0;  // unique among the calls of the client
  std::uint64_t finished_below = 0;
  WorkerTask task = {};  // watermark and token are not sent
};
struct CancelTask {
  std::uint64_t call = 0;
};
struct ReleaseValue {
  PerWorkerHandle handle = {};
};
using WorkerRequest = std::variant<WorkerHello, RunTask, CancelTask, ReleaseValue>;

/// Encode as messages of cluster/proto/worker.proto. Throw as encode_nest().
Packet encode(const WorkerRequest& request);
/// Throws kDataLoss for packets that encode() does not write.
WorkerRequest decode_worker_request(const Packet& packet);

Packet encode(const TaskOutcome& outcome);
TaskOutcome decode_outcome(const Packet& packet);

}  // namespace tutti::internal

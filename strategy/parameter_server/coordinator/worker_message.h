// Messages between a coordinator and a worker in another process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "tutti/cluster/rpc/packet.h"
#include "worker.pb.h"

namespace tutti::internal {

/// A message of cluster/proto/worker.proto; the arguments of a task are stored separately.
struct WorkerRequest {
  v1::WorkerRequest message = {};
  Nest arguments = {};
};

/// The encode() functions throw the same errors as encode_nest().
Packet encode(WorkerRequest request);
/// Throws kDataLoss for packets that encode() cannot have written.
WorkerRequest decode_worker_request(const Packet& packet);

Packet encode(const TaskOutcome& outcome);
TaskOutcome decode_outcome(const Packet& packet);

/// Convert handles. Owners are not sent.
void put_handle(const PerWorkerHandle& handle, v1::Nest::PerWorkerHandle& out);
PerWorkerHandle handle_of(const v1::Nest::PerWorkerHandle& in);

}  // namespace tutti::internal

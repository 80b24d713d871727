// The GPUs of all workers as one group of NCCL: whether they can be that, and what it is then.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

class WorkerTeam;

/// Whether sums of gradients go from GPU to GPU by NCCL: kNever: by the hosts, as those of CPUs.
/// kIfAllCan: by NCCL where every worker can. kAlways: where one cannot it is an error.
enum class NcclUse { kNever, kIfAllCan, kAlways };

/// What a worker brings.
struct WorkerGpus {
  std::vector<Device> devices;  // of its replicas; CPUs, too
  NcclUse use = NcclUse::kNever;
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
};

/// Called by all workers, once they know their numbers of replicas. The operation "nccl" over all
/// replicas of all workers, or nullptr. Worker 0 says in one line why, where there was a choice.
/// Throws on all workers alike, naming those that cannot: kInvalidArgument for replicas on CPUs, or
/// that share a GPU, and for workers that name different uses; kUnavailable for a missing library.
std::unique_ptr<CrossDeviceOps> connect_worker_gpus(WorkerTeam& team, const WorkerGpus& own);

}  // namespace tutti::internal

// The places of all ranks of a host, in their segments.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/cluster/net/segment.h"
#include "tutti/cross_device_ops/shared/host_memory.h"

namespace tutti::internal {

/// `segments` by rank.
std::shared_ptr<HostMemory> shm_memory(int rank, std::vector<std::shared_ptr<Segment>> segments);

}  // namespace tutti::internal

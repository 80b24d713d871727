// Collectives on memory that all ranks reach: of threads, and of processes of one host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "cross_device_ops/collective_engine.h"

namespace tutti::internal {

/// The engines of `size` ranks of this process, by rank. Reductions along the canonical tree: each
/// rank combines its part of all buffers straight into all results.
std::vector<std::unique_ptr<CollectiveEngine>> shared_engines(int size);

/// The rank of a transport that has host_memory(); `name` is "canonical" or "auto". Reductions
/// along the canonical tree, in one of four ways that all ranks choose alike: small buffers are
/// shown to all, who each combine them; buffers in HostMemory are combined where they lie, a part
/// by each rank; other all_reduces go through windows step by step; everything else through
/// messages.
std::unique_ptr<CollectiveEngine> window_engine(std::shared_ptr<Transport> transport,
                                                std::string_view name);

}  // namespace tutti::internal

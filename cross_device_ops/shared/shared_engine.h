// Collectives of threads on each other's memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/cross_device_ops/collective_engine.h"

namespace tutti::internal {

/// The engines of `size` ranks of this process, by rank. Reductions along the canonical tree: each
/// rank combines its part of all buffers straight into all results.
std::vector<std::unique_ptr<CollectiveEngine>> shared_engines(int size);

}  // namespace tutti::internal

// The operation "nccl": NVIDIA's collectives between GPUs in one or several processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

struct NcclFunctions;

/// Creates the operation "nccl". Throws kInvalidArgument for devices that are not GPUs, and for
/// replicas that share a GPU, which NCCL does not allow; the error names these replicas. Throws
/// kUnavailable if NCCL is missing.
std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options);
/// Overload that uses the given NCCL functions.
std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options,
                                              const NcclFunctions& functions);

}  // namespace tutti::internal

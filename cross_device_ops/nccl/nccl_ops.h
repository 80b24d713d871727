// The operation "nccl": NVIDIA's collectives between GPUs of one or several processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

struct NcclFunctions;

/// Makes the operation "nccl". Throws kInvalidArgument for devices that are not GPUs, and for two
/// replicas that share a GPU, which it names, because NCCL refuses this. Throws kUnavailable if
/// NCCL is missing.
std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options);
/// Overload that uses the given NCCL functions.
std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options,
                                              const NcclFunctions& functions);

}  // namespace tutti::internal

// The operation "nccl": NVIDIA's collectives, among GPUs of one process or of several.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

struct NcclFunctions;

/// The factory of "nccl". Throws kInvalidArgument for devices that are no GPUs, and for replicas
/// that share a GPU, which NCCL refuses, naming both; kUnavailable where there is no NCCL.
std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options);
/// The same on functions that the caller brings.
std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options,
                                              const NcclFunctions& functions);

}  // namespace tutti::internal

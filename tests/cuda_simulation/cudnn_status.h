// What the stand-ins of cuDNN share: handles, streams, and the words of the last error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn.h>

#include <optional>
#include <string>

#include "tutti/tensor/dtype.h"

namespace tutti::cuda_simulation {

/// Keeps `reason` for cudnnGetLastErrorString() and returns `status`.
cudnnStatus_t refuse(cudnnStatus_t status, std::string reason);

/// The stream of a living handle.
std::optional<cudaStream_t> stream_of(cudnnHandle_t handle);

/// Nothing for types that convolutions and softmax do not have.
std::optional<DType> dtype_of_cudnn(cudnnDataType_t type);

}  // namespace tutti::cuda_simulation

// Helpers of the simulated cuDNN: handles, streams, and the text of the last error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn.h>

#include <optional>
#include <string>

#include "tutti/tensor/dtype.h"

namespace tutti::cuda_simulation {

/// Stores `reason` for cudnnGetLastErrorString() and returns `status`.
cudnnStatus_t refuse(cudnnStatus_t status, std::string reason);

/// Returns the stream of a live handle.
std::optional<cudaStream_t> stream_of(cudnnHandle_t handle);

/// Returns nullopt for types that convolutions and softmax do not support.
std::optional<DType> dtype_of_cudnn(cudnnDataType_t type);

}  // namespace tutti::cuda_simulation

// Where the kernels of each topic announce themselves, and those that are no operation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/cuda/kernel.h"

namespace tutti::cuda {

// Own kernels (.cu).
void fill(const DeviceTensor& tensor, double value, cudaStream_t stream);

}  // namespace tutti::cuda

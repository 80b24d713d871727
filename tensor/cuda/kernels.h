// Where the kernels of each topic announce themselves, and those that are no operation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/cuda/kernel.h"

namespace tutti::cuda {

/// Calls the registration function of every topic (kernel_list.cc).
void register_kernels(KernelTable& table);

// Own kernels (.cu).
void fill(const DeviceTensor& tensor, double value, cudaStream_t stream);
void update(const DeviceUpdate& update, cudaStream_t stream);
void combine(const DeviceCombine& combine, cudaStream_t stream);
void copy_many(std::span<const DeviceCopy> copies, cudaStream_t stream);

}  // namespace tutti::cuda

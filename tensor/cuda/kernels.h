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

// On cuBLAS and cuDNN (and own kernels where these cannot do what the CPU does).
inline constexpr DType kFloatingTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                                           DType::kFloat16};
void register_matmul_kernels(KernelTable& table);
void register_convolution_kernels(KernelTable& table);
void register_bias_gradient_kernels(KernelTable& table);  // called by the former
void register_pooling_kernels(KernelTable& table);
void register_batch_normalization_kernels(KernelTable& table);
void register_softmax_kernels(KernelTable& table);

/// y [..., channels] = activation(y + bias), in place. `bias`: of y's type, or nullptr.
void add_bias_and_activate(const DeviceTensor& y, const void* bias, FusedActivation activation,
                           cudaStream_t stream);
/// to [columns, rows] = from [rows, columns] transposed.
void transpose_matrix(DType dtype, const void* from, void* to, std::int64_t rows,
                      std::int64_t columns, cudaStream_t stream);

}  // namespace tutti::cuda

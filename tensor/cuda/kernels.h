// Where the kernels of each topic announce themselves, and those that are no operation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/cuda/kernel.h"

namespace tutti::cuda {

/// Calls the registration function of every topic (kernel_list.cc).
void register_kernels(KernelTable& table);

// Own kernels (.cu). All put work into a stream and wait for nothing; kernels in one stream follow
// one another. None needs aligned memory beyond that of its elements; 16 bytes are fastest.

void register_unary_kernels(KernelTable& table);
void register_binary_kernels(KernelTable& table);
void register_comparison_kernels(KernelTable& table);
void register_cast_kernels(KernelTable& table);
void register_sum_kernels(KernelTable& table);
void register_extreme_kernels(KernelTable& table);
void register_shape_kernels(KernelTable& table);
void register_indexing_kernels(KernelTable& table);
void register_scanning_kernels(KernelTable& table);
void register_loss_kernels(KernelTable& table);
void register_group_normalization_kernels(KernelTable& table);
void register_local_response_kernels(KernelTable& table);
void register_resizing_kernels(KernelTable& table);
void register_dropout_kernels(KernelTable& table);

// Not operations: what DeviceMath is made of.

void fill(const DeviceTensor& tensor, double value, cudaStream_t stream);
/// float32 or float64; a launch for each 56 variables, three with the rules that use norms.
void update(const DeviceUpdate& update, cudaStream_t stream);
/// The part of update() for rules that use norms.
void update_with_norms(const DeviceUpdate& update, cudaStream_t stream);
/// 1 .. 64 inputs. MEAN also, of floating types: the sum is divided before it is rounded.
void combine(const DeviceCombine& combine, cudaStream_t stream);
/// A launch for each 128 copies, which must not overlap.
void copy_many(std::span<const DeviceCopy> copies, cudaStream_t stream);
/// With the bits of the CPU: rows that several positions name get their values in order.
void scatter(const DeviceScatter& scatter, cudaStream_t stream);
/// As in DeviceMath; a launch for each 96 tensors of a type.
void count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts,
                      cudaStream_t stream);
/// As in DeviceMath; two launches for each 96 tensors of a type.
void sums_of_squares(std::span<const DeviceTensor> tensors, double* sums, Workspace& workspace,
                     cudaStream_t stream);

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

// Where the CPU kernels announce themselves to builtin_kernels.cc: one function per topic.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/tensor/kernel_table.h"

namespace tutti::internal {

// A kernel may throw Error; dispatch puts "gather at train.cc:41: " in front of its message.

// tensor/cpu/reference/: slow, obvious loops.
void register_elementwise_kernels(KernelTable& table);
void register_reduction_kernels(KernelTable& table);
void register_shape_kernels(KernelTable& table);
void register_matmul_reference_kernels(KernelTable& table);
void register_convolution_reference_kernels(KernelTable& table);
void register_pooling_reference_kernels(KernelTable& table);
void register_normalization_reference_kernels(KernelTable& table);
void register_softmax_reference_kernels(KernelTable& table);
void register_group_normalization_kernels(KernelTable& table);
void register_resizing_kernels(KernelTable& table);
void register_scanning_kernels(KernelTable& table);
void register_random_reference_kernels(KernelTable& table);

// tensor/cpu/: our own fast loops.
void register_fast_elementwise_kernels(KernelTable& table);
void register_fast_cast_kernels(KernelTable& table);
void register_fast_reduction_kernels(KernelTable& table);
void register_fast_bias_kernels(KernelTable& table);
void register_fast_pooling_kernels(KernelTable& table);
void register_fast_normalization_kernels(KernelTable& table);
void register_fast_lrn_kernels(KernelTable& table);
void register_fast_group_normalization_kernels(KernelTable& table);
void register_fast_dropout_kernels(KernelTable& table);
void register_fast_resizing_kernels(KernelTable& table);

// tensor/cpu/onednn/: only in builds with oneDNN.
void register_onednn_kernels(KernelTable& table);
/// "oneDNN 2.6.3, avx2": with the instruction set that this processor gets.
std::string onednn_description();

/// What cpu_kernels() computes matrix products and convolutions with.
std::string cpu_math_description();

}  // namespace tutti::internal

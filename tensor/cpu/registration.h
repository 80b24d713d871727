// Functions that register CPU kernels, one per file, all called by builtin_kernels.cc; and fused
// activations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "tensor/kernel_table.h"

namespace tutti::internal {

// A kernel may throw Error; dispatch() prepends the operation and the caller's line to its message,
// as in "gather at train.cc:41: ".

// Reference kernels in tensor/cpu/reference/: simple, slow loops.
void register_elementwise_kernels(KernelTable& table);
void register_reduction_kernels(KernelTable& table);
void register_shape_kernels(KernelTable& table);
void register_product_reference_kernels(KernelTable& table);
void register_image_reference_kernels(KernelTable& table);
void register_normalization_reference_kernels(KernelTable& table);
void register_softmax_reference_kernels(KernelTable& table);
void register_attention_reference_kernels(KernelTable& table);

// Kernels in tensor/cpu/: loops that the compiler vectorizes.
void register_fast_elementwise_kernels(KernelTable& table);
void register_fast_reduction_kernels(KernelTable& table);
void register_fast_image_kernels(KernelTable& table);
void register_fast_normalization_kernels(KernelTable& table);

// Kernels in tensor/cpu/onednn/, which exist only in builds with oneDNN.
void register_onednn_kernels(KernelTable& table);
void register_onednn_attention_kernels(KernelTable& table);
/// Returns oneDNN's version and the instruction set that it uses here, such as "oneDNN 2.6.3,
/// avx2".
std::string onednn_description();

/// Applies the fused activation of matmul or conv2d to every element.
void activate(FusedActivation activation, std::span<float> values);

}  // namespace tutti::internal

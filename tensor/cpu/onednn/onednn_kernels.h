// The kernels on oneDNN: float32. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/kernel_table.h"

namespace tutti::internal {

void onednn_conv2d(const KernelArgs& args);
void onednn_conv2d_backward_input(const KernelArgs& args);
void onednn_conv2d_backward_filter(const KernelArgs& args);
void onednn_matmul(const KernelArgs& args);

}  // namespace tutti::internal

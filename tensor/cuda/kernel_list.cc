// Every topic that announces kernels.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/error.h"
#include "tutti/tensor/cuda/kernels.h"

namespace tutti::cuda {

void register_kernels(KernelTable& table) {
  register_matmul_kernels(table);
  register_convolution_kernels(table);
  register_pooling_kernels(table);
  register_batch_normalization_kernels(table);
  register_softmax_kernels(table);
  register_bias_gradient_kernels(table);
}

void update(const DeviceUpdate&, cudaStream_t) {
  fail(ErrorCode::kUnimplemented, "update: no kernel on GPUs");
}
void combine(const DeviceCombine&, cudaStream_t) {
  fail(ErrorCode::kUnimplemented, "combine: no kernel on GPUs");
}
void copy_many(std::span<const DeviceCopy>, cudaStream_t) {
  fail(ErrorCode::kUnimplemented, "copy_many: no kernel on GPUs");
}

}  // namespace tutti::cuda

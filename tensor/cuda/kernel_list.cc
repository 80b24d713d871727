// Every topic that announces kernels.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/kernels.h"

namespace tutti::cuda {

void register_kernels(KernelTable& table) {
  register_unary_kernels(table);
  register_binary_kernels(table);
  register_comparison_kernels(table);
  register_cast_kernels(table);
  register_sum_kernels(table);
  register_extreme_kernels(table);
  register_shape_kernels(table);
  register_indexing_kernels(table);
  register_scanning_kernels(table);
  register_loss_kernels(table);
  register_group_normalization_kernels(table);
  register_local_response_kernels(table);
  register_resizing_kernels(table);
  register_dropout_kernels(table);
  register_matmul_kernels(table);
  register_convolution_kernels(table);
  register_pooling_kernels(table);
  register_batch_normalization_kernels(table);
  register_softmax_kernels(table);
}

}  // namespace tutti::cuda

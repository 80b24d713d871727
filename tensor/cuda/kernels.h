// CUDA kernels: call arguments, the kernel table, and the registration functions of all files
// (called in backend.cc).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <variant>

#include "tensor/device_backend.h"
#include "tensor/kernel_table.h"

namespace tutti::cuda {

class MathLibraries;  // cuBLAS and cuDNN handles of one logical device (math_libraries.h)

/// Arguments of a kernel. The pointers refer to device memory, which the host must not access.
struct KernelCall {
  std::span<const DeviceTensor> inputs, outputs;
  const Attributes& attributes;
  const void* step_values = nullptr;  // see DeviceCall
  cudaStream_t stream = nullptr;
  MathLibraries& libraries;
  Workspace& workspace;

  template <class T>
  const T* in(std::size_t i) const {
    return static_cast<const T*>(inputs[i].data);
  }
  template <class T>
  T* out(std::size_t i) const {
    return static_cast<T*>(outputs[i].data);
  }
  template <class T>
  const T& attributes_as() const {
    return std::get<T>(attributes);
  }
};

/// Function that enqueues the work of one call in its stream.
using Kernel = void (*)(const KernelCall& call);

using KernelTable = KernelTableOf<Kernel>;

/// Calls the registration function of every file.
void register_kernels(KernelTable& table);

// Custom kernels (.cu). All enqueue work on a stream without waiting for it; kernels on one stream
// run in order. They require only the alignment of the element type; 16-byte alignment is fastest.

void register_elementwise_kernels(KernelTable& table);
void register_reduction_kernels(KernelTable& table);
void register_shape_kernels(KernelTable& table);
void register_indexing_kernels(KernelTable& table);
void register_scanning_kernels(KernelTable& table);
void register_loss_kernels(KernelTable& table);
void register_group_normalization_kernels(KernelTable& table);
void register_local_response_kernels(KernelTable& table);
void register_resizing_kernels(KernelTable& table);
void register_dropout_kernels(KernelTable& table);
void register_attention_kernels(KernelTable& table);

// Functions of DeviceContext that are not operations.

void fill(const DeviceTensor& tensor, double value, cudaStream_t stream);
/// Updates float32 or float64 variables in one launch per 56 variables (three for rules that use
/// norms).
void update(const DeviceUpdate& update, cudaStream_t stream);
/// Combines 1 to 64 inputs. Also computes MEAN for floating-point types (divides before rounding).
void combine(const DeviceCombine& combine, cudaStream_t stream);
/// Uses one launch per 128 copies. The copies must not overlap.
void copy_many(std::span<const DeviceCopy> copies, cudaStream_t stream);
/// Applies a scatter. The result is bit-identical to the CPU's, because values for the same row are
/// applied in order.
void scatter(const DeviceScatter& scatter, cudaStream_t stream);
/// Same as DeviceContext::count_non_finite(). Uses one launch per 96 tensors of a type.
void count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts,
                      cudaStream_t stream);
/// Same as DeviceContext::sums_of_squares(). Uses two launches per 96 tensors of a type.
void sums_of_squares(std::span<const DeviceTensor> tensors, double* sums, Workspace& workspace,
                     cudaStream_t stream);

// Kernels built on cuBLAS and cuDNN, and custom kernels where the results of these libraries differ
// from the CPU's.
inline constexpr DType kFloatingTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                                           DType::kFloat16};
void register_matmul_kernels(KernelTable& table);
void register_convolution_kernels(KernelTable& table);
/// Called by register_convolution_kernels().
void register_bias_gradient_kernels(KernelTable& table);
void register_pooling_kernels(KernelTable& table);
void register_batch_normalization_kernels(KernelTable& table);
void register_softmax_kernels(KernelTable& table);

/// Computes y = activation(y + bias) in place, y [..., channels]. `bias` has y's type, or is
/// nullptr.
void add_bias_and_activate(const DeviceTensor& y, const void* bias, FusedActivation activation,
                           cudaStream_t stream);
/// Transposes `from` [rows, columns] into `to` [columns, rows].
void transpose_matrix(DType dtype, const void* from, void* to, std::int64_t rows,
                      std::int64_t columns, cudaStream_t stream);

}  // namespace tutti::cuda

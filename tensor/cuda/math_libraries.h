// The handles of cuBLAS and cuDNN that one logical device uses, their settings and their plans.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/tensor/dtype.h"

namespace tutti::cuda {

/// The type as cuDNN names it; kUnimplemented for one that is not floating.
cudnnDataType_t cudnn_type(DType dtype);

/// The greatest power of two that divides the address, at most `most`: what plans may count on.
inline std::uintptr_t alignment_of(const void* pointer, std::uintptr_t most) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address == 0 ? most : std::min(most, address & (~address + 1));
}

class ConvolutionPlans;  // convolution_plans.h
class MatrixPlans;       // matrix_product.h

/// How matrix products and convolutions are computed.
struct MathOptions {
  /// Products of float32 on tensor cores, with 10 bits of fraction (TUTTI_TF32=1). Without it
  /// float32 is computed in float32.
  bool allow_tf32 = false;
  /// Only convolutions that give the same bits each time (TUTTI_CUDNN_DETERMINISTIC=0: others too).
  bool deterministic = true;
  /// Convolution plans to measure for each problem, of which the fastest is kept
  /// (TUTTI_CUDNN_TUNE=1: 8 of them); 0: the one that cuDNN names first.
  int num_measured_plans = 0;
  /// Convolution plans that want more memory than this are passed over.
  std::size_t max_workspace_bytes = std::size_t{1} << 30;

  /// From the environment; throws kInvalidArgument for a value other than 0 and 1.
  static MathOptions from_environment();
};

/// One per logical device, used by one thread at a time, with the device's GPU selected
/// (cudaSetDevice). Handles and plans are made when first used, also while that thread captures.
class MathLibraries {
 public:
  explicit MathLibraries(MathOptions options = MathOptions::from_environment());
  ~MathLibraries();
  MathLibraries(const MathLibraries&) = delete;
  MathLibraries& operator=(const MathLibraries&) = delete;

  cublasLtHandle_t blas();
  /// Bound to `stream`.
  cudnnHandle_t dnn(cudaStream_t stream);

  const MathOptions& options() const { return options_; }
  /// Plans made for other options are forgotten.
  void set_options(const MathOptions& options);

  MatrixPlans& matrix_plans() { return *matrix_plans_; }
  ConvolutionPlans& convolution_plans() { return *convolution_plans_; }

 private:
  MathOptions options_;
  cublasLtHandle_t blas_ = nullptr;
  cudnnHandle_t dnn_ = nullptr;
  cudaStream_t stream_of_dnn_ = nullptr;
  std::unique_ptr<MatrixPlans> matrix_plans_;
  std::unique_ptr<ConvolutionPlans> convolution_plans_;
};

/// Throws kInternal ("who: cuBLAS says ...") unless `status` is success; kResourceExhausted when
/// the library has no memory left; kUnimplemented for what it does not support.
void check(cublasStatus_t status, const char* who);
void check(cudnnStatus_t status, const char* who);

/// "cuBLAS 13.0.2, cuDNN 9.13.0": what is loaded.
std::string math_libraries_description();

}  // namespace tutti::cuda

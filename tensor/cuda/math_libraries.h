// cuBLAS and cuDNN handles of one logical device, with their settings and plans.
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

/// Returns cuDNN's name for the type. Throws kUnimplemented unless it is a floating-point type.
cudnnDataType_t cudnn_type(DType dtype);

/// Returns the largest power of two, at most `most`, that divides the address. Plans depend on this
/// alignment.
inline std::uintptr_t alignment_of(const void* pointer, std::uintptr_t most) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address == 0 ? most : std::min(most, address & (~address + 1));
}

class ConvolutionPlans;  // defined in convolution_plans.h
class MatrixPlans;       // defined in matrix_product.h

/// Options for matrix products and convolutions.
struct MathOptions {
  /// If true, computes float32 products on tensor cores, with a 10-bit fraction (TUTTI_TF32=1).
  bool allow_tf32 = false;
  /// If true, uses only convolutions whose results are the same in each run
  /// (TUTTI_CUDNN_DETERMINISTIC=0 allows any).
  bool deterministic = true;
  /// Number of convolution plans to measure per problem, of which the fastest is kept;
  /// TUTTI_CUDNN_TUNE=1 sets it to 8. 0 and 1 use cuDNN's first plan without measuring.
  int num_measured_plans = 0;
  /// Maximum workspace of a convolution plan, in bytes.
  std::size_t max_workspace_bytes = std::size_t{1} << 30;

  /// Reads the environment. Throws kInvalidArgument for a value other than 0 or 1.
  static MathOptions from_environment();
};

/// cuBLAS and cuDNN for one logical device. Used by one thread at a time, with the device's GPU
/// selected (cudaSetDevice). Handles and plans are created on first use, even during a capture.
class MathLibraries {
 public:
  explicit MathLibraries(MathOptions options = MathOptions::from_environment());
  ~MathLibraries();
  MathLibraries(const MathLibraries&) = delete;
  MathLibraries& operator=(const MathLibraries&) = delete;

  cublasLtHandle_t blas();
  /// Returns the handle, bound to `stream`.
  cudnnHandle_t dnn(cudaStream_t stream);

  const MathOptions& options() const { return options_; }
  /// Sets the options and drops the plans that were created with other options.
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

/// Throws unless `status` is success: kResourceExhausted if the library is out of memory,
/// kUnimplemented if it does not support the call, else kInternal.
void check(cublasStatus_t status, const char* who);
void check(cudnnStatus_t status, const char* who);

/// Returns the versions of the loaded libraries: "cuBLAS 13.0.2, cuDNN 9.13.0".
std::string math_libraries_description();

}  // namespace tutti::cuda

// cuBLAS and cuDNN handles, their options, and errors from their status codes.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/math_libraries.h"

#include <array>
#include <cstdlib>
#include <string_view>

#include "tensor/cuda/convolution_plans.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/matrix_product.h"
#include "tutti/core/error.h"

namespace tutti::cuda {
namespace {

constexpr int kPlansMeasuredWhenTuning = 8;

bool switch_in_environment(const char* name, bool otherwise) {
  const char* const value = std::getenv(name);
  if (value == nullptr || std::string_view(value).empty()) return otherwise;
  if (std::string_view(value) == "0") return false;
  if (std::string_view(value) == "1") return true;
  fail(ErrorCode::kInvalidArgument, name, ": expected 0 or 1, got '", value, "'");
}

ErrorCode code_of(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return ErrorCode::kResourceExhausted;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return ErrorCode::kUnimplemented;
  return ErrorCode::kInternal;
}

ErrorCode code_of(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) {
    return ErrorCode::kResourceExhausted;
  }
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) return ErrorCode::kUnimplemented;
  return ErrorCode::kInternal;
}

std::string library_version(cublasStatus_t (*property)(libraryPropertyType, int*)) {
  int major = 0, minor = 0, patch = 0;
  if (property(MAJOR_VERSION, &major) != CUBLAS_STATUS_SUCCESS ||
      property(MINOR_VERSION, &minor) != CUBLAS_STATUS_SUCCESS ||
      property(PATCH_LEVEL, &patch) != CUBLAS_STATUS_SUCCESS) {
    return "of unknown version";
  }
  return concat(major, ".", minor, ".", patch);
}

}  // namespace

cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDNN_DATA_FLOAT;
    case DType::kFloat64:
      return CUDNN_DATA_DOUBLE;
    case DType::kBFloat16:
      return CUDNN_DATA_BFLOAT16;
    case DType::kFloat16:
      return CUDNN_DATA_HALF;
    default:
      fail(ErrorCode::kUnimplemented, "cuDNN: expected a floating-point type, got ",
           to_string(dtype));
  }
}

void check(cublasStatus_t status, const char* who) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(code_of(status), who, ": cuBLAS reports ", cublasLtGetStatusName(status), ": ",
       cublasLtGetStatusString(status));
}

void check(cudnnStatus_t status, const char* who) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> reason{};
  cudnnGetLastErrorString(reason.data(), reason.size());
  fail(code_of(status), who, ": cuDNN reports ", cudnnGetErrorString(status),
       reason[0] != '\0' ? ": " : "", reason.data());
}

MathOptions MathOptions::from_environment() {
  MathOptions options;
  options.allow_tf32 = switch_in_environment("TUTTI_TF32", false);
  options.deterministic = switch_in_environment("TUTTI_CUDNN_DETERMINISTIC", true);
  if (switch_in_environment("TUTTI_CUDNN_TUNE", false)) {
    options.num_measured_plans = kPlansMeasuredWhenTuning;
  }
  return options;
}

MathLibraries::MathLibraries(MathOptions options)
    : options_(options),
      matrix_plans_(std::make_unique<MatrixPlans>()),
      convolution_plans_(std::make_unique<ConvolutionPlans>()) {}

MathLibraries::~MathLibraries() {
  if (blas_ != nullptr) (void)cublasLtDestroy(blas_);
  if (dnn_ != nullptr) (void)cudnnDestroy(dnn_);
}

cublasLtHandle_t MathLibraries::blas() {
  if (blas_ == nullptr) {
    const UncapturedScope not_captured;
    check(cublasLtCreate(&blas_), "cublasLtCreate");
  }
  return blas_;
}

cudnnHandle_t MathLibraries::dnn(cudaStream_t stream) {
  if (dnn_ == nullptr) {
    const UncapturedScope not_captured;
    check(cudnnCreate(&dnn_), "cudnnCreate");
    check(cudnnSetStream(dnn_, stream), "cudnnSetStream");
  } else if (stream != stream_of_dnn_) {
    check(cudnnSetStream(dnn_, stream), "cudnnSetStream");
  }
  stream_of_dnn_ = stream;
  return dnn_;
}

void MathLibraries::set_options(const MathOptions& options) {
  options_ = options;
  matrix_plans_ = std::make_unique<MatrixPlans>();
  convolution_plans_ = std::make_unique<ConvolutionPlans>();
}

std::string math_libraries_description() {
  const std::size_t dnn = cudnnGetVersion();  // 91900: 9.19.0
  return concat("cuBLAS ", library_version(cublasLtGetProperty), ", cuDNN ", dnn / 10'000, ".",
                dnn / 100 % 100, ".", dnn % 100);
}

}  // namespace tutti::cuda

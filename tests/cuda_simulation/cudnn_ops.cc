// Simulated cuDNN: handles, tensor descriptors, softmax.
// SPDX-License-Identifier: Apache-2.0
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/cuda_simulation/math_simulation.h"
#include "tests/cuda_simulation/simulation.h"

namespace tutti::cuda_simulation {
namespace {

struct CudnnLibrary {
  cudaStream_t stream = nullptr;
};
struct TensorDescriptor {
  std::optional<DType> dtype;
  std::array<std::int64_t, 4> dims{};
};

std::string& last_reason() {
  thread_local std::string reason;
  return reason;
}

/// Arguments of a softmax over rows of [rows, classes, 1, 1].
struct Softmax {
  cudnnSoftmaxAlgorithm_t algorithm;
  DType dtype;
  std::int64_t rows, classes;
  double alpha, beta;

  void store(void* to, std::int64_t i, double value) const {
    value *= alpha;
    if (beta != 0.0) value += beta * element(dtype, to, i);
    set_element(dtype, to, i, value);
  }

  void forward(const void* x, void* y) const {
    for (std::int64_t first = 0; first < rows * classes; first += classes) {
      double top = -std::numeric_limits<double>::infinity(), sum = 0.0;
      for (std::int64_t i = 0; i < classes; ++i) top = std::max(top, element(dtype, x, first + i));
      for (std::int64_t i = 0; i < classes; ++i)
        sum += std::exp(element(dtype, x, first + i) - top);
      for (std::int64_t i = first; i < first + classes; ++i) {
        const double value = element(dtype, x, i) - top;
        store(y, i, algorithm == CUDNN_SOFTMAX_LOG ? value - std::log(sum) : std::exp(value) / sum);
      }
    }
  }

  void backward(const void* y, const void* dy, void* dx) const {
    for (std::int64_t first = 0; first < rows * classes; first += classes) {
      const bool log = algorithm == CUDNN_SOFTMAX_LOG;
      double sum = 0.0;
      for (std::int64_t i = first; i < first + classes; ++i) {
        sum += element(dtype, dy, i) * (log ? 1.0 : element(dtype, y, i));
      }
      for (std::int64_t i = first; i < first + classes; ++i) {
        const double value = element(dtype, y, i), gradient = element(dtype, dy, i);
        store(dx, i, log ? gradient - std::exp(value) * sum : value * (gradient - sum));
      }
    }
  }
};

double scale_of(DType dtype, const void* scale) {
  return dtype == DType::kFloat64 ? *static_cast<const double*>(scale)
                                  : static_cast<double>(*static_cast<const float*>(scale));
}

/// Checks the arguments of a softmax call. Returns nullopt if one is invalid. Sets `status`.
std::optional<Softmax> softmax_of(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                  cudnnSoftmaxMode_t mode, const void* alpha, const void* beta,
                                  std::initializer_list<cudnnTensorDescriptor_t> descriptors,
                                  std::initializer_list<const void*> pointers,
                                  cudnnStatus_t& status) {
  status = CUDNN_STATUS_BAD_PARAM;
  if (!stream_of(handle)) {
    status = refuse(CUDNN_STATUS_NOT_INITIALIZED, "unknown handle");
    return std::nullopt;
  }
  const auto first = handles<TensorDescriptor>().find(*descriptors.begin());
  for (const cudnnTensorDescriptor_t descriptor : descriptors) {
    const auto found = handles<TensorDescriptor>().find(descriptor);
    if (!found || !first || !found->dtype || found->dims != first->dims ||
        found->dtype != first->dtype) {
      refuse(status, "tensor descriptors differ or are unknown");
      return std::nullopt;
    }
  }
  for (const void* pointer : pointers) {
    if (!is_device_memory(pointer) || !is_aligned(pointer, size_of(*first->dtype))) {
      refuse(status, "an address is not on the GPU or misaligned");
      return std::nullopt;
    }
  }
  if (mode != CUDNN_SOFTMAX_MODE_INSTANCE || algorithm == CUDNN_SOFTMAX_FAST) {
    status =
        refuse(CUDNN_STATUS_NOT_SUPPORTED, "the simulation supports only mode INSTANCE, not FAST");
    return std::nullopt;
  }
  const auto& d = first->dims;
  status = CUDNN_STATUS_SUCCESS;
  return Softmax{algorithm,
                 *first->dtype,
                 d[0],
                 d[1] * d[2] * d[3],
                 scale_of(*first->dtype, alpha),
                 scale_of(*first->dtype, beta)};
}

cudnnStatus_t started(cudnnHandle_t handle, std::function<void()> work) {
  const cudaError_t error = try_enqueue(*stream_of(handle), std::move(work));
  return error == cudaSuccess ? CUDNN_STATUS_SUCCESS
                              : refuse(CUDNN_STATUS_EXECUTION_FAILED, cudaGetErrorName(error));
}

}  // namespace

cudnnStatus_t refuse(cudnnStatus_t status, std::string reason) {
  last_reason() = std::move(reason);
  return status;
}

std::optional<cudaStream_t> stream_of(cudnnHandle_t handle) {
  const auto found = handles<CudnnLibrary>().find(handle);
  if (!found) return std::nullopt;
  return found->stream;
}

std::optional<DType> dtype_of_cudnn(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return DType::kFloat32;
    case CUDNN_DATA_DOUBLE:
      return DType::kFloat64;
    case CUDNN_DATA_HALF:
      return DType::kFloat16;
    case CUDNN_DATA_BFLOAT16:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

}  // namespace tutti::cuda_simulation

using namespace tutti::cuda_simulation;  // NOLINT: definitions of another library's symbols

extern "C" {

size_t cudnnGetVersion(void) { return 90'000; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (CUDNN_STATUS_CATEGORY(status)) {
    case 0:
      return "CUDNN_STATUS_SUCCESS";
    case 1000:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case 2000:
      return "CUDNN_STATUS_BAD_PARAM";
    case 3000:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}
void cudnnGetLastErrorString(char* message, size_t size) {
  if (size == 0) return;
  const std::size_t length = std::min(size - 1, last_reason().size());
  std::memcpy(message, last_reason().data(), length);
  message[length] = '\0';
  last_reason().clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (math_behavior().refuses_handles) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "no driver");
  *handle = reinterpret_cast<cudnnHandle_t>(handles<CudnnLibrary>().add());
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  return handles<CudnnLibrary>().remove(handle) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const auto found = handles<CudnnLibrary>().find(handle);
  if (!found) return refuse(CUDNN_STATUS_BAD_PARAM, "unknown handle");
  found->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor) {
  *descriptor = reinterpret_cast<cudnnTensorDescriptor_t>(handles<TensorDescriptor>().add());
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
  return handles<TensorDescriptor>().remove(descriptor) ? CUDNN_STATUS_SUCCESS
                                                        : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor,
                                         cudnnTensorFormat_t format, cudnnDataType_t type, int n,
                                         int c, int h, int w) {
  const auto found = handles<TensorDescriptor>().find(descriptor);
  if (!found || n < 1 || c < 1 || h < 1 || w < 1) {
    return refuse(CUDNN_STATUS_BAD_PARAM, "expected a known descriptor and dimensions > 0");
  }
  if (format != CUDNN_TENSOR_NCHW ||
      std::int64_t{n} * c * h * w > std::numeric_limits<std::int32_t>::max()) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "expected NCHW with < 2^31 elements");
  }
  found->dtype = dtype_of_cudnn(type);
  found->dims = {n, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                  cudnnSoftmaxMode_t mode, const void* alpha,
                                  const cudnnTensorDescriptor_t x_descriptor, const void* x,
                                  const void* beta, const cudnnTensorDescriptor_t y_descriptor,
                                  void* y) {
  cudnnStatus_t status;
  const auto softmax = softmax_of(handle, algorithm, mode, alpha, beta,
                                  {x_descriptor, y_descriptor}, {x, y}, status);
  if (!softmax) return status;
  return started(handle, [softmax = *softmax, x, y] { softmax.forward(x, y); });
}

cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                   cudnnSoftmaxMode_t mode, const void* alpha,
                                   const cudnnTensorDescriptor_t y_descriptor, const void* y,
                                   const cudnnTensorDescriptor_t dy_descriptor, const void* dy,
                                   const void* beta, const cudnnTensorDescriptor_t dx_descriptor,
                                   void* dx) {
  cudnnStatus_t status;
  const auto softmax =
      softmax_of(handle, algorithm, mode, alpha, beta, {y_descriptor, dy_descriptor, dx_descriptor},
                 {y, dy, dx}, status);
  if (!softmax) return status;
  return started(handle, [softmax = *softmax, y, dy, dx] { softmax.backward(y, dy, dx); });
}

}  // extern "C"

// The one symbol that the module exports: the backend, or why there is none.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "tutti/tensor/cuda/backend.h"
#include "tutti/tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

/// Why the runtime shows no GPU.
std::string reason_without_gpu(cudaError_t status) {
  const char* const mask = std::getenv("CUDA_VISIBLE_DEVICES");
  if (status == cudaErrorNoDevice && mask != nullptr) {
    return concat("CUDA_VISIBLE_DEVICES='", mask, "' shows no GPU; try without it");
  }
  if (status == cudaErrorNoDevice) return "CUDA finds no GPU in this machine; see nvidia-smi";
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    return concat("the NVIDIA driver is too old: it knows CUDA ", driver / 1000, ".",
                  driver % 1000 / 10, ", expected ", CUDART_VERSION / 1000, ".",
                  CUDART_VERSION % 1000 / 10, " or later; install a newer driver");
  }
  return concat("CUDA cannot start: ", cudaGetErrorName(status), ": ", cudaGetErrorString(status),
                "; see nvidia-smi");
}

/// Lives as long as the process. Throws what is in the way.
DeviceBackend* open_backend(const char* build_id) {
  if (std::string_view(build_id) != backend_build_id()) {
    fail(ErrorCode::kFailedPrecondition, "the CUDA module is of another build: expected ", build_id,
         ", got ", backend_build_id(), "; build and install both together");
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    fail(ErrorCode::kUnavailable,
         reason_without_gpu(count == 0 && status == cudaSuccess ? cudaErrorNoDevice : status));
  }
  static Backend& backend = *std::make_unique<Backend>(count).release();
  return &backend;
}

}  // namespace
}  // namespace tutti::cuda

extern "C" __attribute__((visibility("default"))) tutti::DeviceBackend* tutti_open_backend(
    const char* build_id, char* reason, std::size_t size) {
  try {
    return tutti::cuda::open_backend(build_id);
  } catch (const std::exception& error) {
    std::snprintf(reason, size, "%s", error.what());
  } catch (...) {
    std::snprintf(reason, size, "the CUDA module failed for an unknown reason");
  }
  return nullptr;
}

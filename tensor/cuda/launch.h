// Wrappers for the CUDA runtime: errors as tutti::Error, kernel launches, and the selected GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "tutti/core/error.h"

namespace tutti::cuda {

/// Returns true if this process can no longer use the GPU: every later call fails in the same way.
constexpr bool is_final(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

constexpr ErrorCode code_of(cudaError_t status) {
  if (status == cudaErrorMemoryAllocation) return ErrorCode::kResourceExhausted;
  const bool of_capture =
      status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureWrongThread;
  return of_capture ? ErrorCode::kFailedPrecondition : ErrorCode::kInternal;
}

/// Throws unless `status` is cudaSuccess: kResourceExhausted if no memory is left,
/// kFailedPrecondition for calls that a capture does not allow, else kInternal.
inline void check(cudaError_t status, const char* who) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, so that the next launch does not report it again
  fail(code_of(status), who, ": CUDA reports ", cudaGetErrorName(status), ": ",
       cudaGetErrorString(status),
       is_final(status) ? "; this process can no longer use the GPU; restart it" : "");
}

/// Number of threads per block in all kernels.
inline constexpr unsigned kThreads = 256;

/// Returns the number of blocks for `count` elements; kernels use grid-stride loops.
inline unsigned blocks_for(std::size_t count, std::size_t per_thread = 1) {
  const std::size_t threads = (count + per_thread - 1) / per_thread;
  constexpr std::size_t kMaxBlocks = 65'535;
  return static_cast<unsigned>(
      std::clamp<std::size_t>((threads + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

// launch() launches kernels with independent threads; launch_cooperative() launches kernels whose
// threads wait for one another (__syncthreads, warp shuffles). Tests, which run kernels on the CPU,
// need this distinction (tests/cuda_simulation/). Shared memory is `__shared__` with a fixed size.
// All other communication uses atomicAdd and atomicMax.
#if defined(__CUDACC__)
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
            const Arguments&... arguments) {
  kernel<<<grid, block, 0, stream>>>(static_cast<Parameters>(arguments)...);
  check(cudaGetLastError(), "kernel launch");
}

template <class... Parameters, class... Arguments>
void launch_cooperative(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                        const Arguments&... arguments) {
  launch(kernel, grid, block, stream, arguments...);
}
#endif

// Gpu: selects a GPU for CUDA runtime calls and names it in their errors.

/// One GPU. Thread-safe.
class Gpu {
 public:
  explicit Gpu(int ordinal) : ordinal_(ordinal) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    label_ = concat("GPU ", ordinal, " (", properties.name, ")");
  }

  int ordinal() const { return ordinal_; }
  const std::string& label() const { return label_; }

  /// Calls body() with this GPU selected. Prefixes errors from body() with the GPU's number and
  /// name.
  template <class Body>
  decltype(auto) use(const Body& body) const {
    try {
      check(cudaSetDevice(ordinal_), "cudaSetDevice");
      return body();
    } catch (const Error& error) {
      throw error.with_context(label_);
    }
  }
  /// Same as use(), but for releasing an object: ignores failures, which a later call reports.
  template <class Body>
  void use_quietly(const Body& body) const noexcept {
    if (cudaSetDevice(ordinal_) == cudaSuccess) body();
    (void)cudaGetLastError();
  }

 private:
  int ordinal_;
  std::string label_;
};

/// Scope in which this thread may make calls, such as cudaMalloc and cudaEventQuery, that would
/// otherwise fail during a capture and invalidate the capture.
class UncapturedScope {
 public:
  UncapturedScope() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~UncapturedScope() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  UncapturedScope(const UncapturedScope&) = delete;
  UncapturedScope& operator=(const UncapturedScope&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace tutti::cuda

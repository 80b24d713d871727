// One GPU of the CUDA runtime: selected for a call, named in its errors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "tensor/cuda/launch.h"

namespace tutti::cuda {

/// Any thread.
class Gpu {
 public:
  explicit Gpu(int ordinal) : ordinal_(ordinal) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    label_ = concat("GPU ", ordinal, " (", properties.name, ")");
  }

  int ordinal() const { return ordinal_; }
  const std::string& label() const { return label_; }

  /// Calls body() with this GPU selected; errors that it throws begin with the GPU's number and
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
  /// The same without exceptions, for what gives something back: a failure was or will be reported
  /// by a call that needs the GPU.
  template <class Body>
  void use_quietly(const Body& body) const noexcept {
    if (cudaSetDevice(ordinal_) == cudaSuccess) body();
    (void)cudaGetLastError();
  }

 private:
  int ordinal_;
  std::string label_;
};

/// While it lives this thread may call what a capture of its own would forbid and be broken by
/// (cudaMalloc, cudaEventQuery).
class NotCaptured {
 public:
  NotCaptured() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~NotCaptured() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  NotCaptured(const NotCaptured&) = delete;
  NotCaptured& operator=(const NotCaptured&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace tutti::cuda

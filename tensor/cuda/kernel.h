// Kernels of the CUDA backend: what one call of an operation gets, and the table that finds it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <iterator>
#include <span>
#include <variant>

#include "tutti/tensor/device_backend.h"

namespace tutti::cuda {

class MathLibraries;  // cuBLAS and cuDNN handles of one logical device (math_libraries.h)

/// What a kernel works on. Pointers are of the device's memory: the host must not touch them.
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

/// Puts the work of one call into its stream.
using Kernel = void (*)(const KernelCall& call);

/// (op, dtype of input 0) -> kernel.
class KernelTable {
 public:
  void set(OpId op, DType dtype, Kernel kernel) {
    kernels_[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)] = kernel;
  }
  void set(OpId op, std::span<const DType> dtypes, Kernel kernel) {
    for (const DType dtype : dtypes) set(op, dtype, kernel);
  }
  Kernel find(OpId op, DType dtype) const {
    return kernels_[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)];
  }

 private:
  std::array<std::array<Kernel, std::size(kAllDTypes)>, static_cast<std::size_t>(OpId::kCount)>
      kernels_{};
};

}  // namespace tutti::cuda

// Kernel tables, one per kind of device: (op, dtype) -> the function that computes the operation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <iterator>
#include <optional>
#include <span>

#include "tutti/tensor/op.h"

namespace tutti {

/// Arguments of a kernel. Inputs and outputs are dense and row-major; outputs are allocated, with
/// undefined content, and share no memory with inputs.
struct KernelArgs {
  std::span<const Tensor> inputs;
  std::span<const MutableTensor> outputs;
  const Attributes& attributes;

  template <class T>
  std::span<const T> in(std::size_t i) const {
    return inputs[i].host_span<T>();
  }
  template <class T>
  std::span<T> out(std::size_t i) const {
    return outputs[i].span<T>();
  }
  template <class T>
  const T& attributes_as() const {
    return std::get<T>(attributes);
  }
};

/// A kernel: a plain function that runs on the calling thread. Must be thread-safe.
using Kernel = void (*)(const KernelArgs& args);

/// Table from (op, dtype of input 0) to kernels. Filled once, then only read.
template <class Function>
class KernelTableOf {
 public:
  /// Adds or replaces a kernel.
  void set(OpId op, DType dtype, Function kernel) {
    kernels_[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)] = kernel;
  }
  void set(OpId op, std::span<const DType> dtypes, Function kernel) {
    for (const DType dtype : dtypes) set(op, dtype, kernel);
  }
  /// Returns the kernel; nullptr if there is no such kernel.
  Function find(OpId op, DType dtype) const {
    return kernels_[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)];
  }

 private:
  static constexpr std::size_t kNumDTypes = std::size(kAllDTypes);
  std::array<std::array<Function, kNumDTypes>, static_cast<std::size_t>(OpId::kCount)> kernels_{};
};

/// Table of CPU kernels. Operations on 16-bit floating-point types that lack a kernel of their own
/// use the float32 kernel, with conversions before and after it.
using KernelTable = KernelTableOf<Kernel>;

/// Returns simple, slow loops for every operation: the oracle for the tests, and the fallback if
/// there is no faster kernel.
const KernelTable& reference_kernels();
/// Returns the kernels for CPU devices: for each operation, the fastest kernel in this build (the
/// reference kernel if there is no other). With TUTTI_KERNELS=reference, returns
/// reference_kernels().
const KernelTable& cpu_kernels();

/// Runs one call without observers: with this thread's OpPartitioner, StepTracer or RemoteRecorder
/// (step_hooks.h) if one accepts the call, otherwise with the kernels of the call's device.
std::vector<Tensor> compute(const OpCall& call);
/// Runs one call on the CPU, with the kernels of `table`. Tests use it to compare two tables.
std::vector<Tensor> run_kernel(const KernelTable& table, const OpCall& call);

}  // namespace tutti

// Checks that compare a device's operations, gradients and optimizers with the CPU's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "benchmarks/gpu/comparison.h"
#include "benchmarks/gpu/recorded_calls.h"

namespace tutti::device_check {

struct CheckOptions {
  Device device;
  CallSize size = CallSize::kAll;
  std::int64_t every = 1;  // for ops: checks every n-th call of each operation and type
  std::string only;        // what to check: "add,matmul" (ops), "add" or "adam"; empty: all
  std::string spoil;       // the operation or optimizer in whose results one element is corrupted
};

/// Runs each operation with each type, and compares the results with those on cpu:0.
Findings check_ops(const CheckOptions& options);
/// Compares the gradients that a tape computes on the device with its gradients on the CPU.
Findings check_gradients(const CheckOptions& options);
/// Compares weights and slots after several steps of each optimizer.
Findings check_optimizers(const CheckOptions& options);

/// Returns the tensor with one element changed. --spoil uses it to show that a check can fail.
Tensor spoiled(const Tensor& tensor);

}  // namespace tutti::device_check

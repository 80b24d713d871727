// Checks that compare a device with the CPU.
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
  std::int64_t every = 1;  // ops: checks one of so many calls per operation and type
  std::string only;        // one operation or optimizer
  std::string spoil;  // changes one element of this operation or optimizer before the comparison
};

/// Compares every call of every operation and type with the results of cpu:0.
Findings check_ops(const CheckOptions& options);
/// Compares gradients by a tape whose tensors are on the device.
Findings check_gradients(const CheckOptions& options);
/// Compares weights and slots after some steps of every optimizer.
Findings check_optimizers(const CheckOptions& options);

/// Returns the tensor with one element changed, by which --spoil shows that a check can fail.
Tensor spoiled(const Tensor& tensor);

}  // namespace tutti::device_check

// The checks that compare a device with the CPU.
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
  std::int64_t every = 1;  // ops: of the calls of each operation and type, the first of so many
  std::string only;        // one operation or optimizer
  std::string spoil;  // of this operation or optimizer one element is changed before it is compared
};

/// Every call of every operation and type, against the results of cpu:0.
Findings check_ops(const CheckOptions& options);
/// Gradients by a tape whose tensors are on the device.
Findings check_gradients(const CheckOptions& options);
/// Weights and slots after some steps of every optimizer.
Findings check_optimizers(const CheckOptions& options);

/// The tensor with one element changed: what --spoil does, so that a check can be seen to fail.
Tensor spoiled(const Tensor& tensor);

}  // namespace tutti::device_check

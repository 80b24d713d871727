// What every operation of this library's own can combine, on host memory and on GPUs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/device.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

/// SUM, MIN, MAX and PRODUCT of every type; of bool MIN and MAX alone. What combines more than two
/// values in several steps must refuse 16-bit types itself: it would round each.
inline bool can_combine(ReduceOp op, DType dtype, DeviceType) {
  if (op == ReduceOp::kMean) return false;
  return dtype != DType::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax;
}

}  // namespace tutti::internal

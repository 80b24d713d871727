// Recorded calls of operations with the CPU's results, for repetition on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti::device_check {

/// One call on cpu:0.
struct RecordedCall {
  OpCall call;
  std::vector<Tensor> outputs;
  std::string origin;  // the program that made it
};

/// Sizes of calls. kSmall: the cases of the gradient check (tests/autograd), a few elements each.
/// kWide: tensors of many blocks, odd sizes and misaligned rows.
enum class CallSize { kSmall, kWide, kAll };

/// Returns the calls that a set of programs and their gradients make on cpu:0, over all element
/// types. `only` selects operations ("matmul,add"); empty: all.
std::vector<RecordedCall> record_calls(CallSize size, const std::string& only);

/// A function of tensors that creates no constants except numbers.
struct Program {
  std::string name;
  std::vector<Tensor> inputs = {};   // on cpu:0
  std::vector<bool> is_source = {};  // by input: true if its gradient is computed
  std::function<Tensor(const std::vector<Tensor>&)> function = {};
};
/// Returns the cases of the gradient check, with floating inputs of type `dtype`.
std::vector<Program> gradient_programs(DType dtype);
/// Return large tensors of odd sizes, and small ones of every type. May create constants on cpu:0.
std::vector<Program> wide_programs(DType dtype);
std::vector<Program> plain_programs(DType dtype);

}  // namespace tutti::device_check

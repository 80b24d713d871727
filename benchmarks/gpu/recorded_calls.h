// Operation calls and their results, recorded on the CPU, to be repeated on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti::device_check {

/// Call of an operation on cpu:0.
struct RecordedCall {
  OpCall call;
  std::vector<Tensor> outputs;
  std::string origin;  // name of the program that made the call
};

/// Sizes of calls. kSmall: the cases of the gradient check (tests/autograd), with a few elements
/// each. kWide: tensors of many blocks, odd sizes and misaligned rows.
enum class CallSize { kSmall, kWide, kAll };

/// Returns the calls that a set of programs and their gradients make on cpu:0, for all element
/// types. `only` lists operations ("matmul,add"); empty means all.
std::vector<RecordedCall> record_calls(CallSize size, const std::string& only);

/// Function of tensors, with its inputs.
struct Program {
  std::string name;
  std::vector<Tensor> inputs = {};   // on cpu:0
  std::vector<bool> is_source = {};  // for each input: true if its gradient is computed
  std::function<Tensor(const std::vector<Tensor>&)> function = {};
};
/// Returns the cases for the gradient check, with floating-point inputs of type `dtype`. The only
/// constants in them are scalars.
std::vector<Program> gradient_programs(DType dtype);
/// Return programs on large tensors of odd sizes (wide) and on small tensors (plain). These
/// programs may create constant tensors on cpu:0.
std::vector<Program> wide_programs(DType dtype);
std::vector<Program> plain_programs(DType dtype);

}  // namespace tutti::device_check

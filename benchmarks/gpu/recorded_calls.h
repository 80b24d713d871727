// Calls of operations with the results of the CPU: what a device must repeat.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti::device_check {

/// One call as cpu:0 made it.
struct RecordedCall {
  OpCall call;
  std::vector<Tensor> outputs;
  std::string origin;  // the program that made it
};

/// kSmall: the cases of the gradient check (tests/autograd), a few elements each. kWide: tensors of
/// many blocks, odd sizes and misaligned rows.
enum class CallSize { kSmall, kWide, kAll };

/// The calls that a set of programs and their gradients make on cpu:0, over all element types.
/// `only`: those of these operations ("matmul,add"); empty: all.
std::vector<RecordedCall> record_calls(CallSize size, const std::string& only);

/// A function of tensors that makes no constants of its own but numbers.
struct Program {
  std::string name;
  std::vector<Tensor> inputs = {};   // on cpu:0
  std::vector<bool> is_source = {};  // by input: whether its gradient is asked for
  std::function<Tensor(const std::vector<Tensor>&)> function = {};
};
/// The cases of the gradient check, with floating inputs of type `dtype`.
std::vector<Program> gradient_programs(DType dtype);
/// Large tensors of odd sizes (floating), and small ones of every type. May make constants on
/// cpu:0.
std::vector<Program> wide_programs(DType dtype);
std::vector<Program> plain_programs(DType dtype);

}  // namespace tutti::device_check

// Calls to differentiable operations, in float64, taken from the tables of
// tests/support/op_cases.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "autograd/gradients.h"
#include "tests/support/op_cases.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::gradient_check {

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensors(const Tensors& inputs)>;

inline Tensor random_tensor(const Shape& shape, std::uint64_t seed, double low = -1.5,
                            double high = 1.5) {
  return testing::random_values(shape, DType::kFloat64, low, high, seed);
}

/// Call of one operation in float64.
struct Case {
  std::string name;
  OpCall call;
  double step = 1e-5;
  bool has_second_order = true;
  std::size_t num_results = 1;  // number of leading results that have gradients

  /// Returns the results of the call for other inputs, which may have any floating-point type.
  Tensors operator()(const Tensors& inputs) const {
    if (call.op == OpId::kCast) return {cast(inputs[0], call.outputs[0].dtype)};
    if (call.op == OpId::kAttention) {  // on XLA, attention is composed of other operations
      const auto& [scale, is_causal, steps_before] = call.attributes_as<AttentionAttributes>();
      return {attention(inputs[0], inputs[1], inputs[2], {scale, is_causal, steps_before})};
    }
    OpCall other = call;
    other.inputs = inputs;
    const DType dtype = std::ranges::find_if(inputs, is_floating, &Tensor::dtype)->dtype();
    for (TensorSpec& output : other.outputs) {
      if (output.dtype == DType::kFloat64) output.dtype = dtype;
    }
    Tensors results = dispatch(std::move(other));
    results.resize(num_results);
    return results;
  }
};

/// Returns input `i` of the call; floating-point inputs become random numbers at which the
/// operation is smooth.
inline Tensor smooth_input(const OpCall& call, std::size_t i) {
  const Tensor& given = call.inputs[i];
  if (!is_floating(given.dtype())) return given;
  const auto between = [&](double low, double high) {
    return random_tensor(given.shape(), 100 + i, low, high);
  };
  switch (call.op) {
    case OpId::kLog:
    case OpId::kLog1p:
    case OpId::kSqrt:
    case OpId::kRsqrt:
    case OpId::kReciprocal:
      return between(0.3, 2.0);
    case OpId::kPower:
      return i == 0 ? between(0.3, 2.0) : between(-1.5, 1.5);
    case OpId::kDivide:
      return i == 1 ? between(0.3, 2.0) : between(-1.5, 1.5);
    case OpId::kFloorMod:  // avoids inputs near jumps in the quotient
      return i == 0 ? between(1.0, 1.5) : between(2.0, 4.0);
    case OpId::kReduceProduct:
      return between(0.7, 1.4);
    case OpId::kBatchNormInference:
      return i == 4 ? between(0.5, 1.5) : between(-1.5, 1.5);
    case OpId::kSoftmaxCrossEntropy:
      return i == 0 ? softmax(between(-1.5, 1.5)) : between(-1.5, 1.5);
    case OpId::kCast:  // x, x - step and x + step are exact in every type
      return round(between(-1.5, 1.5) * 4.0) * 0.25;
    default:
      return between(-1.5, 1.5);
  }
}

/// Returns true if second-order gradients are documented as missing, or if the operation rounds to
/// 16 bits.
inline bool has_first_order_alone(OpId op) {
  return op == OpId::kMaxPool || op == OpId::kBatchNormTraining || op == OpId::kLrn ||
         op == OpId::kGroupNorm || op == OpId::kCast;
}

inline Case case_of(const testing::OpCase& from) {
  Case c{from.name(), from.call};
  for (std::size_t i = 0; i < c.call.inputs.size(); ++i) {
    c.call.inputs[i] = smooth_input(from.call, i);
  }
  if (c.call.op == OpId::kCast) c.step = 0.25;
  if (c.call.op == OpId::kBatchNormTraining) c.num_results = 3;
  c.has_second_order = !has_first_order_alone(c.call.op);
  return c;
}

inline bool is_differentiated(const testing::OpCase& c) {
  const OpCall& call = c.call;
  bool in_float64 = false;
  for (const Tensor& input : call.inputs) {
    if (is_floating(input.dtype()) && input.dtype() != DType::kFloat64) return false;
    in_float64 = in_float64 || is_floating(input.dtype());
  }
  // Gradients of activations require two tensors of equal shape.
  const bool broadcasts = call.op >= OpId::kReluGrad && call.op <= OpId::kGeluTanhGrad &&
                          call.inputs[0].shape() != call.inputs[1].shape();
  return in_float64 && !broadcasts && !c.has_special_numbers &&
         is_floating(call.outputs[0].dtype) && internal::find_gradient(call.op) != nullptr;
}

inline std::int64_t num_elements(const OpCall& call) {
  std::int64_t count = 0;
  for (const Tensor& input : call.inputs) count += input.num_elements();
  return count;
}

inline bool is_empty(const OpCall& call) {
  return call.inputs[0].num_elements() == 0 || call.outputs[0].shape.num_elements() == 0;
}

/// Returns a product reduction over three rows: one with one zero, one with two, and one with none.
inline Case product_of_zeros() {
  const OpCall call{OpId::kReduceProduct,
                    {Tensor::from<double>({3, 3}, {2, 0, 3, 0, 0, 4, 5, 6, 7})},
                    {{{3, 1}, DType::kFloat64}},
                    AxesAttributes{2u, true}};
  return {"a product of zeros", call};
}

/// Returns up to twelve small calls of each differentiable operation of the family, evenly
/// distributed over its cases. If `of_nothing` is true, returns only calls with an empty input or
/// result; otherwise, only calls without empty inputs and results.
inline std::vector<Case> cases_of(const testing::OpFamily& family, bool of_nothing = false) {
  std::map<OpId, std::vector<testing::OpCase>> by_op;
  for (const testing::OpCase& c : family.cases()) {
    if (is_differentiated(c) && is_empty(c.call) == of_nothing) by_op[c.call.op].push_back(c);
  }
  std::vector<Case> chosen;
  for (auto& [op, all] : by_op) {
    std::ranges::stable_sort(all, {}, [](const auto& c) { return num_elements(c.call); });
    while (all.size() > 1 && num_elements(all.back().call) > 300) all.pop_back();
    const std::size_t count = std::min<std::size_t>(all.size(), 12);
    for (std::size_t i = 1; i <= count; ++i) {
      chosen.push_back(case_of(all[i * all.size() / count - 1]));
    }
    if (op == OpId::kReduceProduct && !of_nothing) chosen.push_back(product_of_zeros());
  }
  return chosen;
}

}  // namespace tutti::gradient_check

// Cases of the gradient check: arithmetic and activations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/autograd/gradient_case.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti::gradient_check {

using Tensors = std::vector<Tensor>;

/// [3, 4] (a batch of 3) and [] for one function of one input.
inline void add_unary(std::vector<Case>& cases, OpId op, Input input,
                      Tensor (*function)(const Operand&)) {
  const auto call = [function](const Tensors& t) { return function(t[0]); };
  input.shape = {3, 4};
  input.rows = true;
  cases.push_back({op, "[3, 4]", {input}, call});
  input.shape = {};
  input.rows = false;
  cases.push_back({op, "[]", {input}, call});
}

inline std::vector<Case> unary_cases() {
  const Input any{};
  const Input positive{{}, 0.3, 2.0};
  const Input no_kink{{}, -1.5, 1.5, false, DType::kFloat64, 0.1};
  std::vector<Case> cases;
  add_unary(cases, OpId::kNegate, any, negate);
  add_unary(cases, OpId::kExp, any, exp);
  add_unary(cases, OpId::kLog, positive, log);
  add_unary(cases, OpId::kSqrt, positive, sqrt);
  add_unary(cases, OpId::kRsqrt, positive, rsqrt);
  add_unary(cases, OpId::kSquare, any, square);
  add_unary(cases, OpId::kAbs, no_kink, abs);
  add_unary(cases, OpId::kReciprocal, positive, reciprocal);
  add_unary(cases, OpId::kRelu, no_kink, relu);
  add_unary(cases, OpId::kSigmoid, any, sigmoid);
  add_unary(cases, OpId::kTanh, any, tanh);
  add_unary(cases, OpId::kSoftplus, any, softplus);
  add_unary(cases, OpId::kElu, no_kink, elu);
  add_unary(cases, OpId::kGelu, any, gelu);
  add_unary(cases, OpId::kGeluTanh, any, gelu_tanh);
  add_unary(cases, OpId::kErf, any, erf);
  add_unary(cases, OpId::kLog1p, positive, log1p);
  add_unary(cases, OpId::kExpm1, any, expm1);
  add_unary(cases, OpId::kSin, any, sin);
  add_unary(cases, OpId::kCos, any, cos);
  add_unary(cases, OpId::kMultiply, any, silu);
  add_unary(cases, OpId::kElu, no_kink, selu);
  add_unary(cases, OpId::kMinimum, any, relu6);
  add_unary(cases, OpId::kMinimum, any, hard_sigmoid);
  add_unary(cases, OpId::kMultiply, any, hard_silu);
  add_unary(cases, OpId::kDivide, no_kink, softsign);
  const Input batch{{3, 4}, -1.5, 1.5, true};
  cases.push_back({OpId::kWhere,
                   "leaky_relu",
                   {{{3, 4}, -1.5, 1.5, true, DType::kFloat64, 0.1}},
                   [](const Tensors& t) { return leaky_relu(t[0], 0.3); }});
  cases.push_back({OpId::kClip, "inside and outside", {batch}, [](const Tensors& t) {
                     return clip(t[0], -0.5, 0.75);
                   }});
  // Steps and values that float32 holds exactly.
  cases.push_back(
      {OpId::kCast,
       "float64 to float32 and back",
       {{{2, 2}, 0, 0, true, DType::kFloat64, 0, {0.5, -1.25, 2.0, 3.75}}},
       [](const Tensors& t) { return cast(square(cast(t[0], DType::kFloat32)), DType::kFloat64); },
       Orders::kFirst,
       0.25});
  cases.push_back({OpId::kDropout, "rate 0.4", {batch}, [](const Tensors& t) {
                     return dropout(t[0], 0.4, RandomKey{3, kDropoutPurpose, 1, 2, 3});
                   }});
  return cases;
}

/// One function of two inputs over the ways in which shapes broadcast.
inline void add_binary(std::vector<Case>& cases, OpId op, Input a, Input b,
                       Tensor (*function)(const Operand&, const Operand&)) {
  struct Shapes {
    Shape a, b;
    bool a_rows, b_rows;
  };
  const Shapes all[] = {{{3, 4}, {3, 4}, true, true},  {{3, 4}, {4}, true, false},
                        {{3, 1}, {1, 4}, true, false}, {{3, 4}, {}, true, false},
                        {{}, {2, 3}, false, true},     {{2, 3, 4}, {3, 1}, true, false},
                        {{1}, {2, 1, 3}, false, true}};
  for (const Shapes& shapes : all) {
    a.shape = shapes.a;
    a.rows = shapes.a_rows;
    b.shape = shapes.b;
    b.rows = shapes.b_rows;
    cases.push_back({op, concat(shapes.a, " ", shapes.b), {a, b}, [function](const Tensors& t) {
                       return function(t[0], t[1]);
                     }});
  }
}

inline std::vector<Case> binary_cases() {
  const Input any{};
  const Input positive{{}, 0.3, 2.0};
  std::vector<Case> cases;
  add_binary(cases, OpId::kAdd, any, any, add);
  add_binary(cases, OpId::kSubtract, any, any, subtract);
  add_binary(cases, OpId::kMultiply, any, any, multiply);
  add_binary(cases, OpId::kDivide, any, positive, divide);
  add_binary(cases, OpId::kMaximum, any, any, maximum);
  add_binary(cases, OpId::kMinimum, any, any, minimum);
  add_binary(cases, OpId::kPower, positive, any, pow);
  add_binary(cases, OpId::kAddRelu, any, any, add_relu);
  // Quotients between 1 / 4 and 3 / 4: away from the jumps.
  add_binary(cases, OpId::kFloorMod, {{}, 1.0, 1.5}, {{}, 2.0, 4.0}, floor_mod);
  add_binary(cases, OpId::kFloorMod, {{}, -1.5, -1.0}, {{}, 2.0, 4.0}, floor_mod);
  cases.push_back({OpId::kAddRelu, "by itself", {{{2, 3}, -1.0, 1.0, true}}, [](const Tensors& t) {
                     return add_relu(square(t[0]), t[0]);
                   }});
  cases.push_back({OpId::kPower,
                   "negative base, fixed exponent",
                   {{{2, 3}, -2.0, -0.5, true}},
                   [](const Tensors& t) { return pow(t[0], 3.0); }});
  cases.push_back({OpId::kMultiply, "by itself", {{{2, 3}, -1.0, 1.0, true}}, [](const Tensors& t) {
                     return t[0] * t[0] * t[0];
                   }});
  cases.push_back(
      {OpId::kDivide, "number over tensor", {{{2, 3}, 0.5, 2.0, true}}, [](const Tensors& t) {
         return 2.0 / t[0];
       }});
  const Input condition{{3, 4}, -1.0, 1.0, true, DType::kBool};
  const auto choose = [](const Tensors& t) { return where(t[0], t[1], t[2]); };
  cases.push_back({OpId::kWhere,
                   "one shape",
                   {condition, {{3, 4}, -1, 1, true}, {{3, 4}, -1, 1, true}},
                   choose});
  cases.push_back({OpId::kWhere, "broadcasting values", {condition, {{4}}, {{}}}, choose});
  cases.push_back({OpId::kWhere,
                   "broadcasting the condition",
                   {{{4}, -1, 1, false, DType::kBool}, {{3, 4}, -1, 1, true}, {{4}}},
                   choose});
  return cases;
}

/// The gradients of activations as functions of (dy, x or y).
inline std::vector<Case> activation_grad_cases() {
  const Input dy{{3, 4}, -1.5, 1.5, true};
  const Input any{{3, 4}, -1.5, 1.5, true};
  const Input no_kink{{3, 4}, -0.8, 1.5, true, DType::kFloat64, 0.1};
  return {
      {OpId::kReluGrad,
       "dy",
       {dy, no_kink},
       [](const Tensors& t) { return relu_grad(t[0], t[1]); },
       Orders::kFirstAndSecond,
       1e-5,
       1e-6,
       {1}},
      {OpId::kSigmoidGrad,
       "dy, y",
       {dy, any},
       [](const Tensors& t) { return sigmoid_grad(t[0], t[1]); }},
      {OpId::kTanhGrad, "dy, y", {dy, any}, [](const Tensors& t) { return tanh_grad(t[0], t[1]); }},
      {OpId::kEluGrad,
       "dy, y",
       {dy, no_kink},
       [](const Tensors& t) { return elu_grad(t[0], t[1]); }},
      {OpId::kGeluGrad, "dy, x", {dy, any}, [](const Tensors& t) { return gelu_grad(t[0], t[1]); }},
      {OpId::kGeluTanhGrad,
       "dy, x",
       {dy, any},
       [](const Tensors& t) { return gelu_tanh_grad(t[0], t[1]); }},
  };
}

}  // namespace tutti::gradient_check

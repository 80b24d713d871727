// Cases of the gradient check: functions of tensors, how their inputs are made, and a table of all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/random.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::gradient_check {

/// How an input is made: uniform values in [low, high], or given ones.
struct Input {
  Shape shape;
  double low = -1.5;
  double high = 1.5;
  bool rows = false;  // axis 0 is a batch: the test of empty batches makes it 0
  DType dtype = DType::kFloat64;
  double gap = 0.0;                 // values nearer than this to 0 are moved away (kinks)
  std::vector<double> values = {};  // instead of random ones
};

using Function = std::function<Tensor(const std::vector<Tensor>& inputs)>;

enum class Orders { kFirst, kFirstAndSecond };

struct Case {
  OpId op;  // must be among the operations that `function` runs
  std::string name;
  std::vector<Input> inputs;
  Function function;
  Orders orders = Orders::kFirstAndSecond;
  double step = 1e-5;
  std::vector<std::size_t> skipped = {};  // inputs that are not differentiable here
};

inline std::vector<double> random_values(std::int64_t count, std::uint64_t key, double low,
                                         double high) {
  RandomKey random_key;
  random_key.seed = 7;
  random_key.purpose = kUserPurpose;
  random_key.a = key;
  const RandomStream stream(random_key);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(low + (high - low) * stream.uniform64(static_cast<std::uint64_t>(i)));
  }
  return values;
}

inline Tensor tensor_of(const Shape& shape, const std::vector<double>& values,
                        DType dtype = DType::kFloat64) {
  const Tensor doubles = Tensor::from<double>(shape, std::span<const double>(values));
  return dtype == DType::kFloat64 ? doubles : cast(doubles, dtype);
}

inline Tensor random_tensor(const Shape& shape, std::uint64_t key, double low = -1.5,
                            double high = 1.5) {
  return tensor_of(shape, random_values(shape.num_elements(), key, low, high));
}

inline Tensor make(const Input& input, std::uint64_t key) {
  if (!input.values.empty()) return tensor_of(input.shape, input.values, input.dtype);
  std::vector<double> values =
      random_values(input.shape.num_elements(), key, input.low, input.high);
  for (double& value : values) {
    if (std::abs(value) < input.gap) value = value < 0 ? value - input.gap : value + input.gap;
  }
  if (input.dtype == DType::kBool) {
    for (double& value : values) value = value > 0 ? 1.0 : 0.0;
  }
  return tensor_of(input.shape, values, input.dtype);
}

inline std::vector<Tensor> make_inputs(const Case& c) {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) inputs.push_back(make(c.inputs[i], 100 + i));
  return inputs;
}

inline bool is_checked(const Case& c, std::size_t i) {
  return is_floating(c.inputs[i].dtype) && std::ranges::find(c.skipped, i) == c.skipped.end();
}

/// The checked inputs among `inputs`.
inline std::vector<Tensor> checked_inputs(const Case& c, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (is_checked(c, i)) result.push_back(inputs[i]);
  }
  return result;
}

using Tensors = std::vector<Tensor>;

inline void add_case(std::vector<Case>& cases, OpId op, std::string name, std::vector<Input> inputs,
                     Function function, Orders orders = Orders::kFirstAndSecond, double step = 1e-5,
                     std::vector<std::size_t> skipped = {}) {
  cases.push_back({op, std::move(name), std::move(inputs), std::move(function), orders, step,
                   std::move(skipped)});
}

/// [3, 4] (a batch of 3) and [] for one function of one input.
inline void add_unary(std::vector<Case>& cases, OpId op, Input input,
                      Tensor (*function)(const Operand&)) {
  const auto call = [function](const Tensors& t) { return function(t[0]); };
  input.shape = {3, 4};
  input.rows = true;
  add_case(cases, op, "[3, 4]", {input}, call);
  input.shape = {};
  input.rows = false;
  add_case(cases, op, "[]", {input}, call);
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
  add_case(cases, OpId::kWhere, "leaky_relu", {{{3, 4}, -1.5, 1.5, true, DType::kFloat64, 0.1}},
           [](const Tensors& t) { return leaky_relu(t[0], 0.3); });
  add_case(cases, OpId::kClip, "inside and outside", {batch},
           [](const Tensors& t) { return clip(t[0], -0.5, 0.75); });
  // Steps and values that float32 holds exactly.
  add_case(
      cases, OpId::kCast, "float64 to float32 and back",
      {{{2, 2}, 0, 0, true, DType::kFloat64, 0, {0.5, -1.25, 2.0, 3.75}}},
      [](const Tensors& t) { return cast(square(cast(t[0], DType::kFloat32)), DType::kFloat64); },
      Orders::kFirst, 0.25);
  add_case(cases, OpId::kDropout, "rate 0.4", {batch}, [](const Tensors& t) {
    return dropout(t[0], 0.4, RandomKey{3, kDropoutPurpose, 1, 2, 3});
  });
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
    add_case(cases, op, concat(shapes.a, " ", shapes.b), {a, b},
             [function](const Tensors& t) { return function(t[0], t[1]); });
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
  add_case(cases, OpId::kAddRelu, "by itself", {{{2, 3}, -1.0, 1.0, true}},
           [](const Tensors& t) { return add_relu(square(t[0]), t[0]); });
  add_case(cases, OpId::kPower, "negative base, fixed exponent", {{{2, 3}, -2.0, -0.5, true}},
           [](const Tensors& t) { return pow(t[0], 3.0); });
  add_case(cases, OpId::kMultiply, "by itself", {{{2, 3}, -1.0, 1.0, true}},
           [](const Tensors& t) { return t[0] * t[0] * t[0]; });
  add_case(cases, OpId::kDivide, "number over tensor", {{{2, 3}, 0.5, 2.0, true}},
           [](const Tensors& t) { return 2.0 / t[0]; });
  const Input condition{{3, 4}, -1.0, 1.0, true, DType::kBool};
  const auto choose = [](const Tensors& t) { return where(t[0], t[1], t[2]); };
  add_case(cases, OpId::kWhere, "one shape",
           {condition, {{3, 4}, -1, 1, true}, {{3, 4}, -1, 1, true}}, choose);
  add_case(cases, OpId::kWhere, "broadcasting values", {condition, {{4}}, {{}}}, choose);
  add_case(cases, OpId::kWhere, "broadcasting the condition",
           {{{4}, -1, 1, false, DType::kBool}, {{3, 4}, -1, 1, true}, {{4}}}, choose);
  return cases;
}

/// The gradients of activations as functions of (dy, x or y).
inline std::vector<Case> activation_grad_cases() {
  const Input dy{{3, 4}, -1.5, 1.5, true};
  const Input any{{3, 4}, -1.5, 1.5, true};
  const Input no_kink{{3, 4}, -0.8, 1.5, true, DType::kFloat64, 0.1};
  std::vector<Case> cases;
  add_case(cases, OpId::kReluGrad, "dy", {dy, no_kink},
           [](const Tensors& t) { return relu_grad(t[0], t[1]); }, Orders::kFirstAndSecond, 1e-5,
           {1});
  add_case(cases, OpId::kSigmoidGrad, "dy, y", {dy, any},
           [](const Tensors& t) { return sigmoid_grad(t[0], t[1]); });
  add_case(cases, OpId::kTanhGrad, "dy, y", {dy, any},
           [](const Tensors& t) { return tanh_grad(t[0], t[1]); });
  add_case(cases, OpId::kEluGrad, "dy, y", {dy, no_kink},
           [](const Tensors& t) { return elu_grad(t[0], t[1]); });
  add_case(cases, OpId::kGeluGrad, "dy, x", {dy, any},
           [](const Tensors& t) { return gelu_grad(t[0], t[1]); });
  add_case(cases, OpId::kGeluTanhGrad, "dy, x", {dy, any},
           [](const Tensors& t) { return gelu_tanh_grad(t[0], t[1]); });
  return cases;
}

inline std::vector<Case> matmul_cases() {
  std::vector<Case> cases;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const MatMulOptions options{ta, tb};
      const auto call = [options](const Tensors& t) { return matmul(t[0], t[1], options); };
      const Shape a = ta ? Shape{4, 3} : Shape{3, 4};
      const Shape b = tb ? Shape{2, 4} : Shape{4, 2};
      const std::string which = concat(ta ? "a transposed" : "a", ", ", tb ? "b transposed" : "b");
      add_case(cases, OpId::kMatMul, which, {{a, -1, 1, !ta}, {b}}, call);
      const Shape batch_a = a.with_front(2), batch_b = b.with_front(2);
      add_case(cases, OpId::kMatMul, which + ", both batched",
               {{batch_a, -1, 1, true}, {batch_b, -1, 1, true}}, call);
      add_case(cases, OpId::kMatMul, which + ", a batched", {{batch_a, -1, 1, true}, {b}}, call);
      add_case(cases, OpId::kMatMul, which + ", b batched", {{a}, {batch_b, -1, 1, true}}, call);
      add_case(cases, OpId::kMatMul, which + ", a batched twice",
               {{batch_a.with_front(2), -1, 1, true}, {b}}, call);
    }
  }
  for (const auto activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                FusedActivation::kSigmoid, FusedActivation::kTanh}) {
    add_case(cases, OpId::kMatMul, concat("dense, activation ", static_cast<int>(activation)),
             {{{3, 4}, -1, 1, true}, {{4, 2}}, {{2}}},
             [activation](const Tensors& t) { return dense(t[0], t[1], t[2], activation); });
  }
  return cases;
}

/// Dilation, groups, depthwise and transposed convolution.
inline void add_convolution_variants(std::vector<Case>& cases) {
  const Input image{{2, 5, 4, 2}, -1, 1, true};
  for (const Padding padding : {Padding::kValid, Padding::kSame}) {
    const char* name = padding == Padding::kSame ? "SAME" : "VALID";
    Conv2dOptions options;
    options.padding = padding;
    options.dilation_h = 2;
    add_case(cases, OpId::kConv2d, concat(name, " dilated"), {image, {{2, 2, 2, 3}}},
             [options](const Tensors& t) { return conv2d(t[0], t[1], options); });
    options.stride_w = 2;
    add_case(cases, OpId::kConv2d, concat(name, " depthwise, dilated, stride"),
             {image, {{2, 2, 2, 2}}, {{4}}},
             [options](const Tensors& t) { return depthwise_conv2d(t[0], t[1], t[2], options); });
    options.groups = 2;
    add_case(cases, OpId::kConv2d, concat(name, " two groups"),
             {{{2, 4, 4, 4}, -1, 1, true}, {{2, 3, 2, 6}}},
             [options](const Tensors& t) { return conv2d(t[0], t[1], options); });
    Conv2dTransposeOptions transposed;
    transposed.padding = padding;
    transposed.stride_h = 2;
    add_case(cases, OpId::kConv2dBackwardInput, concat(name, " transposed"),
             {{{2, 3, 2, 2}, -1, 1, true}, {{3, 2, 3, 2}}, {{3}}}, [transposed](const Tensors& t) {
               return conv2d_transpose(t[0], t[1], t[2], transposed);
             });
    transposed.stride_h = 1;
    transposed.dilation_w = 2;
    add_case(cases, OpId::kConv2dBackwardInput, concat(name, " transposed, dilated"),
             {{{2, 3, 2, 2}, -1, 1, true}, {{2, 2, 3, 2}}},
             [transposed](const Tensors& t) { return conv2d_transpose(t[0], t[1], transposed); });
  }
}

inline std::vector<Case> convolution_cases() {
  std::vector<Case> cases;
  const Input image{{2, 5, 4, 2}, -1, 1, true};
  for (const Padding padding : {Padding::kValid, Padding::kSame}) {
    for (const auto& [kernel, stride_h, stride_w] :
         {std::tuple<Shape, int, int>{{3, 2, 2, 3}, 1, 1},
          {{3, 3, 2, 2}, 2, 1},
          {{2, 2, 2, 1}, 2, 3},
          {{1, 1, 2, 2}, 2, 2}}) {
      Conv2dOptions options;
      options.stride_h = stride_h;
      options.stride_w = stride_w;
      options.padding = padding;
      add_case(cases, OpId::kConv2d,
               concat(padding == Padding::kSame ? "SAME " : "VALID ", kernel, " stride ", stride_h,
                      " ", stride_w),
               {image, {kernel}},
               [options](const Tensors& t) { return conv2d(t[0], t[1], options); });
    }
  }
  for (const auto activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                FusedActivation::kSigmoid, FusedActivation::kTanh}) {
    Conv2dOptions options;
    options.padding = Padding::kSame;
    options.activation = activation;
    add_case(cases, OpId::kConv2d, concat("bias, activation ", static_cast<int>(activation)),
             {{{2, 3, 3, 2}, -1, 1, true}, {{2, 2, 2, 2}}, {{2}}},
             [options](const Tensors& t) { return conv2d(t[0], t[1], t[2], options); });
  }
  add_convolution_variants(cases);
  Conv2dAttributes attributes;
  attributes.stride_h = 2;
  attributes.pad_top = attributes.pad_left = attributes.pad_right = 1;
  const Input dy{{2, 2, 4, 3}, -1, 1, true}, filter{{3, 3, 2, 3}};
  add_case(cases, OpId::kConv2dBackwardInput, "stride 2 1, padded", {dy, filter},
           [attributes](const Tensors& t) {
             return conv2d_backward_input(t[0], t[1], {t[0].shape()[0], 5, 4, 2}, attributes);
           });
  add_case(cases, OpId::kConv2dBackwardFilter, "stride 2 1, padded", {image, dy},
           [attributes](const Tensors& t) {
             return conv2d_backward_filter(t[0], t[1], {3, 3, 2, 3}, attributes);
           });
  for (const Shape& shape : {Shape{3, 4}, Shape{2, 3, 2, 2}, Shape{5}}) {
    add_case(cases, OpId::kBiasGrad, shape.to_string(), {{shape, -1, 1, shape.rank() > 1}},
             [](const Tensors& t) { return bias_grad(t[0]); });
  }
  return cases;
}

inline std::vector<Case> pooling_cases() {
  std::vector<Case> cases;
  const Input image{{2, 5, 4, 2}, -1, 1, true};
  for (const Padding padding : {Padding::kValid, Padding::kSame}) {
    for (const auto& [window_h, window_w, stride_h, stride_w] :
         {std::array{2, 2, 2, 2}, {3, 2, 2, 1}, {2, 3, 1, 2}, {1, 1, 2, 2}}) {
      const Pool2dOptions options{window_h, window_w, stride_h, stride_w, padding};
      const std::string name = concat(padding == Padding::kSame ? "SAME " : "VALID ", window_h,
                                      window_w, " stride ", stride_h, stride_w);
      add_case(
          cases, OpId::kMaxPool, name, {image},
          [options](const Tensors& t) { return max_pool2d(t[0], options); }, Orders::kFirst);
      add_case(cases, OpId::kAveragePool, name, {image},
               [options](const Tensors& t) { return average_pool2d(t[0], options); });
    }
  }
  Pool2dAttributes attributes;
  attributes.window_h = 3;
  attributes.pad_top = 1;
  add_case(cases, OpId::kAveragePoolGrad, "window 3 2, padded", {{{2, 2, 2, 2}, -1, 1, true}},
           [attributes](const Tensors& t) {
             return average_pool2d_grad(t[0], {t[0].shape()[0], 4, 4, 2}, attributes);
           });
  add_case(cases, OpId::kReduceMean, "global average pool", {image},
           [](const Tensors& t) { return global_average_pool2d(t[0]); });
  add_case(cases, OpId::kReduceMax, "global max pool", {image},
           [](const Tensors& t) { return global_max_pool2d(t[0]); });
  return cases;
}

inline std::vector<Case> normalization_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{5, 3}, Shape{2, 3, 2, 2}}) {
    const Shape channels{shape.dim(-1)};
    const std::vector<Input> inputs = {{shape, -1, 1, true}, {channels, 0.5, 1.5}, {channels}};
    const auto add_training = [&](const char* name, std::vector<std::size_t> skipped,
                                  Tensor (*pick)(const BatchNormResult&)) {
      add_case(
          cases, OpId::kBatchNormTraining, concat(name, " of ", shape), inputs,
          [pick](const Tensors& t) { return pick(batch_norm_training(t[0], t[1], t[2], 1e-3)); },
          Orders::kFirst, 1e-5, std::move(skipped));
    };
    add_training("y", {}, [](const BatchNormResult& r) { return r.y; });
    add_training("mean", {1, 2}, [](const BatchNormResult& r) { return r.mean; });
    add_training("variance", {1, 2}, [](const BatchNormResult& r) { return r.variance; });
    add_training("all three", {},
                 [](const BatchNormResult& r) { return square(r.y) * r.variance + r.mean; });
    add_case(
        cases, OpId::kBatchNormInference, shape.to_string(),
        {{shape, -1, 1, true}, {channels}, {channels}, {channels}, {channels, 0.5, 1.5}},
        [](const Tensors& t) { return batch_norm_inference(t[0], t[1], t[2], t[3], t[4], 1e-3); });
  }
  add_case(
      cases, OpId::kGroupNorm, "layer_norm, last axis",
      {{{4, 3, 5}, -1, 1, true}, {{5}, 0.5, 1.5}, {{5}}},
      [](const Tensors& t) { return layer_norm(t[0], t[1], t[2]); }, Orders::kFirst);
  add_case(
      cases, OpId::kGroupNorm, "layer_norm, two axes",
      {{{4, 3, 5}, -1, 1, true}, {{3, 5}, 0.5, 1.5}, {{3, 5}}},
      [](const Tensors& t) {
        return layer_norm(t[0], t[1], t[2], {2, 1e-5});
      },
      Orders::kFirst);
  for (const std::int64_t groups : {1, 2, 6}) {
    add_case(
        cases, OpId::kGroupNorm, concat(groups, " groups"),
        {{{2, 3, 2, 6}, -1, 1, true}, {{6}, 0.5, 1.5}, {{6}}},
        [groups](const Tensors& t) {
          return group_norm(t[0], t[1], t[2], {groups, 1e-3});
        },
        Orders::kFirst);
  }
  add_case(
      cases, OpId::kLrn, "radius 1", {{{2, 2, 1, 5}, -1, 1, true}},
      [](const Tensors& t) {
        return local_response_normalization(t[0], {1, 2.0, 0.5, 0.75});
      },
      Orders::kFirst);
  add_case(
      cases, OpId::kLrn, "radius above the channels", {{{1, 2, 2, 3}, -1, 1, true}},
      [](const Tensors& t) { return local_response_normalization(t[0]); }, Orders::kFirst);
  return cases;
}

inline std::vector<Case> reduction_cases() {
  std::vector<Case> cases;
  using Reduce = Tensor (*)(const Operand&, ReduceOptions);
  const std::pair<OpId, Reduce> reductions[] = {{OpId::kReduceSum, reduce_sum},
                                                {OpId::kReduceMean, reduce_mean},
                                                {OpId::kReduceMax, reduce_max},
                                                {OpId::kReduceMin, reduce_min},
                                                {OpId::kReduceProduct, reduce_product}};
  const ReduceOptions options[] = {
      {}, {{0}, false}, {{1}, true}, {{-1}, false}, {{0, 2}, false}, {{}, true}, {{2, 1}, true}};
  for (const auto& [op, reduce] : reductions) {
    for (const ReduceOptions& option : options) {
      add_case(cases, op,
               concat("[2, 3, 4] axes ", join(option.axes), option.keep_dims ? " kept" : ""),
               {{{2, 3, 4}, -1.5, 1.5, true}},
               [reduce = reduce, option](const Tensors& t) { return reduce(t[0], option); });
    }
    add_case(cases, op, "vector", {{{5}, 0.5, 1.5, true}},
             [reduce = reduce](const Tensors& t) { return reduce(t[0], {}); });
  }
  const std::vector<double> with_zeros = {2, 0, 3, 0, 0, 4, 5, 6, 7};
  add_case(cases, OpId::kReduceProduct, "rows with no, one and two zeros",
           {{{3, 3}, 0, 0, true, DType::kFloat64, 0, with_zeros}}, [](const Tensors& t) {
             return reduce_product(t[0], {{1}, false});
           });
  add_case(cases, OpId::kReduceSum, "sum_to_shape", {{{2, 3, 4}, -1, 1, true}},
           [](const Tensors& t) {
             return sum_to_shape(t[0], {3, 1});
           });
  return cases;
}

inline std::vector<Case> softmax_cases() {
  const Input logits{{4, 3}, -2, 2, true};
  const Input deep_logits{{2, 2, 3}, -2, 2, true};
  const Input dy{{4, 3}, -1, 1, true}, column{{4}, -1, 1, true};
  const Input labels{{4}, 0, 0, true, DType::kInt64, 0, {2, 0, 1, 0}};
  const std::vector<double> rows = {.2, .3, .5, 1, 0, 0, .1, .8, .1, .25, .25, .5};
  const Input distribution{{4, 3}, 0, 0, true, DType::kFloat64, 0, rows};
  std::vector<Case> cases;
  for (const Input& input : {logits, deep_logits}) {
    const std::string name = input.shape.to_string();
    add_case(cases, OpId::kSoftmax, name, {input}, [](const Tensors& t) { return softmax(t[0]); });
    add_case(cases, OpId::kLogSoftmax, name, {input},
             [](const Tensors& t) { return log_softmax(t[0]); });
  }
  add_case(cases, OpId::kSoftmaxGrad, "y, dy", {logits, dy},
           [](const Tensors& t) { return softmax_grad(t[0], t[1]); });
  add_case(cases, OpId::kLogSoftmaxGrad, "y, dy", {logits, dy},
           [](const Tensors& t) { return log_softmax_grad(t[0], t[1]); });
  // Moving a label alone leaves the distributions, which the gradient of the logits relies on in
  // second order.
  add_case(
      cases, OpId::kSoftmaxCrossEntropy, "labels, logits", {distribution, logits},
      [](const Tensors& t) { return softmax_cross_entropy(t[0], t[1]); }, Orders::kFirst);
  add_case(cases, OpId::kSoftmaxCrossEntropy, "logits", {distribution, logits},
           [](const Tensors& t) { return softmax_cross_entropy(t[0], t[1]); },
           Orders::kFirstAndSecond, 1e-5, {0});
  add_case(cases, OpId::kSparseSoftmaxCrossEntropy, "logits", {labels, logits},
           [](const Tensors& t) { return sparse_softmax_cross_entropy(t[0], t[1]); });
  add_case(cases, OpId::kSparseSoftmaxCrossEntropyGrad, "logits, dy", {labels, logits, column},
           [](const Tensors& t) { return sparse_softmax_cross_entropy_grad(t[0], t[1], t[2]); });
  add_case(cases, OpId::kSigmoidCrossEntropy, "labels, logits",
           {{{4, 3}, 0, 1, true}, {{4, 3}, -2, 2, true, DType::kFloat64, 0.1}},
           [](const Tensors& t) { return sigmoid_cross_entropy(t[0], t[1]); });
  return cases;
}

inline std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  const auto add_attention = [&](const char* name, std::int64_t shared, AttentionOptions options) {
    const Input query{{2, 4, 3, 2}, -1, 1, true};
    const Input key{{2, shared, 5, 2}, -1, 1, true}, value{{2, shared, 5, 3}, -1, 1, true};
    add_case(cases, OpId::kAttention, name, {query, key, value},
             [options](const Tensors& t) { return attention(t[0], t[1], t[2], options); });
  };
  add_attention("all keys", 4, {});
  add_attention("causal", 4, {.is_causal = true});
  add_attention("causal behind a step, keys of two heads", 2,
                {.is_causal = true, .steps_before = 1});
  add_attention("another scale, one key for all heads", 1, {.scale = 0.3});
  return cases;
}

inline std::vector<Case> shape_cases() {
  const Input batch{{3, 4}, -1, 1, true}, cube{{2, 3, 4}, -1, 1, true};
  const Input table{{5, 2}};
  const Input rows{{4}, 0, 0, true, DType::kInt64, 0, {3, 0, 3, 4}};
  const Input grid{{2, 3}, 0, 0, true, DType::kInt32, 0, {1, 4, 1, 0, 1, 2}};
  std::vector<Case> cases;
  const auto size = [](const Tensor& x) { return x.shape()[0]; };
  add_case(cases, OpId::kReshape, "to [6, 4]", {cube}, [size](const Tensors& t) {
    return reshape(t[0], Shape{size(t[0]) * 3, 4});
  });
  add_case(cases, OpId::kReshape, "flatten_rows", {cube},
           [](const Tensors& t) { return flatten_rows(t[0]); });
  add_case(cases, OpId::kReshape, "expand and squeeze", {batch},
           [](const Tensors& t) { return squeeze(square(expand_dims(t[0], 1)), 1); });
  add_case(cases, OpId::kTranspose, "reversed", {cube},
           [](const Tensors& t) { return transpose(t[0]); });
  add_case(cases, OpId::kTranspose, "1 2 0", {cube}, [](const Tensors& t) {
    return transpose(t[0], {1, 2, 0});
  });
  add_case(cases, OpId::kSlice, "inner part", {cube}, [](const Tensors& t) {
    return slice(t[0], {0, 1, 1}, {-1, 1, 2});
  });
  add_case(cases, OpId::kSlice, "split in parts", {batch}, [](const Tensors& t) {
    const std::vector<Tensor> parts = split(t[0], {1, 3}, 1);
    return parts[0] * parts[1];
  });
  add_case(cases, OpId::kSlice, "split evenly", {batch},
           [](const Tensors& t) { return split(t[0], 2, 1)[1]; });
  add_case(cases, OpId::kPad, "all sides", {batch}, [](const Tensors& t) {
    return pad(t[0], {0, 2}, {1, 0}, 0.5);
  });
  add_case(cases, OpId::kConcat, "axis 1", {batch, {{3, 2}, -1, 1, true}}, [](const Tensors& t) {
    return concat({t[0], t[1]}, 1);
  });
  add_case(cases, OpId::kConcat, "axis 0, one tensor twice", {batch, {{2, 4}, -1, 1, true}},
           [](const Tensors& t) {
             return concat({t[0], t[1], t[0]}, 0);
           });
  add_case(cases, OpId::kConcat, "stack", {batch, batch}, [](const Tensors& t) {
    return stack(std::vector<Tensor>{t[0], t[1]});
  });
  add_case(cases, OpId::kBroadcastTo, "new axis in front", {batch}, [size](const Tensors& t) {
    return broadcast_to(t[0], {2, size(t[0]), 4});
  });
  add_case(cases, OpId::kBroadcastTo, "axis of 1", {{{3, 1, 2}, -1, 1, true}},
           [size](const Tensors& t) {
             return broadcast_to(t[0], {size(t[0]), 4, 2});
           });
  add_case(cases, OpId::kGather, "rows, one twice", {table, rows},
           [](const Tensors& t) { return gather(t[0], t[1]); });
  add_case(cases, OpId::kGather, "grid of int32", {{{5, 2, 2}}, grid},
           [](const Tensors& t) { return gather(t[0], t[1]); });
  add_case(cases, OpId::kGather, "twice from one table", {table, rows},
           [](const Tensors& t) { return gather(t[0], t[1]) * exp(gather(t[0] * 2.0, t[1])); });
  add_case(cases, OpId::kGather, "of a dense use too", {table, rows},
           [](const Tensors& t) { return gather(t[0], t[1]) * reduce_sum(square(t[0])); });
  for (const bool exclusive : {false, true}) {
    for (const bool backwards : {false, true}) {
      add_case(cases, OpId::kCumulativeSum, concat("axis 1 ", exclusive, backwards), {cube},
               [=](const Tensors& t) {
                 return cumulative_sum(t[0], {1, exclusive, backwards});
               });
    }
  }
  add_case(cases, OpId::kReverse, "axes 0 and 2", {cube}, [](const Tensors& t) {
    return reverse(t[0], {0, -1});
  });
  add_case(cases, OpId::kTopK, "2 of 4", {cube},
           [](const Tensors& t) { return top_k(t[0], 2).values; });
  add_case(cases, OpId::kBroadcastTo, "tile", {batch}, [](const Tensors& t) {
    return tile(t[0], {2, 3});
  });
  add_case(cases, OpId::kBroadcastTo, "repeat", {batch},
           [](const Tensors& t) { return repeat(t[0], 2, 1); });
  add_case(cases, OpId::kConcat, "stack along 1 and unstack", {batch, batch}, [](const Tensors& t) {
    const Tensor both = stack({t[0], t[1]}, 1);
    const std::vector<Tensor> parts = unstack(both, 2);
    return parts[0] * parts[3];
  });
  add_case(cases, OpId::kGather, "along axis 2", {{{2, 2, 5}}, grid},
           [](const Tensors& t) { return gather(t[0], t[1], 2); });
  const Input picture{{2, 3, 2, 2}, -1, 1, true}, large{{2, 6, 6, 1}, -1, 1, true};
  for (const Interpolation kind : {Interpolation::kNearest, Interpolation::kBilinear}) {
    const char* name = kind == Interpolation::kNearest ? "nearest" : "bilinear";
    add_case(cases, OpId::kUpsample, name, {picture}, [kind](const Tensors& t) {
      return upsample2d(t[0], {2, 3, kind});
    });
    add_case(cases, OpId::kUpsampleGrad, name, {large}, [kind, size](const Tensors& t) {
      return upsample2d_grad(t[0], {size(t[0]), 3, 2, 1}, {2, 3, kind});
    });
  }
  add_case(cases, OpId::kScatterRows, "one row twice", {{{4, 2}, -1, 1, true}, rows},
           [](const Tensors& t) {
             return scatter_rows(t[0], t[1], {5, 2});
           });
  return cases;
}

}  // namespace tutti::gradient_check

// Cases of the gradient check: matrix products, convolution, pooling, normalisation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/autograd/gradient_case.h"

namespace tutti::gradient_check {

using Tensors = std::vector<Tensor>;

inline std::vector<Case> matmul_cases() {
  std::vector<Case> cases;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const MatMulOptions options{ta, tb};
      const auto call = [options](const Tensors& t) { return matmul(t[0], t[1], options); };
      const Shape a = ta ? Shape{4, 3} : Shape{3, 4};
      const Shape b = tb ? Shape{2, 4} : Shape{4, 2};
      const std::string which = concat(ta ? "a transposed" : "a", ", ", tb ? "b transposed" : "b");
      cases.push_back({OpId::kMatMul, which, {{a, -1, 1, !ta}, {b}}, call});
      const Shape batch_a = a.with_front(2), batch_b = b.with_front(2);
      cases.push_back({OpId::kMatMul,
                       which + ", both batched",
                       {{batch_a, -1, 1, true}, {batch_b, -1, 1, true}},
                       call});
      cases.push_back({OpId::kMatMul, which + ", a batched", {{batch_a, -1, 1, true}, {b}}, call});
      cases.push_back({OpId::kMatMul, which + ", b batched", {{a}, {batch_b, -1, 1, true}}, call});
      cases.push_back({OpId::kMatMul,
                       which + ", a batched twice",
                       {{batch_a.with_front(2), -1, 1, true}, {b}},
                       call});
    }
  }
  for (const auto activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                FusedActivation::kSigmoid, FusedActivation::kTanh}) {
    cases.push_back(
        {OpId::kMatMul,
         concat("dense, activation ", static_cast<int>(activation)),
         {{{3, 4}, -1, 1, true}, {{4, 2}}, {{2}}},
         [activation](const Tensors& t) { return dense(t[0], t[1], t[2], activation); }});
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
    cases.push_back({OpId::kConv2d,
                     concat(name, " dilated"),
                     {image, {{2, 2, 2, 3}}},
                     [options](const Tensors& t) { return conv2d(t[0], t[1], options); }});
    options.stride_w = 2;
    cases.push_back(
        {OpId::kConv2d,
         concat(name, " depthwise, dilated, stride"),
         {image, {{2, 2, 2, 2}}, {{4}}},
         [options](const Tensors& t) { return depthwise_conv2d(t[0], t[1], t[2], options); }});
    options.groups = 2;
    cases.push_back({OpId::kConv2d,
                     concat(name, " two groups"),
                     {{{2, 4, 4, 4}, -1, 1, true}, {{2, 3, 2, 6}}},
                     [options](const Tensors& t) { return conv2d(t[0], t[1], options); }});
    Conv2dTransposeOptions transposed;
    transposed.padding = padding;
    transposed.stride_h = 2;
    cases.push_back({OpId::kConv2dBackwardInput,
                     concat(name, " transposed"),
                     {{{2, 3, 2, 2}, -1, 1, true}, {{3, 2, 3, 2}}, {{3}}},
                     [transposed](const Tensors& t) {
                       return conv2d_transpose(t[0], t[1], t[2], transposed);
                     }});
    transposed.stride_h = 1;
    transposed.dilation_w = 2;
    cases.push_back(
        {OpId::kConv2dBackwardInput,
         concat(name, " transposed, dilated"),
         {{{2, 3, 2, 2}, -1, 1, true}, {{2, 2, 3, 2}}},
         [transposed](const Tensors& t) { return conv2d_transpose(t[0], t[1], transposed); }});
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
      cases.push_back({OpId::kConv2d,
                       concat(padding == Padding::kSame ? "SAME " : "VALID ", kernel, " stride ",
                              stride_h, " ", stride_w),
                       {image, {kernel}},
                       [options](const Tensors& t) { return conv2d(t[0], t[1], options); }});
    }
  }
  for (const auto activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                FusedActivation::kSigmoid, FusedActivation::kTanh}) {
    Conv2dOptions options;
    options.padding = Padding::kSame;
    options.activation = activation;
    cases.push_back({OpId::kConv2d,
                     concat("bias, activation ", static_cast<int>(activation)),
                     {{{2, 3, 3, 2}, -1, 1, true}, {{2, 2, 2, 2}}, {{2}}},
                     [options](const Tensors& t) { return conv2d(t[0], t[1], t[2], options); }});
  }
  add_convolution_variants(cases);
  Conv2dAttributes attributes;
  attributes.stride_h = 2;
  attributes.pad_top = attributes.pad_left = attributes.pad_right = 1;
  const Input dy{{2, 2, 4, 3}, -1, 1, true}, filter{{3, 3, 2, 3}};
  cases.push_back(
      {OpId::kConv2dBackwardInput,
       "stride 2 1, padded",
       {dy, filter},
       [attributes](const Tensors& t) {
         return conv2d_backward_input(t[0], t[1], {t[0].shape()[0], 5, 4, 2}, attributes);
       }});
  cases.push_back({OpId::kConv2dBackwardFilter,
                   "stride 2 1, padded",
                   {image, dy},
                   [attributes](const Tensors& t) {
                     return conv2d_backward_filter(t[0], t[1], {3, 3, 2, 3}, attributes);
                   }});
  for (const Shape& shape : {Shape{3, 4}, Shape{2, 3, 2, 2}, Shape{5}}) {
    cases.push_back({OpId::kBiasGrad,
                     shape.to_string(),
                     {{shape, -1, 1, shape.rank() > 1}},
                     [](const Tensors& t) { return bias_grad(t[0]); }});
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
      cases.push_back({OpId::kMaxPool,
                       name,
                       {image},
                       [options](const Tensors& t) { return max_pool2d(t[0], options); },
                       Orders::kFirst});
      cases.push_back({OpId::kAveragePool, name, {image}, [options](const Tensors& t) {
                         return average_pool2d(t[0], options);
                       }});
    }
  }
  Pool2dAttributes attributes;
  attributes.window_h = 3;
  attributes.pad_top = 1;
  cases.push_back({OpId::kAveragePoolGrad,
                   "window 3 2, padded",
                   {{{2, 2, 2, 2}, -1, 1, true}},
                   [attributes](const Tensors& t) {
                     return average_pool2d_grad(t[0], {t[0].shape()[0], 4, 4, 2}, attributes);
                   }});
  cases.push_back({OpId::kReduceMean, "global average pool", {image}, [](const Tensors& t) {
                     return global_average_pool2d(t[0]);
                   }});
  cases.push_back({OpId::kReduceMax, "global max pool", {image}, [](const Tensors& t) {
                     return global_max_pool2d(t[0]);
                   }});
  return cases;
}

inline std::vector<Case> normalization_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{5, 3}, Shape{2, 3, 2, 2}}) {
    const Shape channels{shape.dim(-1)};
    const std::vector<Input> inputs = {{shape, -1, 1, true}, {channels, 0.5, 1.5}, {channels}};
    const auto add_training = [&](const char* name, std::vector<std::size_t> skipped,
                                  Tensor (*pick)(const BatchNormResult&)) {
      cases.push_back(
          {OpId::kBatchNormTraining, concat(name, " of ", shape), inputs,
           [pick](const Tensors& t) { return pick(batch_norm_training(t[0], t[1], t[2], 1e-3)); },
           Orders::kFirst, 1e-5, 1e-6, std::move(skipped)});
    };
    add_training("y", {}, [](const BatchNormResult& r) { return r.y; });
    add_training("mean", {1, 2}, [](const BatchNormResult& r) { return r.mean; });
    add_training("variance", {1, 2}, [](const BatchNormResult& r) { return r.variance; });
    add_training("all three", {},
                 [](const BatchNormResult& r) { return square(r.y) * r.variance + r.mean; });
    cases.push_back(
        {OpId::kBatchNormInference,
         shape.to_string(),
         {{shape, -1, 1, true}, {channels}, {channels}, {channels}, {channels, 0.5, 1.5}},
         [](const Tensors& t) {
           return batch_norm_inference(t[0], t[1], t[2], t[3], t[4], 1e-3);
         }});
  }
  cases.push_back({OpId::kGroupNorm,
                   "layer_norm, last axis",
                   {{{4, 3, 5}, -1, 1, true}, {{5}, 0.5, 1.5}, {{5}}},
                   [](const Tensors& t) { return layer_norm(t[0], t[1], t[2]); },
                   Orders::kFirst});
  cases.push_back({OpId::kGroupNorm,
                   "layer_norm, two axes",
                   {{{4, 3, 5}, -1, 1, true}, {{3, 5}, 0.5, 1.5}, {{3, 5}}},
                   [](const Tensors& t) {
                     return layer_norm(t[0], t[1], t[2], {2, 1e-5});
                   },
                   Orders::kFirst});
  for (const std::int64_t groups : {1, 2, 6}) {
    cases.push_back({OpId::kGroupNorm,
                     concat(groups, " groups"),
                     {{{2, 3, 2, 6}, -1, 1, true}, {{6}, 0.5, 1.5}, {{6}}},
                     [groups](const Tensors& t) {
                       return group_norm(t[0], t[1], t[2], {groups, 1e-3});
                     },
                     Orders::kFirst});
  }
  cases.push_back({OpId::kLrn,
                   "radius 1",
                   {{{2, 2, 1, 5}, -1, 1, true}},
                   [](const Tensors& t) {
                     return local_response_normalization(t[0], {1, 2.0, 0.5, 0.75});
                   },
                   Orders::kFirst});
  cases.push_back({OpId::kLrn,
                   "radius above the channels",
                   {{{1, 2, 2, 3}, -1, 1, true}},
                   [](const Tensors& t) { return local_response_normalization(t[0]); },
                   Orders::kFirst});
  return cases;
}

}  // namespace tutti::gradient_check

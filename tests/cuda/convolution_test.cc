// Convolutions of the CUDA backend against the CPU's, and how their engines are chosen.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tensor/cuda/convolution_plans.h"
#include "tests/cuda/math_rig.h"

namespace tutti::math_rig {
namespace {

using cuda_simulation::math_counts;
using cuda_simulation::set_math_behavior;

struct ConvolutionCase {
  const char* name;
  Shape x, filter;  // NHWC, HWIO
  Conv2dAttributes attributes;
};

std::int64_t positions(std::int64_t extent, std::int64_t pads, std::int64_t window,
                       std::int64_t dilation, std::int64_t stride) {
  return (extent + pads - ((window - 1) * dilation + 1)) / stride + 1;
}

Shape result_of(const ConvolutionCase& c) {
  const Conv2dAttributes& a = c.attributes;
  return {c.x[0],
          positions(c.x[1], a.pad_top + a.pad_bottom, c.filter[0], a.dilation_h, a.stride_h),
          positions(c.x[2], a.pad_left + a.pad_right, c.filter[1], a.dilation_w, a.stride_w),
          c.filter[3]};
}

Conv2dAttributes attributes_of(std::int64_t stride, std::array<std::int64_t, 4> pads,
                               std::int64_t dilation = 1, std::int64_t groups = 1) {
  return {stride,   stride,   pads[0], pads[1], pads[2], pads[3], FusedActivation::kNone,
          dilation, dilation, groups};
}

const std::vector<ConvolutionCase>& convolution_cases() {
  static const std::vector<ConvolutionCase> cases{
      {"valid", {2, 5, 6, 3}, {3, 3, 3, 4}, attributes_of(1, {0, 0, 0, 0})},
      {"same", {2, 5, 6, 3}, {3, 3, 3, 4}, attributes_of(1, {1, 1, 1, 1})},
      {"same, stride 2, uneven pads", {2, 6, 8, 2}, {3, 3, 2, 4}, attributes_of(2, {0, 1, 0, 1})},
      {"same, window 7, stride 2", {1, 12, 14, 3}, {7, 7, 3, 8}, attributes_of(2, {2, 3, 2, 3})},
      {"rows and columns differ", {2, 7, 4, 2}, {1, 3, 2, 5}, {2, 1, 0, 0, 1, 1}},
      {"one pixel", {2, 4, 3, 5}, {1, 1, 5, 7}, attributes_of(1, {0, 0, 0, 0})},
      {"one pixel, stride 2", {2, 5, 5, 4}, {1, 1, 4, 3}, attributes_of(2, {0, 0, 0, 0})},
      {"dilated", {1, 9, 9, 2}, {3, 3, 2, 3}, attributes_of(1, {2, 2, 2, 2}, 2)},
      {"groups", {2, 5, 5, 6}, {3, 3, 2, 9}, attributes_of(1, {1, 1, 1, 1}, 1, 3)},
      {"depthwise", {2, 5, 5, 4}, {3, 3, 1, 8}, attributes_of(2, {1, 1, 1, 1}, 1, 4)},
      {"one pixel, groups", {2, 3, 3, 4}, {1, 1, 2, 6}, attributes_of(1, {0, 0, 0, 0}, 1, 2)},
      {"one output channel", {2, 4, 4, 3}, {3, 3, 3, 1}, attributes_of(1, {1, 1, 1, 1})},
      {"large filter", {1, 5, 5, 40}, {3, 3, 40, 35}, attributes_of(1, {1, 1, 1, 1})},
      {"all one", {1, 1, 1, 1}, {1, 1, 1, 1}, attributes_of(1, {0, 0, 0, 0})},
      {"empty batch", {0, 5, 6, 3}, {3, 3, 3, 4}, attributes_of(1, {1, 1, 1, 1})},
      {"empty batch, one pixel", {0, 5, 6, 3}, {1, 1, 3, 4}, attributes_of(1, {0, 0, 0, 0})},
      {"no input channels", {2, 4, 4, 0}, {3, 3, 0, 4}, attributes_of(1, {1, 1, 1, 1})}};
  return cases;
}

Tensor some(const Shape& shape, DType dtype, std::uint64_t seed) {
  return testing::random_values(shape, dtype, -1.0, 1.0, seed);
}

OpCall forward_call(const ConvolutionCase& c, DType dtype, bool with_bias = false,
                    FusedActivation activation = FusedActivation::kNone) {
  OpCall call{
      OpId::kConv2d, {some(c.x, dtype, 1), some(c.filter, dtype, 2)}, {{result_of(c), dtype}}, {}};
  Conv2dAttributes attributes = c.attributes;
  attributes.activation = activation;
  call.attributes = attributes;
  if (with_bias) call.inputs.push_back(some({c.filter[3]}, dtype, 3));
  return call;
}

OpCall backward_input_call(const ConvolutionCase& c, DType dtype) {
  return {OpId::kConv2dBackwardInput,
          {some(result_of(c), dtype, 4), some(c.filter, dtype, 2)},
          {{c.x, dtype}},
          c.attributes};
}

OpCall backward_filter_call(const ConvolutionCase& c, DType dtype) {
  return {OpId::kConv2dBackwardFilter,
          {some(c.x, dtype, 1), some(result_of(c), dtype, 4)},
          {{c.filter, dtype}},
          c.attributes};
}

const ConvolutionCase& plain_case() { return convolution_cases()[1]; }

TEST(CudaConvolution, GivesWhatTheCpuGives) {
  for (const DType dtype : kTypes) {
    MathRig rig;
    for (const ConvolutionCase& c : convolution_cases()) {
      expect_like_cpu(rig, forward_call(c, dtype), c.name);
      expect_like_cpu(rig, backward_input_call(c, dtype), c.name);
      expect_like_cpu(rig, backward_filter_call(c, dtype), c.name);
    }
  }
}

TEST(CudaConvolution, AddsABiasAndActivates) {
  for (const DType dtype : kTypes) {
    MathRig rig;
    for (const ConvolutionCase& c : convolution_cases()) {
      for (const auto activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                    FusedActivation::kSigmoid, FusedActivation::kTanh}) {
        expect_like_cpu(rig, forward_call(c, dtype, true, activation), c.name, 2.0);
      }
      expect_like_cpu(rig, forward_call(c, dtype, false, FusedActivation::kRelu), c.name);
    }
  }
}

TEST(CudaConvolution, TakesTensorsThatAreNotAligned) {
  MathRig rig;
  for (rig.offset = 1; rig.offset < 4; ++rig.offset) {
    for (const DType dtype : kTypes) {
      expect_like_cpu(rig, forward_call(plain_case(), dtype, true, FusedActivation::kRelu),
                      "offset", 2.0);
      expect_like_cpu(rig, backward_filter_call(plain_case(), dtype), "offset");
    }
  }
}

TEST(CudaConvolution, OnePixelIsAMatrixProduct) {
  MathRig rig;
  const ConvolutionCase& c = convolution_cases()[5];
  (void)rig.run(forward_call(c, DType::kFloat32, true));
  (void)rig.run(backward_input_call(c, DType::kFloat32));
  (void)rig.run(backward_filter_call(c, DType::kFloat32));
  EXPECT_EQ(math_counts().products, 3);
  EXPECT_EQ(math_counts().convolutions, 0);
}

TEST(CudaConvolution, AsksForAnEngineOncePerProblem) {
  MathRig rig;
  for (int i = 0; i < 3; ++i) (void)rig.run(forward_call(plain_case(), DType::kFloat32));
  EXPECT_EQ(math_counts().dnn_heuristics, 1);
  EXPECT_EQ(math_counts().plans, 1);
  EXPECT_EQ(math_counts().convolutions, 3);
  (void)rig.run(backward_input_call(plain_case(), DType::kFloat32));
  EXPECT_EQ(rig.libraries.convolution_plans().size(), 2u);
}

TEST(CudaConvolution, EnginesAreThoseThatTheOptionsAllow) {
  using namespace cuda_simulation;
  const auto engine = [](DType dtype, bool tf32, bool deterministic) {
    MathRig rig;
    cuda::MathOptions options;
    options.allow_tf32 = tf32;
    options.deterministic = deterministic;
    rig.libraries.set_options(options);
    (void)rig.run(forward_call(plain_case(), dtype));
    return math_counts().last_engine;
  };
  EXPECT_EQ(engine(DType::kFloat32, true, true), kTensorCoreEngine);
  EXPECT_EQ(engine(DType::kFloat32, false, true), kLargeWorkspaceEngine);
  EXPECT_EQ(engine(DType::kFloat32, false, false), kNondeterministicEngine);
  EXPECT_EQ(engine(DType::kBFloat16, false, true), kTensorCoreEngine);
}

TEST(CudaConvolution, GoesOnToTheNextEngineWhenOneCannot) {
  using namespace cuda_simulation;
  MathRig rig;
  set_math_behavior({.refused_engines = {kLargeWorkspaceEngine}});
  expect_like_cpu(rig, forward_call(plain_case(), DType::kFloat32), "second choice");
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
  set_math_behavior({.refused_engines = {kLargeWorkspaceEngine, kSmallWorkspaceEngine}});
  expect_like_cpu(rig, backward_input_call(plain_case(), DType::kFloat32), "fallback");
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
}

TEST(CudaConvolution, SaysWhenNoEngineCan) {
  using namespace cuda_simulation;
  MathRig rig;
  set_math_behavior(
      {.refused_engines = {kLargeWorkspaceEngine, kSmallWorkspaceEngine, kFallbackEngine}});
  try {
    (void)rig.run(forward_call(plain_case(), DType::kFloat32));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnimplemented);
    EXPECT_EQ(error.message(),
              "conv2d of float32 on cuDNN: no engine for it; try TUTTI_TF32=1 or "
              "TUTTI_CUDNN_DETERMINISTIC=0 (the last one said: CUDNN_STATUS_NOT_SUPPORTED)");
  }
}

TEST(CudaConvolution, TakesAnEngineThatFitsIntoTheMemory) {
  using namespace cuda_simulation;
  MathRig rig;
  rig.workspace.limit = 64 << 10;
  expect_like_cpu(rig, forward_call(plain_case(), DType::kFloat32), "less memory");
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
  rig.workspace.limit = 2 << 10;
  expect_like_cpu(rig, forward_call(plain_case(), DType::kFloat32), "no memory");
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
  rig.workspace.limit = 64 << 20;  // the choice stays
  (void)rig.run(forward_call(plain_case(), DType::kFloat32));
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
}

TEST(CudaConvolution, SaysWhenThereIsNoMemoryAtAll) {
  MathRig rig;
  rig.workspace.limit = 8;  // not even for the filter
  try {
    (void)rig.run(forward_call(plain_case(), DType::kFloat32));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
}

TEST(CudaConvolution, PassesOverEnginesThatWantTooMuchMemory) {
  using namespace cuda_simulation;
  MathRig rig;
  cuda::MathOptions options;
  options.max_workspace_bytes = 1 << 16;
  rig.libraries.set_options(options);
  (void)rig.run(forward_call(plain_case(), DType::kFloat32));
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
}

TEST(CudaConvolution, MeasuresEnginesWhenAsked) {
  MathRig rig;
  cuda::MathOptions options;
  options.num_measured_plans = 8;
  rig.libraries.set_options(options);
  for (int i = 0; i < 2; ++i) {
    expect_like_cpu(rig, forward_call(plain_case(), DType::kFloat32), "measured");
  }
  // Two engines are allowed: each runs once and then three times, when first asked; then the
  // chosen one, twice.
  EXPECT_EQ(math_counts().plans, 2);
  EXPECT_EQ(math_counts().convolutions, 2 * 4 + 2);
}

TEST(CudaConvolution, MeasuresOnlyEnginesThatFitIntoTheMemory) {
  MathRig rig;
  cuda::MathOptions options;
  options.num_measured_plans = 8;
  rig.libraries.set_options(options);
  rig.workspace.limit = 64 << 10;
  expect_like_cpu(rig, forward_call(plain_case(), DType::kFloat32), "measured");
  EXPECT_EQ(math_counts().last_engine, cuda_simulation::kSmallWorkspaceEngine);
  EXPECT_EQ(math_counts().convolutions, 1);  // one is left: nothing to compare
}

TEST(CudaConvolution, GradientOfABiasIsASumOverAllPixels) {
  const std::vector<Shape> shapes{{2, 3, 4, 5}, {7, 1}, {3, 8}, {1, 1},   {900, 12},
                                  {2000, 3},    {5},    {0, 4}, {3, 130}, {300, 4, 2}};
  for (const DType dtype : kTypes) {
    MathRig rig;
    for (const Shape& shape : shapes) {
      const OpCall call{OpId::kBiasGrad, {some(shape, dtype, 5)}, {{{shape.dim(-1)}, dtype}}, {}};
      expect_like_cpu(rig, call, concat(shape));
    }
  }
}

}  // namespace
}  // namespace tutti::math_rig

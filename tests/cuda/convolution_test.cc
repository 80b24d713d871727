// How engines of convolutions are chosen.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tensor/cuda/convolution_plans.h"
#include "tests/cuda/math_rig.h"

namespace tutti::math_rig {
namespace {

using cuda_simulation::math_counts;
using cuda_simulation::set_math_behavior;

Tensor some(const Shape& shape, DType dtype, std::uint64_t seed) {
  return testing::random_values(shape, dtype, -1.0, 1.0, seed);
}

/// A convolution with a square window of `window` pixels that keeps the size of the image.
struct Convolution {
  Conv2dAttributes attributes() const {
    const std::int64_t pads = window / 2;
    return {1, 1, pads, pads, pads, pads};
  }
  OpCall forward(DType dtype = DType::kFloat32) const {
    return {OpId::kConv2d, {some(x, dtype, 1), some(filter, dtype, 2)}, {{y, dtype}}, attributes()};
  }
  OpCall forward_with_bias() const {
    OpCall call = forward();
    call.inputs.push_back(some({filter[3]}, DType::kFloat32, 3));
    return call;
  }
  OpCall backward_input() const {
    return {OpId::kConv2dBackwardInput,
            {some(y, DType::kFloat32, 4), some(filter, DType::kFloat32, 2)},
            {{x, DType::kFloat32}},
            attributes()};
  }
  OpCall backward_filter() const {
    return {OpId::kConv2dBackwardFilter,
            {some(x, DType::kFloat32, 1), some(y, DType::kFloat32, 4)},
            {{filter, DType::kFloat32}},
            attributes()};
  }

  std::int64_t window = 3;
  Shape x{2, 5, 6, 3}, y{2, 5, 6, 4};
  Shape filter{window, window, 3, 4};
};

TEST(CudaConvolution, OnePixelIsAMatrixProduct) {
  MathRig rig;
  const Convolution c{1};
  (void)rig.run(c.forward_with_bias());
  (void)rig.run(c.backward_input());
  (void)rig.run(c.backward_filter());
  EXPECT_EQ(math_counts().products, 3);
  EXPECT_EQ(math_counts().convolutions, 0);
}

TEST(CudaConvolution, AsksForAnEngineOncePerProblem) {
  MathRig rig;
  for (int i = 0; i < 3; ++i) (void)rig.run(Convolution{}.forward());
  EXPECT_EQ(math_counts().dnn_heuristics, 1);
  EXPECT_EQ(math_counts().plans, 1);
  EXPECT_EQ(math_counts().convolutions, 3);
  (void)rig.run(Convolution{}.backward_input());
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
    (void)rig.run(Convolution{}.forward(dtype));
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
  rig.expect_like_reference(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
  set_math_behavior({.refused_engines = {kLargeWorkspaceEngine, kSmallWorkspaceEngine}});
  rig.expect_like_reference(Convolution{}.backward_input());
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
}

TEST(CudaConvolution, SaysWhenNoEngineCan) {
  using namespace cuda_simulation;
  MathRig rig;
  set_math_behavior(
      {.refused_engines = {kLargeWorkspaceEngine, kSmallWorkspaceEngine, kFallbackEngine}});
  try {
    (void)rig.run(Convolution{}.forward());
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
  rig.expect_like_reference(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
  rig.workspace.limit = 2 << 10;
  rig.expect_like_reference(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
  rig.workspace.limit = 64 << 20;  // the choice stays
  (void)rig.run(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kFallbackEngine);
}

TEST(CudaConvolution, SaysWhenThereIsNoMemoryAtAll) {
  MathRig rig;
  rig.workspace.limit = 8;  // not even for the filter
  try {
    (void)rig.run(Convolution{}.forward());
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
  (void)rig.run(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, kSmallWorkspaceEngine);
}

TEST(CudaConvolution, MeasuresEnginesWhenAsked) {
  MathRig rig;
  cuda::MathOptions options;
  options.num_measured_plans = 8;
  rig.libraries.set_options(options);
  for (int i = 0; i < 2; ++i) {
    rig.expect_like_reference(Convolution{}.forward());
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
  rig.expect_like_reference(Convolution{}.forward());
  EXPECT_EQ(math_counts().last_engine, cuda_simulation::kSmallWorkspaceEngine);
  EXPECT_EQ(math_counts().convolutions, 1);  // one is left: nothing to compare
}

}  // namespace
}  // namespace tutti::math_rig

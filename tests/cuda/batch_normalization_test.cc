// Batch normalisation of the CUDA backend against the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/cuda/math_rig.h"

namespace tutti::math_rig {
namespace {

const std::vector<Shape>& normalized_shapes() {
  static const std::vector<Shape> shapes{{2, 3, 4, 8}, {5, 3},   {1, 1},    {1, 16}, {700, 4},
                                         {3000, 1},    {2, 130}, {40, 260}, {0, 4},  {6, 5, 12}};
  return shapes;
}

struct NormInputs {
  NormInputs(const Shape& shape, DType dtype, DType parameters, double center = 0.0)
      : x(testing::random_values(shape, dtype, center - 2.0, center + 2.0, 1)),
        gamma(testing::random_values({shape.dim(-1)}, parameters, 0.5, 1.5, 2)),
        beta(testing::random_values({shape.dim(-1)}, parameters, -1.0, 1.0, 3)),
        mean(testing::random_values({shape.dim(-1)}, parameters, -0.5, 0.5, 4)),
        variance(testing::random_values({shape.dim(-1)}, parameters, 0.5, 2.0, 5)),
        dy(testing::random_values(shape, dtype, -1.0, 1.0, 6)) {}

  OpCall training() const {
    return {
        OpId::kBatchNormTraining,
        {x, gamma, beta},
        {{x.shape(), x.dtype()}, {gamma.shape(), gamma.dtype()}, {gamma.shape(), gamma.dtype()}},
        BatchNormAttributes{1e-3}};
  }
  OpCall inference() const {
    return {OpId::kBatchNormInference,
            {x, gamma, beta, mean, variance},
            {{x.shape(), x.dtype()}},
            BatchNormAttributes{1e-3}};
  }
  OpCall gradient() const {
    return {
        OpId::kBatchNormGrad,
        {x, gamma, mean, variance, dy},
        {{x.shape(), x.dtype()}, {gamma.shape(), gamma.dtype()}, {gamma.shape(), gamma.dtype()}},
        BatchNormAttributes{1e-3}};
  }
  Tensor x, gamma, beta, mean, variance, dy;
};

TEST(CudaBatchNormalization, GivesWhatTheCpuGives) {
  for (const DType dtype : kTypes) {
    MathRig rig;
    for (const Shape& shape : normalized_shapes()) {
      const NormInputs inputs(shape, dtype, dtype);
      expect_like_cpu(rig, inputs.training(), concat(shape), 2.0);
      expect_like_cpu(rig, inputs.inference(), concat(shape), 2.0);
      expect_like_cpu(rig, inputs.gradient(), concat(shape), 4.0);
    }
  }
}

TEST(CudaBatchNormalization, TakesTensorsThatAreNotAligned) {
  MathRig rig;
  rig.offset = 1;
  for (const DType dtype : kTypes) {
    const NormInputs inputs({6, 5, 8}, dtype, dtype);
    expect_like_cpu(rig, inputs.training(), "offset", 2.0);
    expect_like_cpu(rig, inputs.gradient(), "offset", 4.0);
  }
}

TEST(CudaBatchNormalization, LosesNothingFarFromZero) {
  MathRig rig;
  const NormInputs inputs({500, 4}, DType::kFloat32, DType::kFloat32, 1000.0);
  const auto results = rig.run(inputs.training());
  const auto expected = run_kernel(reference_kernels(), inputs.training());
  expect_close(results[2], expected[2], 1e-5, "variance");
  expect_close(results[0], expected[0], 1e-4, "y");
}

// What the CPU has no kernel for: data of 16 bits, parameters in float32.
TEST(CudaBatchNormalization, TakesParametersInFloat32) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    MathRig rig;
    const NormInputs mixed({6, 5, 12}, dtype, DType::kFloat32);
    NormInputs wide = mixed;
    wide.x = testing::tensor_of(mixed.x.shape(), mixed.x.to_doubles(), DType::kFloat32);
    wide.dy = testing::tensor_of(mixed.dy.shape(), mixed.dy.to_doubles(), DType::kFloat32);
    const auto compare = [&](const OpCall& actual, const OpCall& expected) {
      const auto a = rig.run(actual), e = run_kernel(reference_kernels(), expected);
      for (std::size_t i = 0; i < e.size(); ++i) {
        const Tensor same = testing::tensor_of(a[i].shape(), a[i].to_doubles(), DType::kFloat32);
        expect_close(same, e[i], i == 0 ? tolerance_of(dtype) : 1e-5, concat("output ", i));
      }
    };
    compare(mixed.training(), wide.training());
    compare(mixed.inference(), wide.inference());
    compare(mixed.gradient(), wide.gradient());
  }
}

TEST(CudaBatchNormalization, RefusesParametersOfAnotherType) {
  MathRig rig;
  try {
    (void)rig.run(NormInputs({4, 4}, DType::kFloat32, DType::kFloat64).training());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "batch normalisation: expected parameters of type float32, got float64");
  }
}

TEST(CudaBatchNormalization, IsTheSameEachTime) {
  MathRig rig;
  const NormInputs inputs({3000, 6}, DType::kFloat32, DType::kFloat32);
  EXPECT_EQ(rig.run(inputs.training())[2].to_doubles(), rig.run(inputs.training())[2].to_doubles());
}

}  // namespace
}  // namespace tutti::math_rig

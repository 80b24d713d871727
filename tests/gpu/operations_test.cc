// Tests operations and their gradients on a GPU against the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include "tests/autograd/gradient_check.h"
#include "tests/gpu/gpu_helpers.h"

namespace tutti {
namespace {

using gpu_tests::expect_near;
using gpu_tests::kGpu;

class GpuGradients : public testing::OpTableTest {};

TEST_P(GpuGradients, AgreeWithTheCpu) {
  for (const gradient_check::Case& c : gradient_check::cases_of(GetParam())) {
    expect_near_cpu(c, value_and_gradients(c, kGpu), 3e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, GpuGradients, ::testing::ValuesIn(testing::op_families()),
                         testing::family_name);

TEST(GpuOperations, SecondOrderGradientsStayOnTheDevice) {
  const Tensor x = gpu_tests::numbers({4, 3}, 5), w = gpu_tests::numbers({3, 2}, 6);
  const auto second = [&](Device device) {
    const Tensor there = x.to(device), weights = w.to(device);
    GradientTape outer;
    outer.watch(there);
    Tensor norm;
    {
      GradientTape inner;
      inner.watch(there);
      const Tensor y = reduce_sum(square(tanh(matmul(there, weights))));
      norm = reduce_sum(square(inner.gradient(y, there).dense()));
    }
    return outer.gradient(norm, there).dense();
  };
  expect_near(second(kGpu), second(Device{}), 3e-5);
}

TEST(GpuOperations, RandomTensorsAreThoseOfTheCpu) {
  const RandomKey key{.seed = 3};
  testing::expect_same_bits(random_normal({50}, key, 0.0, 1.0, DType::kFloat32, kGpu).to(Device{}),
                            random_normal({50}, key, 0.0, 1.0, DType::kFloat32));
  testing::expect_same_bits(random_uniform({50}, key, 0.0, 1.0, DType::kFloat32, kGpu).to(Device{}),
                            random_uniform({50}, key, 0.0, 1.0, DType::kFloat32));
}

}  // namespace
}  // namespace tutti

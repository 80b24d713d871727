// Pooling of the CUDA backend against the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "tests/cuda/math_rig.h"

namespace tutti::math_rig {
namespace {

struct PoolingCase {
  const char* name;
  Shape x, y;
  Pool2dAttributes attributes;
};

const std::vector<PoolingCase>& pooling_cases() {
  static const std::vector<PoolingCase> cases{
      {"2x2", {2, 4, 6, 3}, {2, 2, 3, 3}, {2, 2, 2, 2}},
      {"2x2, packs", {2, 4, 6, 8}, {2, 2, 3, 8}, {2, 2, 2, 2}},
      {"3x3 overlapping, same, uneven pads", {1, 6, 6, 4}, {1, 3, 3, 4}, {3, 3, 2, 2, 0, 1, 0, 1}},
      {"3x3 stride 1, same", {2, 5, 4, 2}, {2, 5, 4, 2}, {3, 3, 1, 1, 1, 1, 1, 1}},
      {"rows and columns differ", {2, 7, 5, 3}, {2, 3, 5, 3}, {3, 1, 2, 1, 0, 0, 0, 0}},
      {"stride above the window", {1, 7, 7, 4}, {1, 3, 3, 4}, {1, 1, 3, 3}},
      {"the whole image", {3, 5, 4, 4}, {3, 1, 1, 4}, {5, 4, 1, 1}},
      {"one", {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}},
      {"empty batch", {0, 4, 4, 4}, {0, 2, 2, 4}, {2, 2, 2, 2}}};
  return cases;
}

void expect_all_pooling(MathRig& rig, const PoolingCase& c, const Tensor& x, const Tensor& dy) {
  const DType dtype = x.dtype();
  expect_like_cpu(rig, {OpId::kMaxPool, {x}, {{c.y, dtype}}, c.attributes}, c.name);
  expect_like_cpu(rig, {OpId::kMaxPoolGrad, {x, dy}, {{c.x, dtype}}, c.attributes}, c.name);
  expect_like_cpu(rig, {OpId::kAveragePool, {x}, {{c.y, dtype}}, c.attributes}, c.name);
  expect_like_cpu(rig, {OpId::kAveragePoolGrad, {dy}, {{c.x, dtype}}, c.attributes}, c.name);
}

TEST(CudaPooling, GivesWhatTheCpuGives) {
  for (const DType dtype : kTypes) {
    MathRig rig;
    for (const PoolingCase& c : pooling_cases()) {
      expect_all_pooling(rig, c, testing::random_values(c.x, dtype, -1.0, 1.0, 1),
                         testing::random_values(c.y, dtype, -1.0, 1.0, 2));
    }
  }
}

TEST(CudaPooling, TakesTensorsThatAreNotAligned) {
  MathRig rig;
  rig.offset = 1;
  const PoolingCase& c = pooling_cases()[2];
  for (const DType dtype : kTypes) {
    expect_all_pooling(rig, c, testing::random_values(c.x, dtype, -1.0, 1.0, 1),
                       testing::random_values(c.y, dtype, -1.0, 1.0, 2));
  }
}

TEST(CudaPooling, TheFirstOfEqualMaximaGetsTheGradient) {
  MathRig rig;
  for (const PoolingCase& c : pooling_cases()) {
    expect_all_pooling(rig, c, Tensor::ones(c.x),
                       testing::random_values(c.y, DType::kFloat32, 1, 2));
  }
}

TEST(CudaPooling, ANanIsTheLargest) {
  MathRig rig;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from<float>({1, 2, 2, 1}, {3.0f, nan, 5.0f, nan});
  const Pool2dAttributes attributes{2, 2, 2, 2};
  expect_like_cpu(rig, {OpId::kMaxPool, {x}, {{{1, 1, 1, 1}, DType::kFloat32}}, attributes}, "nan");
  const Tensor gradient = rig.run({OpId::kMaxPoolGrad,
                                   {x, Tensor::ones({1, 1, 1, 1})},
                                   {{x.shape(), DType::kFloat32}},
                                   attributes})[0];
  EXPECT_EQ(gradient.to_doubles(), (std::vector<double>{0.0, 1.0, 0.0, 0.0}));
}

}  // namespace
}  // namespace tutti::math_rig

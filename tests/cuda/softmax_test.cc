// Softmax of the CUDA backend against the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/cuda/math_rig.h"

namespace tutti::math_rig {
namespace {

TEST(CudaSoftmax, GivesWhatTheCpuGives) {
  const std::vector<Shape> shapes{{3, 5}, {1, 1}, {7}, {2, 3, 4}, {0, 4}, {4, 0}, {2, 1000}};
  for (const DType dtype : kTypes) {
    MathRig rig;
    for (const Shape& shape : shapes) {
      if (shape.dim(-1) == 0) continue;
      const Tensor x = testing::random_values(shape, dtype, -5.0, 5.0, 1);
      const Tensor dy = testing::random_values(shape, dtype, -1.0, 1.0, 2);
      const std::vector<TensorSpec> same{{shape, dtype}};
      const Tensor y = expect_like_cpu(rig, {OpId::kSoftmax, {x}, same, {}}, concat(shape))[0];
      const Tensor log = expect_like_cpu(rig, {OpId::kLogSoftmax, {x}, same, {}}, concat(shape))[0];
      expect_like_cpu(rig, {OpId::kSoftmaxGrad, {y, dy}, same, {}}, concat(shape), 2.0);
      expect_like_cpu(rig, {OpId::kLogSoftmaxGrad, {log, dy}, same, {}}, concat(shape), 2.0);
    }
  }
}

TEST(CudaSoftmax, OfNoClassesIsEmpty) {
  MathRig rig;
  const Tensor x = Tensor::zeros({4, 0});
  EXPECT_EQ(rig.run({OpId::kSoftmax, {x}, {{x.shape(), x.dtype()}}, {}})[0].shape(), Shape({4, 0}));
}

}  // namespace
}  // namespace tutti::math_rig

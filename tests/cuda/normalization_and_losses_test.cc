// Normalisations, losses and resizing on GPUs agree with the CPU as closely as their type allows.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/device_call.h"

namespace tutti {
namespace cuda_normalization_test {

using testing::compare_with_cpu;
using testing::device_test_call;
using testing::random_values;
using testing::tensor_of;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};

struct Groups {
  std::int64_t batch, positions, groups, channels;
};

TEST(CudaNormalization, GroupsAgreeWithTheCpu) {
  for (const DType dtype : kTypes) {
    for (const Groups& g : {Groups{1, 1, 1, 1}, Groups{3, 1, 1, 17}, Groups{2, 6, 2, 5},
                            Groups{2, 40, 3, 4}, Groups{2, 1, 1, 1000}, Groups{3, 70, 35, 1}}) {
      const Shape shape{g.batch, g.positions, g.groups * g.channels};
      const Shape per_channel{g.groups * g.channels}, per_pair{g.batch, g.groups};
      const GroupNormAttributes attributes{g.positions, g.groups, 1e-3};
      const Tensor x = random_values(shape, dtype, 1, 4);
      const Tensor gamma = random_values(per_channel, dtype, -1, 2, 2);
      const Tensor beta = random_values(per_channel, dtype, -1, 1, 3);
      const Tensor dy = random_values(shape, dtype, -1, 1, 4);
      const OpCall forward =
          device_test_call(OpId::kGroupNorm, {x, gamma, beta},
                           {{shape, dtype}, {per_pair, dtype}, {per_pair, dtype}}, attributes);
      EXPECT_TRUE(compare_with_cpu(forward, {100}));
      compare_with_cpu(forward, {100}, 1);
      const std::vector<Tensor> results = run_kernel(reference_kernels(), forward);
      EXPECT_TRUE(compare_with_cpu(
          device_test_call(OpId::kGroupNormGrad, {x, gamma, results[1], results[2], dy},
                           {{shape, dtype}, {per_channel, dtype}, {per_channel, dtype}},
                           attributes),
          {400}));
    }
  }
}

TEST(CudaNormalization, GradientsOfManyRowsAreCutIntoParts) {
  const Shape shape{5000, 8}, per_channel{8}, per_row{5000, 1};
  const Tensor x = random_values(shape, DType::kFloat32, -1, 1);
  const Tensor dy = random_values(shape, DType::kFloat32, -1, 1, 2);
  const Tensor gamma = random_values(per_channel, DType::kFloat32, 1, 2, 3);
  const Tensor mean = random_values(per_row, DType::kFloat32, -0.1, 0.1, 4);
  const Tensor variance = random_values(per_row, DType::kFloat32, 0.5, 1, 5);
  EXPECT_TRUE(
      compare_with_cpu(device_test_call(OpId::kGroupNormGrad, {x, gamma, mean, variance, dy},
                                        {{shape, DType::kFloat32},
                                         {per_channel, DType::kFloat32},
                                         {per_channel, DType::kFloat32}},
                                        GroupNormAttributes{1, 1, 1e-3}),
                       {2000}));
}

TEST(CudaNormalization, LocalResponsesGiveTheBitsOfTheCpuAndGradientsNearlySo) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t channels : {1, 3, 16, 40}) {
      for (const std::int64_t radius : {0, 2, 5}) {
        const Tensor x = random_values({2, 3, channels}, dtype, -2, 2);
        const Tensor dy = random_values({2, 3, channels}, dtype, -1, 1, 2);
        const LrnAttributes attributes{radius, 1.0, 0.5, 0.75};
        EXPECT_TRUE(
            compare_with_cpu(device_test_call(OpId::kLrn, {x}, {{x.shape(), dtype}}, attributes)));
        EXPECT_TRUE(compare_with_cpu(
            device_test_call(OpId::kLrnGrad, {x, dy}, {{x.shape(), dtype}}, attributes), {8}));
      }
    }
  }
}

TEST(CudaResizing, EnlargingAndItsGradientGiveTheBitsOfTheCpu) {
  for (const DType dtype : kTypes) {
    for (const Interpolation how : {Interpolation::kNearest, Interpolation::kBilinear}) {
      for (const auto& [h, w] : {std::pair{1, 1}, {2, 2}, {3, 1}, {2, 5}}) {
        for (const Shape& small : {Shape{2, 3, 4, 3}, Shape{1, 1, 1, 2}, Shape{1, 1, 5, 1}}) {
          const Shape large{small[0], small[1] * h, small[2] * w, small[3]};
          const UpsampleAttributes attributes{h, w, how};
          EXPECT_TRUE(compare_with_cpu(device_test_call(OpId::kUpsample,
                                                        {random_values(small, dtype, -2, 2)},
                                                        {{large, dtype}}, attributes)));
          EXPECT_TRUE(compare_with_cpu(device_test_call(OpId::kUpsampleGrad,
                                                        {random_values(large, dtype, -2, 2)},
                                                        {{small, dtype}}, attributes)));
        }
      }
    }
  }
}

TEST(CudaLosses, CrossEntropiesOfSoftmaxAgreeWithTheCpu) {
  for (const DType dtype : kTypes) {
    for (const auto& [rows, classes] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 10}, {70, 3}, {3, 1000}}) {
      const Shape shape{rows, classes};
      const Tensor logits = random_values(shape, dtype, -9, 9);
      EXPECT_TRUE(compare_with_cpu(
          device_test_call(OpId::kSoftmaxCrossEntropy,
                           {random_values(shape, dtype, 0, 0.1, 2), logits}, {{{rows}, dtype}}),
          {200}));
      for (const DType label : {DType::kInt32, DType::kInt64}) {
        const Tensor labels =
            random_values({rows}, label, 0, static_cast<double>(classes) - 0.01, 3);
        EXPECT_TRUE(compare_with_cpu(
            device_test_call(OpId::kSparseSoftmaxCrossEntropy, {labels, logits}, {{{rows}, dtype}}),
            {50}));
        EXPECT_TRUE(compare_with_cpu(
            device_test_call(OpId::kSparseSoftmaxCrossEntropyGrad,
                             {labels, logits, random_values({rows}, dtype, -2, 2, 4)},
                             {{shape, dtype}}),
            {50}));
      }
    }
  }
}

TEST(CudaLosses, LargeLogitsDoNotOverflow) {
  const Tensor logits = tensor_of({2, 3}, {1000, 999, -1000, -5000, -5000, -5001}, DType::kFloat32);
  const Tensor labels = tensor_of({2}, {1, 2}, DType::kInt32);
  EXPECT_TRUE(compare_with_cpu(device_test_call(OpId::kSparseSoftmaxCrossEntropy, {labels, logits},
                                                {{{2}, DType::kFloat32}}),
                               {20}));
}

// The CPU throws (docs/deviations.md).
TEST(CudaLosses, ALabelThatIsNoClassGivesNan) {
  const double nan = std::nan("");
  const Tensor logits = tensor_of({3, 2}, {0, 0, 0, 0, 0, 0}, DType::kFloat32);
  const Tensor labels = tensor_of({3}, {2, 1, -1}, DType::kInt64);
  const Tensor dy = tensor_of({3}, {1, 1, 1}, DType::kFloat32);
  const auto loss = testing::run_on_device(device_test_call(
      OpId::kSparseSoftmaxCrossEntropy, {labels, logits}, {{{3}, DType::kFloat32}}));
  testing::expect_tensor(loss[0], {3}, {nan, std::log(2.0), nan}, 1e-6);
  const auto gradient = testing::run_on_device(device_test_call(
      OpId::kSparseSoftmaxCrossEntropyGrad, {labels, logits, dy}, {{{3, 2}, DType::kFloat32}}));
  testing::expect_tensor(gradient[0], {3, 2}, {nan, nan, 0.5, -0.5, nan, nan}, 1e-6);
}

}  // namespace cuda_normalization_test
}  // namespace tutti

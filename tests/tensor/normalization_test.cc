// Normalizations: values computed by hand, numbers far from zero, batches without rows, errors. The
// table of operations compares kernels with the reference kernels, whose float32 and float64 it
// compares with each other; the records of Keras (tests/parity) have values and gradients of
// layers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/normalization.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace normalization_test {

using testing::expect_tensor;

constexpr double kEpsilon = 1e-3;

TEST(BatchNorm, VarianceIsAccurateFarFromZero) {
  std::vector<float> values;
  for (int i = 0; i < 4096; ++i) values.push_back(10000.0f + static_cast<float>(i % 2));
  const BatchNormResult result = batch_norm_training(Tensor::from({4096, 1}, values),
                                                     Tensor::ones({1}), Tensor::zeros({1}), 0);
  expect_tensor(result.mean, {1}, {10000.5});
  expect_tensor(result.variance, {1}, {0.25}, 1e-6);
  EXPECT_NEAR(result.y.to_doubles()[0], -1.0, 1e-3);
}

TEST(BatchNorm, BatchOfNoRowsHasZeroStatisticsAndGradients) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Tensor x = Tensor::zeros({0, 4, 4, 3}, dtype), gamma = Tensor::ones({3}, dtype);
    const BatchNormResult result = batch_norm_training(x, gamma, gamma, kEpsilon);
    expect_tensor(result.y, x.shape(), {});
    expect_tensor(result.mean, {3}, {0, 0, 0});
    expect_tensor(result.variance, {3}, {0, 0, 0});
    expect_tensor(batch_norm_inference(x, gamma, gamma, gamma, gamma, kEpsilon), x.shape(), {});
    const auto gradients = batch_norm_grad(x, gamma, result.mean, result.variance, x, kEpsilon);
    expect_tensor(gradients[0], x.shape(), {});
    expect_tensor(gradients[1], {3}, {0, 0, 0});
    expect_tensor(gradients[2], {3}, {0, 0, 0});
  }
}

TEST(BatchNorm, ErrorsNameTheShapesAndTheLine) {
  const Tensor x = Tensor::zeros({2, 4, 4, 3}), gamma = Tensor::ones({3});
  EXPECT_INVALID(batch_norm_training(x, gamma, Tensor::ones({4}), kEpsilon),
                 " at normalization_test.cc:", "[3]", "[2, 4, 4, 3]", "[4]");
  EXPECT_INVALID(
      batch_norm_inference(x, gamma, gamma, gamma, Tensor::ones({3}, DType::kFloat64), kEpsilon),
      "float64");
  EXPECT_INVALID(batch_norm_training(gamma, gamma, gamma, kEpsilon), "[3]");
  EXPECT_INVALID(batch_norm_grad(x, gamma, gamma, gamma, Tensor::zeros({2, 3}), kEpsilon),
                 "[2, 4, 4, 3]", "[2, 3]");
}

TEST(LocalResponseNormalization, DividesByThePowerOfASumOfSquares) {
  struct Case {
    LrnAttributes attributes;  // radius, bias, alpha, beta
    std::vector<double> expected;
  };
  const Case cases[] = {
      {{1, 1, 1, 0.5}, {1 / std::sqrt(6.0), 2 / std::sqrt(10.0), 2 / std::sqrt(9.0)}},
      {{1, 2, 3, 1}, {1 / 17.0, 2 / 29.0, 2 / 26.0}},
      {{0, 1, 1, 0.5}, {1 / std::sqrt(2.0), 2 / std::sqrt(5.0), 2 / std::sqrt(5.0)}}};
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Tensor x = testing::tensor_of({1, 1, 1, 3}, {1, 2, 2}, dtype);
    for (const Case& c : cases) {
      SCOPED_TRACE(
          concat(dtype, " radius ", c.attributes.depth_radius, " beta ", c.attributes.beta));
      expect_tensor(local_response_normalization(x, c.attributes), x.shape(), c.expected,
                    dtype == DType::kFloat32 ? 1e-6 : 1e-13);
    }
  }
}

TEST(LocalResponseNormalization, HandlesNoRowsAndRefusesWrongArguments) {
  const Tensor empty = Tensor::zeros({0, 2, 2, 3});
  expect_tensor(local_response_normalization(empty), empty.shape(), {});
  expect_tensor(local_response_normalization_grad(empty, empty, {}), empty.shape(), {});
  EXPECT_INVALID(local_response_normalization(empty, {.depth_radius = -1}),
                 " at normalization_test.cc:", "depth_radius", "-1");
  EXPECT_INVALID(local_response_normalization_grad(empty, Tensor::zeros({0, 2, 3}), {}),
                 "[0, 2, 2, 3]", "[0, 2, 3]");
}

// 1, 3 and 5, 11: means 2 and 8, deviations 1 and 3.
TEST(GroupNorm, NormalizesRowsAxesAndGroupsOfChannels) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Tensor x = testing::tensor_of({1, 2, 2}, {1, 3, 5, 11}, dtype);
    const Tensor gamma = testing::tensor_of({2}, {1, 10}, dtype), beta = gamma * 100.0;
    expect_tensor(layer_norm(x, gamma, beta, {1, 0.0}), {1, 2, 2}, {99, 1010, 99, 1010}, 1e-6);
    const Tensor ones = Tensor::ones({2, 2}, dtype);  // mean 5, variance 14
    expect_tensor(layer_norm(x, ones, ones * 2.0, {2, 2.0}), {1, 2, 2}, {1, 1.5, 2, 3.5}, 1e-6);
    expect_tensor(group_norm(x, gamma, beta, {2, 0.0}), {1, 2, 2}, {99, 990, 101, 1010}, 1e-6);
    expect_tensor(group_norm(x, gamma, beta, {1, 2.0}), {1, 2, 2}, {99, 995, 100, 1015}, 1e-6);
  }
}

TEST(GroupNorm, NoRowsGiveAnEmptyResultAndZeroGradients) {
  const Tensor ones = Tensor::ones({4});
  EXPECT_EQ(layer_norm(Tensor::zeros({0, 4}), ones, ones).shape(), (Shape{0, 4}));
  EXPECT_EQ(group_norm(Tensor::zeros({0, 3, 4}), ones, ones, {2, 1e-3}).shape(), (Shape{0, 3, 4}));
  const Tensor none = Tensor::zeros({0, 2}), empty = Tensor::zeros({0, 3, 4});
  const auto gradients = group_norm_grad(empty, ones, none, none, empty, {3, 2, 1e-3});
  expect_tensor(gradients[1], {4}, {0, 0, 0, 0});
  expect_tensor(gradients[2], {4}, {0, 0, 0, 0});
}

TEST(GroupNorm, ErrorsNameOperationShapesAndLine) {
  const Tensor x = Tensor::zeros({2, 3, 6}), six = Tensor::ones({6}), five = Tensor::ones({5});
  EXPECT_INVALID(layer_norm(x, six, five), "layer_norm at normalization_test.cc:", "[6]",
                 "[2, 3, 6]", "[5]");
  EXPECT_INVALID(layer_norm(x, six, six, {4, 1e-3}), "layer_norm", "num_axes of 1 .. 3", "got 4");
  EXPECT_INVALID(group_norm(x, six, six, {4, 1e-3}),
                 "group_norm at normalization_test.cc:", "6 channels", "got 4");
  EXPECT_INVALID(group_norm(x, five, six, {2, 1e-3}), "group_norm", "[6]", "[2, 3, 6]", "[5]");
  EXPECT_INVALID(group_norm(Tensor::zeros({2, 6}, DType::kInt32), six, six), "group_norm",
                 "floating type", "int32");
  EXPECT_INVALID(group_norm_grad(x, six, Tensor::ones({2, 2}), Tensor::ones({2, 2}),
                                 Tensor::ones({2, 6}), {3, 2, 1e-3}),
                 "group_norm_grad", "[2, 3, 6]", "[2, 6]");
}

}  // namespace normalization_test
}  // namespace tutti

// Tests softmax, cross-entropies and normalizations: documented values, plain loops, extreme
// numbers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/activation_ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/normalization.h"

namespace tutti::softmax_test {
using testing::expect_tensor;
using testing::random_values;
using testing::tensor_of;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-6 : 1e-13; }

/// Returns exp(x) over their sum, for logits that do not overflow.
std::vector<double> plain_softmax(const std::vector<double>& x, std::size_t classes) {
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    double sum = 0.0;
    for (std::size_t j = 0; j < classes; ++j) sum += std::exp(x[i / classes * classes + j]);
    y.push_back(std::exp(x[i]) / sum);
  }
  return y;
}

TEST(Softmax, GivesTheValuesOfTensorFlowsDocumentation) {
  expect_tensor(softmax(Tensor::from<float>({3}, {-1, 0, 1})), {3},
                {0.09003057, 0.24472848, 0.66524094}, 1e-7);
  expect_tensor(
      sparse_softmax_cross_entropy(
          Tensor::from<std::int64_t>({3}, {0, 3, 1}),
          Tensor::from<float>({3, 4}, {2, -5, .5f, -.1f, 0, 0, 1.9f, 1.4f, -100, 100, -100, -100})),
      {3}, {0.29750752, 1.1448325, 0.0}, 1e-6);
  expect_tensor(softmax_cross_entropy(Tensor::from<float>({2, 3}, {1, 0, 0, 0, 0.8f, 0.2f}),
                                      Tensor::from<float>({2, 3}, {4, 2, 1, 0, 5, 1})),
                {2}, {0.16984604, 0.82474494}, 1e-6);
  expect_tensor(sigmoid_cross_entropy(Tensor::from<float>({7}, {0, 0, 0, 1, 1, 1, 0.5f}),
                                      Tensor::from<float>({7}, {1, -1, 0, 1, -1, 0, 0})),
                {7}, {1.3132617, 0.3132617, 0.6931472, 0.3132617, 1.3132617, 0.6931472, 0.6931472},
                1e-6);
}

TEST(Softmax, AgreesWithPlainLoops) {
  for (const Shape& shape : {Shape{1}, Shape{3, 1}, Shape{4, 10}, Shape{2, 3, 17}}) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(concat(shape, " ", dtype));
      const Tensor x = random_values(shape, dtype, -4, 4);
      auto expected = plain_softmax(x.to_doubles(), static_cast<std::size_t>(shape.dim(-1)));
      expect_tensor(softmax(x), shape, expected, tolerance(dtype));
      for (double& value : expected) value = std::log(value);
      expect_tensor(log_softmax(x), shape, expected, tolerance(dtype));
    }
  }
}

TEST(CrossEntropy, AgreesWithPlainLoops) {
  const Shape shape{6, 10};
  for (DType dtype : kTypes) {
    const Tensor logits = random_values(shape, dtype, -3, 3, 1);
    const std::vector<double> classes = {0, 9, 3, 3, 5, 1};
    const auto p = plain_softmax(logits.to_doubles(), 10);
    std::vector<double> loss, one_hot(60);
    for (std::size_t row = 0; row < 6; ++row) {
      const std::size_t label = row * 10 + static_cast<std::size_t>(classes[row]);
      one_hot[label] = 1.0;
      loss.push_back(-std::log(p[label]));
    }
    for (DType label_type : {DType::kInt32, DType::kInt64}) {
      const Tensor labels = tensor_of({6}, classes, label_type);
      expect_tensor(sparse_softmax_cross_entropy(labels, logits), {6}, loss, tolerance(dtype));
    }
    expect_tensor(softmax_cross_entropy(tensor_of(shape, one_hot, dtype), logits), {6}, loss,
                  tolerance(dtype));
  }
}

TEST(Softmax, ExtremeLogitsDoNotOverflow) {
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({2, 3}, {1e30, 0, -1e30, -1e30, -1e30, -1e30}, dtype);
    const double third = 1.0 / 3.0;
    expect_tensor(softmax(x), {2, 3}, {1, 0, 0, third, third, third}, 1e-7);
    const Tensor labels = Tensor::from<std::int64_t>({2}, {0, 1});
    const Tensor big = tensor_of({2, 3}, {1000, 0, -1000, -1000, 0, 1000}, dtype);
    expect_tensor(sparse_softmax_cross_entropy(labels, big), {2}, {0, 1000}, 1e-7);
    expect_tensor(log_softmax(big), {2, 3}, {0, -1000, -2000, -2000, -1000, 0}, 1e-7);
    expect_tensor(sigmoid_cross_entropy(tensor_of({4}, {0, 1, 0, 1}, dtype),
                                        tensor_of({4}, {1000, 1000, -1000, -1000}, dtype)),
                  {4}, {1000, 0, 0, 1000}, 1e-7);
  }
}

TEST(Softmax, LogarithmsKeepTheDigitsOfLikelyClassesAndOfLargeLogits) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(dtype);
    const Tensor x = tensor_of({2, 2}, {20, 0, 5000, 5001}, dtype);
    const double likely = -std::log1p(std::exp(-20.0)), higher = -std::log1p(std::exp(-1.0));
    EXPECT_NEAR(log_softmax(x).to_doubles()[0] / likely, 1.0, 1e-6);
    expect_tensor(log_softmax(x), {2, 2}, {likely, likely - 20, higher - 1, higher}, 2e-7);
    const Tensor labels = Tensor::from<std::int64_t>({2}, {0, 1});
    const Tensor one_hot = tensor_of({2, 2}, {1, 0, 0, 1}, dtype);
    for (const Tensor& loss :
         {sparse_softmax_cross_entropy(labels, x), softmax_cross_entropy(one_hot, x)}) {
      EXPECT_NEAR(loss.to_doubles()[0] / -likely, 1.0, 1e-6);
      expect_tensor(loss, {2}, {-likely, -higher}, 2e-7);
    }
  }
}

TEST(CrossEntropy, WrongLabelIsNamedWithItsRow) {
  const Tensor logits = Tensor::zeros({3, 10});
  EXPECT_INVALID(sparse_softmax_cross_entropy(Tensor::from<std::int64_t>({3}, {0, 10, 11}), logits),
                 " at softmax_test.cc:", "0 .. 9", "got 10", "row 1");
  EXPECT_INVALID(sparse_softmax_cross_entropy_grad(Tensor::from<std::int32_t>({3}, {0, 1, -1}),
                                                   logits, Tensor::ones({3})),
                 "got -1", "row 2");
}

TEST(Softmax, ErrorsNameTheShapesAndTheLine) {
  const Tensor logits = Tensor::zeros({3, 10}), labels = Tensor::zeros({3}, DType::kInt64);
  EXPECT_INVALID(softmax(Tensor(1.0f)), "softmax at softmax_test.cc:", "[]");
  EXPECT_INVALID(sparse_softmax_cross_entropy(Tensor::zeros({3, 1}, DType::kInt64), logits),
                 "[3, 1]", "[3, 10]", "squeeze");
  EXPECT_INVALID(sparse_softmax_cross_entropy(Tensor::zeros({3}), logits), "int32 or int64",
                 "float32");
  EXPECT_INVALID(sparse_softmax_cross_entropy_grad(labels, logits, Tensor::zeros({2})), "[3]",
                 "[2]");
  EXPECT_INVALID(softmax_cross_entropy(Tensor::zeros({3, 9}), logits), "[3, 9]", "[3, 10]");
  EXPECT_INVALID(sigmoid_cross_entropy(Tensor::zeros({10}), logits), "[10]", "[3, 10]");
  EXPECT_INVALID(softmax_grad(logits, Tensor::zeros({3, 9})), "[3, 9]", "[3, 10]");
  EXPECT_INVALID(log_softmax_grad(logits, Tensor::zeros({3, 10}, DType::kFloat64)), "float64");
  EXPECT_INVALID(sparse_softmax_cross_entropy(labels, Tensor::zeros({3, 0})), "class", "[3, 0]");
  EXPECT_INVALID(softmax_cross_entropy(Tensor::zeros({3, 0}), Tensor::zeros({3, 0})), "class",
                 "[3, 0]");
}

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
                 " at softmax_test.cc:", "[3]", "[2, 4, 4, 3]", "[4]");
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
                 " at softmax_test.cc:", "depth_radius", "-1");
  EXPECT_INVALID(local_response_normalization_grad(empty, Tensor::zeros({0, 2, 3}), {}),
                 "[0, 2, 2, 3]", "[0, 2, 3]");
}

// Groups 1, 3 and 5, 11 have means 2 and 8, and deviations 1 and 3.
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

TEST(GroupNorm, ErrorsNameOperationShapesAndLine) {
  const Tensor x = Tensor::zeros({2, 3, 6}), six = Tensor::ones({6}), five = Tensor::ones({5});
  EXPECT_INVALID(layer_norm(x, six, five), "layer_norm at softmax_test.cc:", "[6]", "[2, 3, 6]",
                 "[5]");
  EXPECT_INVALID(layer_norm(x, six, six, {4, 1e-3}), "layer_norm", "num_axes of 1 .. 3", "got 4");
  EXPECT_INVALID(group_norm(x, six, six, {4, 1e-3}), "group_norm at softmax_test.cc:", "6 channels",
                 "got 4");
  EXPECT_INVALID(group_norm(x, five, six, {2, 1e-3}), "group_norm", "[6]", "[2, 3, 6]", "[5]");
  EXPECT_INVALID(group_norm(Tensor::zeros({2, 6}, DType::kInt32), six, six), "group_norm",
                 "floating type", "int32");
  EXPECT_INVALID(group_norm_grad(x, six, Tensor::ones({2, 2}), Tensor::ones({2, 2}),
                                 Tensor::ones({2, 6}), {3, 2, 1e-3}),
                 "group_norm_grad", "[2, 3, 6]", "[2, 6]");
}

}  // namespace tutti::softmax_test

// Batch and local response normalisation: against plain loops.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/normalization.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"

namespace tutti {
namespace normalization_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::random_values;
using testing::tensor_of;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
constexpr double kEpsilon = 1e-3;

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-5 : 1e-11; }

struct Moments {
  std::vector<double> mean, variance;
};

Moments moments(const std::vector<double>& x, std::size_t channels) {
  Moments result{std::vector<double>(channels), std::vector<double>(channels)};
  const double rows = static_cast<double>(x.size() / channels);
  for (std::size_t i = 0; i < x.size(); ++i) result.mean[i % channels] += x[i] / rows;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double deviation = x[i] - result.mean[i % channels];
    result.variance[i % channels] += deviation * deviation / rows;
  }
  return result;
}

std::vector<double> normalized(const std::vector<double>& x, const Moments& m,
                               const std::vector<double>& gamma, const std::vector<double>& beta) {
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % gamma.size();
    y.push_back(gamma[c] * (x[i] - m.mean[c]) / std::sqrt(m.variance[c] + kEpsilon) + beta[c]);
  }
  return y;
}

TEST(BatchNorm, AgreesWithPlainLoops) {
  for (const Shape& shape : {Shape{5, 1}, Shape{8, 3}, Shape{4, 5, 6, 16}, Shape{3, 7, 5, 17}}) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(concat(shape, " ", dtype));
      const std::int64_t channels = shape.dim(-1);
      const Tensor x = random_values(shape, dtype, -2, 3, 1);
      const Tensor gamma = random_values({channels}, dtype, 0.5, 2, 2);
      const Tensor beta = random_values({channels}, dtype, -1, 1, 3);
      const Moments m = moments(x.to_doubles(), static_cast<std::size_t>(channels));
      const BatchNormResult result = batch_norm_training(x, gamma, beta, kEpsilon);
      const auto y = normalized(x.to_doubles(), m, gamma.to_doubles(), beta.to_doubles());
      expect_tensor(result.y, shape, y, tolerance(dtype));
      expect_tensor(result.mean, {channels}, m.mean, tolerance(dtype));
      expect_tensor(result.variance, {channels}, m.variance, tolerance(dtype));
      expect_tensor(batch_norm_inference(x, gamma, beta, tensor_of({channels}, m.mean, dtype),
                                         tensor_of({channels}, m.variance, dtype), kEpsilon),
                    shape, y, tolerance(dtype));
    }
  }
}

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
  for (DType dtype : kTypes) {
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
  expect_error(ErrorCode::kInvalidArgument,
               {" at normalization_test.cc:", "[3]", "[2, 4, 4, 3]", "[4]"},
               [&] { batch_norm_training(x, gamma, Tensor::ones({4}), kEpsilon); });
  expect_error(ErrorCode::kInvalidArgument, {"float64"}, [&] {
    batch_norm_inference(x, gamma, gamma, gamma, Tensor::ones({3}, DType::kFloat64), kEpsilon);
  });
  expect_error(ErrorCode::kInvalidArgument, {"[3]"},
               [&] { batch_norm_training(gamma, gamma, gamma, kEpsilon); });
  expect_error(ErrorCode::kInvalidArgument, {"[2, 4, 4, 3]", "[2, 3]"}, [&] {
    batch_norm_grad(x, gamma, gamma, gamma, Tensor::zeros({2, 3}), kEpsilon);
  });
}

std::vector<double> plain_lrn(const std::vector<double>& x, std::int64_t channels,
                              const LrnAttributes& a) {
  std::vector<double> y;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.size()); ++i) {
    const std::int64_t c = i % channels;
    double sum = 0.0;
    for (std::int64_t j = -a.depth_radius; j <= a.depth_radius; ++j) {
      if (c + j < 0 || c + j >= channels) continue;
      sum += x[static_cast<std::size_t>(i + j)] * x[static_cast<std::size_t>(i + j)];
    }
    y.push_back(x[static_cast<std::size_t>(i)] / std::pow(a.bias + a.alpha * sum, a.beta));
  }
  return y;
}

LrnAttributes lrn_attributes(std::int64_t radius, double bias, double alpha, double beta) {
  LrnAttributes attributes;
  attributes.depth_radius = radius;
  attributes.bias = bias;
  attributes.alpha = alpha;
  attributes.beta = beta;
  return attributes;
}

TEST(LocalResponseNormalization, AgreesWithPlainLoops) {
  const LrnAttributes attributes[] = {
      LrnAttributes{}, lrn_attributes(4, 1, 0.001 / 9, 0.75), lrn_attributes(2, 2, 0.1, 1.0),
      lrn_attributes(1, 1.5, 0.5, 0.6), lrn_attributes(0, 1, 1, 0.5)};
  for (const LrnAttributes& a : attributes) {
    for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{2, 2, 1, 3}, Shape{1, 2, 2, 17}}) {
      for (DType dtype : kTypes) {
        SCOPED_TRACE(concat(shape, " ", dtype, " radius ", a.depth_radius, " beta ", a.beta));
        const Tensor x = random_values(shape, dtype, -2, 2, 1);
        expect_tensor(local_response_normalization(x, a), shape,
                      plain_lrn(x.to_doubles(), shape.dim(-1), a),
                      dtype == DType::kFloat32 ? 1e-6 : 1e-13);
      }
    }
  }
}

TEST(LocalResponseNormalization, HandlesNoRowsAndRefusesWrongArguments) {
  const Tensor empty = Tensor::zeros({0, 2, 2, 3});
  expect_tensor(local_response_normalization(empty), empty.shape(), {});
  expect_tensor(local_response_normalization_grad(empty, empty, {}), empty.shape(), {});
  expect_error(ErrorCode::kInvalidArgument, {" at normalization_test.cc:", "depth_radius", "-1"},
               [&] { local_response_normalization(empty, lrn_attributes(-1, 1, 1, 0.5)); });
  expect_error(ErrorCode::kInvalidArgument, {"[0, 2, 2, 3]", "[0, 2, 3]"}, [&] {
    local_response_normalization_grad(empty, Tensor::zeros({0, 2, 3}), {});
  });
}

}  // namespace normalization_test
}  // namespace tutti

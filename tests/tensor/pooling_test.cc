// Pooling and its gradients: against plain loops, with ties, NaN and padding.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/convolution_ops.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace pooling_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::random_values;
using testing::tensor_of;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
constexpr Padding kSame = Padding::kSame, kValid = Padding::kValid;

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 1e-6 : 1e-14; }

struct Case {
  Shape x;
  std::int64_t kh, kw, sh, sw;
  Padding padding;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {{1, 2, 2, 1}, 2, 2, 2, 2, kValid},   {{2, 4, 6, 3}, 2, 2, 2, 2, kValid},
      {{2, 5, 7, 16}, 2, 2, 2, 2, kValid},  {{2, 5, 7, 17}, 3, 3, 2, 2, kSame},
      {{1, 7, 5, 1}, 3, 2, 1, 2, kSame},    {{2, 6, 6, 17}, 3, 3, 1, 1, kValid},
      {{3, 4, 4, 3}, 1, 1, 1, 1, kValid},   {{1, 9, 9, 16}, 2, 2, 3, 3, kValid},
      {{2, 3, 3, 5}, 3, 3, 1, 1, kSame},    {{1, 8, 8, 33}, 4, 4, 4, 4, kValid},
      {{2, 24, 24, 64}, 3, 3, 2, 2, kSame}, {{1, 2, 3, 2}, 5, 5, 1, 1, kSame}};
  return list;
}

struct Axis {
  std::int64_t output, before, after;
};

Axis axis(std::int64_t input, std::int64_t window, std::int64_t stride, Padding padding) {
  if (padding == kValid) return {(input - window + stride) / stride, 0, 0};
  const std::int64_t output = (input + stride - 1) / stride;
  const std::int64_t total = std::max<std::int64_t>((output - 1) * stride + window - input, 0);
  return {output, total / 2, total - total / 2};
}

Axis rows_of(const Case& c) { return axis(c.x[1], c.kh, c.sh, c.padding); }
Axis columns_of(const Case& c) { return axis(c.x[2], c.kw, c.sw, c.padding); }
Shape output_shape(const Case& c) {
  return {c.x[0], rows_of(c).output, columns_of(c).output, c.x[3]};
}

Pool2dOptions options_of(const Case& c) {
  Pool2dOptions options;
  options.window_h = c.kh;
  options.window_w = c.kw;
  options.stride_h = c.sh;
  options.stride_w = c.sw;
  options.padding = c.padding;
  return options;
}

/// The indices in x that window y_index sees, top left first.
std::vector<std::size_t> window_of(const Case& c, std::int64_t y_index) {
  const Shape y = output_shape(c);
  const std::int64_t channel = y_index % y[3], column = y_index / y[3] % y[2];
  const std::int64_t row = y_index / y[3] / y[2] % y[1], n = y_index / y[3] / y[2] / y[1];
  std::vector<std::size_t> indices;
  for (std::int64_t i = 0; i < c.kh * c.kw; ++i) {
    const std::int64_t h = row * c.sh + i / c.kw - rows_of(c).before;
    const std::int64_t w = column * c.sw + i % c.kw - columns_of(c).before;
    if (h < 0 || h >= c.x[1] || w < 0 || w >= c.x[2]) continue;
    indices.push_back(static_cast<std::size_t>(((n * c.x[1] + h) * c.x[2] + w) * c.x[3] + channel));
  }
  return indices;
}

std::string name(const Case& c, DType dtype) {
  return concat(c.x, " window ", c.kh, " ", c.kw, " strides ", c.sh, " ", c.sw,
                c.padding == kSame ? " SAME " : " VALID ", dtype);
}

TEST(MaxPool, AgreesWithPlainLoops) {
  for (const Case& c : cases()) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(name(c, dtype));
      const Tensor x = random_values(c.x, dtype, -9, -1);  // padding of 0 would win
      const auto values = x.to_doubles();
      std::vector<double> expected;
      for (std::int64_t i = 0; i < output_shape(c).num_elements(); ++i) {
        double best = -100.0;
        for (std::size_t p : window_of(c, i)) best = std::max(best, values[p]);
        expected.push_back(best);
      }
      expect_tensor(max_pool2d(x, options_of(c)), output_shape(c), expected);
    }
  }
}

TEST(MaxPool, GradientGoesToTheFirstOfEqualElements) {
  const Tensor x = Tensor::from<float>({1, 2, 4, 1}, {3, 3, 1, 2, 3, 0, 2, 2});
  const Tensor dy = Tensor::from<float>({1, 1, 2, 1}, {5, 7});
  expect_tensor(max_pool2d_grad(x, dy, Pool2dAttributes{}), {1, 2, 4, 1}, {5, 0, 0, 7, 0, 0, 0, 0});
}

TEST(AveragePool, AgreesWithPlainLoops) {
  for (const Case& c : cases()) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(name(c, dtype));
      const Tensor x = random_values(c.x, dtype, -1, 1);
      const auto values = x.to_doubles();
      std::vector<double> expected;
      for (std::int64_t i = 0; i < output_shape(c).num_elements(); ++i) {
        const auto window = window_of(c, i);
        double sum = 0.0;
        for (std::size_t p : window) sum += values[p];
        expected.push_back(sum / static_cast<double>(window.size()));
      }
      expect_tensor(average_pool2d(x, options_of(c)), output_shape(c), expected, tolerance(dtype));
    }
  }
}

TEST(Pooling, GivesTheValuesOfKerasDocumentation) {
  const Tensor x = Tensor::from<float>({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  Pool2dOptions options;
  options.stride_h = options.stride_w = 1;
  expect_tensor(max_pool2d(x, options), {1, 2, 2, 1}, {5, 6, 8, 9});
  expect_tensor(average_pool2d(x, options), {1, 2, 2, 1}, {3, 4, 6, 7});
  options.padding = kSame;
  expect_tensor(max_pool2d(x, options), {1, 3, 3, 1}, {5, 6, 6, 8, 9, 9, 8, 9, 9});
  expect_tensor(average_pool2d(x, options), {1, 3, 3, 1}, {3, 4, 4.5, 6, 7, 7.5, 7.5, 8.5, 9});
}

TEST(MaxPool, NanWinsAndTakesTheGradient) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : kTypes) {
    // Channels: NaN first, NaN last, NaN twice, infinity beside NaN, minus infinity alone.
    const double inf = std::numeric_limits<double>::infinity();
    const Tensor x = tensor_of({1, 2, 2, 5}, {nan, 1, 2,   inf, -inf, 1, 2,   nan, nan, -inf,  //
                                              2,   3, nan, 1,   -inf, 3, nan, 5,   2,   -inf},
                               dtype);
    expect_tensor(max_pool2d(x), {1, 1, 1, 5}, {nan, nan, nan, nan, -inf});
    const Tensor dy = tensor_of({1, 1, 1, 5}, {1, 2, 3, 4, 5}, dtype);
    expect_tensor(max_pool2d_grad(x, dy, {}), x.shape(),
                  {1, 0, 0, 0, 5, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0});
  }
}

TEST(GlobalPooling, ReducesTheImageToOneValuePerChannel) {
  const Tensor x = Tensor::from<float>({1, 2, 2, 2}, {1, 8, 2, 7, 3, 6, 6, 3});
  expect_tensor(global_average_pool2d(x), {1, 2}, {3, 6});
  expect_tensor(global_max_pool2d(x), {1, 2}, {6, 8});
  EXPECT_EQ(global_average_pool2d(Tensor::zeros({0, 2, 2, 3})).shape(), (Shape{0, 3}));
  expect_error(ErrorCode::kInvalidArgument, {"[2, 2]"}, [] {
    global_max_pool2d(Tensor::zeros({2, 2}));
  });
}

TEST(Pooling, BatchOfNoRowsGivesNoRows) {
  for (DType dtype : kTypes) {
    const Tensor x = Tensor::zeros({0, 4, 4, 3}, dtype), dy = Tensor::zeros({0, 2, 2, 3}, dtype);
    expect_tensor(max_pool2d(x), {0, 2, 2, 3}, {});
    expect_tensor(average_pool2d(x), {0, 2, 2, 3}, {});
    expect_tensor(max_pool2d_grad(x, dy, {}), {0, 4, 4, 3}, {});
    expect_tensor(average_pool2d_grad(dy, x.shape(), {}), {0, 4, 4, 3}, {});
  }
}

TEST(Pooling, ErrorsNameTheShapesAndTheLine) {
  const Tensor x = Tensor::zeros({1, 4, 4, 3});
  expect_error(ErrorCode::kInvalidArgument, {"max_pool", " at pooling_test.cc:", "[4, 4]"}, [] {
    max_pool2d(Tensor::zeros({4, 4}));
  });
  expect_error(ErrorCode::kInvalidArgument, {"float", "int32"}, [] {
    average_pool2d(Tensor::zeros({1, 4, 4, 3}, DType::kInt32));
  });
  expect_error(ErrorCode::kInvalidArgument, {"window", "0 x 2"}, [&] {
    Pool2dOptions options;
    options.window_h = 0;
    max_pool2d(x, options);
  });
  expect_error(ErrorCode::kInvalidArgument, {"at most 4", "window of 9"}, [&] {
    Pool2dOptions options;
    options.window_w = 9;
    max_pool2d(x, options);
  });
  expect_error(ErrorCode::kInvalidArgument, {"[1, 4, 4, 3]", "[1, 3, 2, 3]"}, [&] {
    max_pool2d_grad(x, Tensor::zeros({1, 3, 2, 3}), {});
  });
  expect_error(ErrorCode::kInvalidArgument, {"[1, 4, 4, 3]", "[2, 2, 2, 3]"}, [&] {
    average_pool2d_grad(Tensor::zeros({2, 2, 2, 3}), x.shape(), {});
  });
}

}  // namespace pooling_test
}  // namespace tutti

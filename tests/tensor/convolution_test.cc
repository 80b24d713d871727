// Convolution and its gradients: against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/convolution_ops.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"

namespace tutti {
namespace convolution_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::random_values;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 3e-5 : 1e-12; }

struct Case {
  std::int64_t n, h, w, in, kh, kw, out, sh, sw;
  Padding padding;
};

constexpr Padding kSame = Padding::kSame, kValid = Padding::kValid;
constexpr Case kCases[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, kValid},    {2, 5, 7, 3, 3, 3, 16, 1, 1, kValid},
    {2, 5, 7, 3, 3, 3, 16, 1, 1, kSame},    {3, 9, 8, 1, 3, 2, 17, 1, 1, kSame},
    {2, 9, 9, 16, 5, 5, 3, 2, 2, kSame},    {2, 10, 9, 17, 3, 3, 17, 2, 1, kSame},
    {2, 11, 7, 16, 3, 5, 16, 2, 3, kValid}, {4, 6, 6, 17, 1, 1, 16, 1, 1, kValid},
    {2, 7, 7, 16, 1, 1, 8, 2, 2, kSame},    {1, 4, 4, 3, 4, 4, 5, 1, 1, kValid},
    {1, 3, 3, 2, 5, 5, 4, 1, 1, kSame},     {2, 13, 13, 32, 3, 3, 64, 1, 1, kValid},
    {2, 8, 8, 3, 2, 2, 8, 3, 3, kSame}};

struct Axis {
  std::int64_t output, before, after;
};

/// Output and padding as tf.nn.convolution's documentation defines them.
Axis axis(std::int64_t input, std::int64_t kernel, std::int64_t stride, Padding padding) {
  if (padding == kValid) return {(input - kernel + 1 + stride - 1) / stride, 0, 0};
  std::int64_t total = kernel - (input % stride == 0 ? stride : input % stride);
  if (total < 0) total = 0;
  return {(input + stride - 1) / stride, total / 2, total - total / 2};
}

Conv2dOptions options_of(const Case& c) {
  Conv2dOptions options;
  options.stride_h = c.sh;
  options.stride_w = c.sw;
  options.padding = c.padding;
  return options;
}

Conv2dAttributes attributes_of(const Case& c) {
  const Axis h = axis(c.h, c.kh, c.sh, c.padding), w = axis(c.w, c.kw, c.sw, c.padding);
  Conv2dAttributes attributes;
  attributes.stride_h = c.sh;
  attributes.stride_w = c.sw;
  attributes.pad_top = h.before;
  attributes.pad_bottom = h.after;
  attributes.pad_left = w.before;
  attributes.pad_right = w.after;
  return attributes;
}

Shape input_shape(const Case& c) { return {c.n, c.h, c.w, c.in}; }
Shape filter_shape(const Case& c) { return {c.kh, c.kw, c.in, c.out}; }
Shape output_shape(const Case& c) {
  return {c.n, axis(c.h, c.kh, c.sh, c.padding).output, axis(c.w, c.kw, c.sw, c.padding).output,
          c.out};
}

/// Calls body(x index, filter index, y index) for every product of the definition.
template <class Body>
void for_each_product(const Case& c, const Body& body) {
  const Shape y = output_shape(c);
  const std::int64_t top = axis(c.h, c.kh, c.sh, c.padding).before;
  const std::int64_t left = axis(c.w, c.kw, c.sw, c.padding).before;
  for (std::int64_t y_index = 0; y_index < y.num_elements(); ++y_index) {
    const std::int64_t o = y_index % c.out, column = y_index / c.out % y[2];
    const std::int64_t row = y_index / c.out / y[2] % y[1], n = y_index / c.out / y[2] / y[1];
    for (std::int64_t f = 0; f < c.kh * c.kw * c.in; ++f) {
      const std::int64_t i = f % c.in, h = row * c.sh + f / c.in / c.kw - top;
      const std::int64_t w = column * c.sw + f / c.in % c.kw - left;
      if (h < 0 || h >= c.h || w < 0 || w >= c.w) continue;
      body(static_cast<std::size_t>(((n * c.h + h) * c.w + w) * c.in + i),
           static_cast<std::size_t>(f * c.out + o), static_cast<std::size_t>(y_index));
    }
  }
}

std::vector<double> zeros(const Shape& shape) {
  return std::vector<double>(static_cast<std::size_t>(shape.num_elements()));
}

std::string name(const Case& c, DType dtype) {
  return concat(input_shape(c), " with ", filter_shape(c), ", strides ", c.sh, " ", c.sw,
                c.padding == kSame ? " SAME " : " VALID ", dtype);
}

TEST(Conv2d, AgreesWithPlainLoops) {
  for (const Case& c : kCases) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(name(c, dtype));
      const Tensor x = random_values(input_shape(c), dtype, -1, 1, 1);
      const Tensor filter = random_values(filter_shape(c), dtype, -1, 1, 2);
      const Tensor bias = random_values({c.out}, dtype, -1, 1, 3);
      const auto xs = x.to_doubles(), fs = filter.to_doubles(), bs = bias.to_doubles();
      auto expected = zeros(output_shape(c));
      for_each_product(c, [&](std::size_t px, std::size_t pf, std::size_t py) {
        expected[py] += xs[px] * fs[pf];
      });
      expect_tensor(conv2d(x, filter, options_of(c)), output_shape(c), expected, tolerance(dtype));
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bs[i % bs.size()];
      expect_tensor(conv2d(x, filter, bias, options_of(c)), output_shape(c), expected,
                    tolerance(dtype));
    }
  }
}

TEST(Conv2d, GradientsAgreeWithPlainLoops) {
  for (const Case& c : kCases) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(name(c, dtype));
      const Tensor x = random_values(input_shape(c), dtype, -1, 1, 1);
      const Tensor filter = random_values(filter_shape(c), dtype, -1, 1, 2);
      const Tensor dy = random_values(output_shape(c), dtype, -1, 1, 3);
      const auto xs = x.to_doubles(), fs = filter.to_doubles(), ds = dy.to_doubles();
      auto dx = zeros(input_shape(c)), df = zeros(filter_shape(c));
      for_each_product(c, [&](std::size_t px, std::size_t pf, std::size_t py) {
        dx[px] += ds[py] * fs[pf];
        df[pf] += ds[py] * xs[px];
      });
      expect_tensor(conv2d_backward_input(dy, filter, input_shape(c), attributes_of(c)),
                    input_shape(c), dx, tolerance(dtype));
      expect_tensor(conv2d_backward_filter(x, dy, filter_shape(c), attributes_of(c)),
                    filter_shape(c), df, tolerance(dtype));
    }
  }
}

// Convolution is linear in both arguments: dy . conv(x, f) = x . dx = f . df.
TEST(Conv2d, GradientsAreTheAdjointMaps) {
  const auto dot = [](const Tensor& a, const Tensor& b) {
    const auto as = a.to_doubles(), bs = b.to_doubles();
    return std::inner_product(as.begin(), as.end(), bs.begin(), 0.0);
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(name(c, DType::kFloat64));
    const Tensor x = random_values(input_shape(c), DType::kFloat64, -1, 1, 1);
    const Tensor filter = random_values(filter_shape(c), DType::kFloat64, -1, 1, 2);
    const Tensor dy = random_values(output_shape(c), DType::kFloat64, -1, 1, 3);
    const double value = dot(dy, conv2d(x, filter, options_of(c)));
    const Tensor dx = conv2d_backward_input(dy, filter, x.shape(), attributes_of(c));
    const Tensor df = conv2d_backward_filter(x, dy, filter.shape(), attributes_of(c));
    EXPECT_NEAR(dot(x, dx), value, 1e-10 * std::max(1.0, std::abs(value)));
    EXPECT_NEAR(dot(filter, df), value, 1e-10 * std::max(1.0, std::abs(value)));
  }
}

TEST(Conv2d, SamePutsTheOddPaddingBottomAndRight) {
  for (DType dtype : kTypes) {
    const Tensor x = testing::tensor_of({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, dtype);
    const Tensor filter = Tensor::ones({2, 2, 1, 1}, dtype);
    Conv2dOptions options;
    expect_tensor(conv2d(x, filter, options), {1, 2, 2, 1}, {12, 16, 24, 28});
    options.padding = kSame;
    expect_tensor(conv2d(x, filter, options), {1, 3, 3, 1}, {12, 16, 9, 24, 28, 15, 15, 17, 9});
    options.stride_h = options.stride_w = 2;
    expect_tensor(conv2d(x, filter, options), {1, 2, 2, 1}, {12, 9, 15, 9});
  }
}

TEST(Conv2d, ActivationsAreThoseOfTheResult) {
  const Case c{2, 6, 5, 3, 3, 3, 9, 1, 1, kSame};
  for (DType dtype : kTypes) {
    const Tensor x = random_values(input_shape(c), dtype, -1, 1, 1);
    const Tensor filter = random_values(filter_shape(c), dtype, -1, 1, 2);
    const Tensor bias = random_values({c.out}, dtype, -1, 1, 3);
    const std::vector<double> plain = conv2d(x, filter, bias, options_of(c)).to_doubles();
    const auto check = [&](FusedActivation activation, double (*function)(double)) {
      std::vector<double> expected;
      for (double value : plain) expected.push_back(function(value));
      Conv2dOptions options = options_of(c);
      options.activation = activation;
      expect_tensor(conv2d(x, filter, bias, options), output_shape(c), expected, tolerance(dtype));
    };
    check(FusedActivation::kRelu, [](double v) { return v > 0 ? v : 0; });
    check(FusedActivation::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); });
    check(FusedActivation::kTanh, [](double v) { return std::tanh(v); });
  }
}

TEST(Conv2d, NanStaysNanThroughActivations) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (FusedActivation activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                     FusedActivation::kSigmoid, FusedActivation::kTanh}) {
    Conv2dOptions options;
    options.activation = activation;
    const Tensor y = conv2d(Tensor::full({1, 4, 4, 3}, nan), Tensor::ones({3, 3, 3, 8}),
                            Tensor::zeros({8}), options);
    for (double value : y.to_doubles()) {
      EXPECT_TRUE(std::isnan(value)) << static_cast<int>(activation) << " gave " << value;
    }
  }
}

TEST(Conv2d, BatchOfNoRowsHasZeroGradients) {
  for (DType dtype : kTypes) {
    const Case c{0, 6, 6, 3, 3, 3, 4, 1, 1, kSame};
    const Tensor x = Tensor::zeros(input_shape(c), dtype);
    const Tensor filter = Tensor::ones(filter_shape(c), dtype);
    const Tensor dy = Tensor::zeros(output_shape(c), dtype);
    expect_tensor(conv2d(x, filter, options_of(c)), {0, 6, 6, 4}, {});
    expect_tensor(conv2d_backward_input(dy, filter, x.shape(), attributes_of(c)), {0, 6, 6, 3}, {});
    expect_tensor(conv2d_backward_filter(x, dy, filter.shape(), attributes_of(c)), filter.shape(),
                  zeros(filter.shape()));
    expect_tensor(bias_grad(dy), {4}, {0, 0, 0, 0});
  }
}

TEST(Conv2d, WindowLargerThanTheImage) {
  const Tensor filter = Tensor::ones({3, 3, 1, 2});
  EXPECT_EQ(conv2d(Tensor::ones({1, 2, 5, 1}), filter).shape(), (Shape{1, 0, 3, 2}));
  expect_error(ErrorCode::kInvalidArgument,
               {"conv2d at convolution_test.cc:", "window", "at most 1", "got a window of 3"}, [&] {
                 conv2d(Tensor::ones({1, 1, 5, 1}), filter);
               });
}

TEST(Conv2d, ErrorsNameBothShapesAndTheLine) {
  const Tensor x = Tensor::zeros({8, 32, 32, 1}), filter = Tensor::zeros({5, 5, 3, 64});
  const std::string expected =
      concat("conv2d at convolution_test.cc:", __LINE__ + 4,
             ": input channels do not fit the filter; expected [batch, height, width, 3] for "
             "filter [5, 5, 3, 64], got [8, 32, 32, 1]");
  try {
    conv2d(x, filter);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), expected);
  }
  const Tensor fitting = Tensor::zeros({5, 5, 1, 4});
  expect_error(ErrorCode::kInvalidArgument, {"[height, width, in, out]", "[5, 5]"}, [&] {
    conv2d(x, Tensor::zeros({5, 5}));
  });
  expect_error(ErrorCode::kInvalidArgument, {"[batch, height, width, channels]", "[32, 32, 1]"},
               [&] {
                 conv2d(Tensor::zeros({32, 32, 1}), fitting);
               });
  expect_error(ErrorCode::kInvalidArgument, {"bias", "[4]", "[5]"},
               [&] { conv2d(x, fitting, Tensor::zeros({5})); });
  expect_error(ErrorCode::kInvalidArgument, {"float32", "float64"}, [&] {
    conv2d(x, Tensor::zeros({5, 5, 1, 4}, DType::kFloat64));
  });
  expect_error(ErrorCode::kInvalidArgument, {"strides", "0"}, [&] {
    Conv2dOptions options;
    options.stride_w = 0;
    conv2d(x, fitting, options);
  });
  expect_error(ErrorCode::kFailedPrecondition, {"undefined"}, [&] { conv2d(x, Tensor()); });
  expect_error(ErrorCode::kInvalidArgument, {"conv2d_backward_filter", "[8, 3, 3, 4]"}, [&] {
    conv2d_backward_filter(x, Tensor::zeros({8, 3, 3, 4}), fitting.shape(), {});
  });
  expect_error(ErrorCode::kInvalidArgument, {"conv2d_backward_input", "[8, 28, 28, 5]"}, [&] {
    conv2d_backward_input(Tensor::zeros({8, 28, 28, 5}), fitting, x.shape(), {});
  });
}

TEST(BiasGrad, SumsOverEverythingButTheChannels) {
  for (DType dtype : kTypes) {
    for (const Shape& shape : {Shape{3}, Shape{70, 17}, Shape{5, 13, 9, 3}, Shape{300, 1}}) {
      const Tensor dy = random_values(shape, dtype, -1, 1);
      std::vector<double> expected(static_cast<std::size_t>(shape.dim(-1)));
      const auto values = dy.to_doubles();
      for (std::size_t i = 0; i < values.size(); ++i) expected[i % expected.size()] += values[i];
      expect_tensor(bias_grad(dy), {shape.dim(-1)}, expected, tolerance(dtype));
    }
  }
  expect_error(ErrorCode::kInvalidArgument, {"[]"}, [] { bias_grad(Tensor(1.0f)); });
}

// Half a million additions of 0.1: a running float sum would be wrong in the third digit.
TEST(BiasGrad, LongSumsStayAccurate) {
  const Tensor sum = bias_grad(Tensor::full({500000, 2}, 0.1));
  EXPECT_NEAR(sum.to_doubles()[0], 500000 * static_cast<double>(0.1f), 0.05);
}

}  // namespace convolution_test
}  // namespace tutti

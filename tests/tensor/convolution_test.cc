// Convolution, dilated and in groups too: against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/convolution_ops.h"

#include <gtest/gtest.h>

#include <limits>

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
  std::int64_t n, h, w, in, kh, kw, out, stride_h, stride_w;
  Padding padding;
  std::int64_t dilation_h = 1, dilation_w = 1, groups = 1;
};

constexpr Padding kSame = Padding::kSame, kValid = Padding::kValid;
constexpr Case kCases[] = {{1, 1, 1, 1, 1, 1, 1, 1, 1, kValid},
                           {2, 5, 7, 3, 3, 3, 16, 1, 1, kValid},
                           {2, 5, 7, 3, 3, 3, 16, 1, 1, kSame},
                           {3, 9, 8, 1, 3, 2, 17, 1, 1, kSame},
                           {2, 9, 9, 16, 5, 5, 3, 2, 2, kSame},
                           {2, 10, 9, 17, 3, 3, 17, 2, 1, kSame},
                           {2, 11, 7, 16, 3, 5, 16, 2, 3, kValid},
                           {4, 6, 6, 17, 1, 1, 16, 1, 1, kValid},
                           {2, 7, 7, 16, 1, 1, 8, 2, 2, kSame},
                           {1, 4, 4, 3, 4, 4, 5, 1, 1, kValid},
                           {1, 3, 3, 2, 5, 5, 4, 1, 1, kSame},
                           {1, 6, 6, 32, 3, 3, 64, 1, 1, kValid},
                           {2, 8, 8, 3, 2, 2, 8, 3, 3, kSame},
                           {2, 7, 8, 3, 3, 3, 5, 1, 1, kValid, 2, 2},
                           {2, 7, 8, 3, 3, 3, 5, 1, 1, kSame, 2, 2},
                           {1, 9, 9, 16, 3, 2, 16, 1, 1, kSame, 1, 3},
                           {2, 9, 7, 4, 3, 3, 6, 1, 1, kSame, 1, 1, 2},
                           {2, 9, 7, 8, 3, 3, 16, 2, 1, kValid, 1, 1, 4},
                           {2, 9, 7, 8, 3, 3, 8, 1, 1, kSame, 1, 1, 8},
                           {2, 9, 8, 16, 3, 3, 32, 2, 2, kSame, 1, 1, 16},
                           {1, 9, 8, 3, 3, 3, 6, 1, 1, kSame, 2, 2, 3},
                           {2, 6, 6, 1, 3, 3, 4, 1, 1, kSame},
                           {1, 8, 8, 32, 5, 5, 32, 1, 1, kSame, 1, 1, 32}};

/// Positions of the window along an axis, and the zeros before and after the image.
struct Axis {
  std::int64_t output, before, after;
};

Axis axis(std::int64_t input, std::int64_t kernel, std::int64_t stride, std::int64_t dilation,
          Padding padding) {
  const std::int64_t window = kernel + (kernel - 1) * (dilation - 1);
  if (padding == kValid) return {(input - window + 1 + stride - 1) / stride, 0, 0};
  const std::int64_t output = (input + stride - 1) / stride;
  const std::int64_t total = std::max<std::int64_t>(0, (output - 1) * stride + window - input);
  return {output, total / 2, total - total / 2};
}

Axis rows_of(const Case& c) { return axis(c.h, c.kh, c.stride_h, c.dilation_h, c.padding); }
Axis columns_of(const Case& c) { return axis(c.w, c.kw, c.stride_w, c.dilation_w, c.padding); }

Shape input_shape(const Case& c) { return {c.n, c.h, c.w, c.in}; }
Shape filter_shape(const Case& c) { return {c.kh, c.kw, c.in / c.groups, c.out}; }
Shape output_shape(const Case& c) { return {c.n, rows_of(c).output, columns_of(c).output, c.out}; }

Conv2dOptions options_of(const Case& c) {
  Conv2dOptions options;
  options.stride_h = c.stride_h;
  options.stride_w = c.stride_w;
  options.dilation_h = c.dilation_h;
  options.dilation_w = c.dilation_w;
  options.groups = c.groups;
  options.padding = c.padding;
  return options;
}

Conv2dAttributes attributes_of(const Case& c) {
  return {c.stride_h,
          c.stride_w,
          rows_of(c).before,
          rows_of(c).after,
          columns_of(c).before,
          columns_of(c).after,
          FusedActivation::kNone,
          c.dilation_h,
          c.dilation_w,
          c.groups};
}

std::size_t at(const Shape& s, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return static_cast<std::size_t>(((a * s[1] + b) * s[2] + c) * s[3] + d);
}

/// Calls body(x index, filter index, y index) for every product of the definition.
template <class Body>
void for_each_product(const Case& c, const Body& body) {
  const Shape x = input_shape(c), f = filter_shape(c), y = output_shape(c);
  for (std::int64_t i = 0; i < y.num_elements(); ++i) {
    const std::int64_t o = i % y[3], column = i / y[3] % y[2], row = i / y[3] / y[2] % y[1];
    const std::int64_t n = i / y[3] / y[2] / y[1];
    const std::int64_t group = o / (c.out / c.groups);
    for (std::int64_t k = 0; k < f[0] * f[1] * f[2]; ++k) {
      const std::int64_t kh = k / f[2] / f[1], kw = k / f[2] % f[1];
      const std::int64_t h = row * c.stride_h + kh * c.dilation_h - rows_of(c).before;
      const std::int64_t w = column * c.stride_w + kw * c.dilation_w - columns_of(c).before;
      if (h < 0 || h >= c.h || w < 0 || w >= c.w) continue;
      body(at(x, n, h, w, group * f[2] + k % f[2]), at(f, kh, kw, k % f[2], o),
           static_cast<std::size_t>(i));
    }
  }
}

std::vector<double> zeros(const Shape& shape) {
  return std::vector<double>(static_cast<std::size_t>(shape.num_elements()));
}

std::string name(const Case& c, DType dtype) {
  return concat(input_shape(c), " with ", filter_shape(c), ", strides ", c.stride_h, " ",
                c.stride_w, c.padding == kSame ? " SAME " : " VALID ", dtype);
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

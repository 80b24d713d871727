// Dilated, grouped, depthwise and transposed convolution: against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/convolution_ops.h"

namespace tutti {
namespace convolution_variants_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::random_values;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
constexpr Padding kSame = Padding::kSame, kValid = Padding::kValid;

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 3e-5 : 1e-12; }

struct Case {
  std::int64_t n, h, w, in, kh, kw, out, stride_h, stride_w, dilation_h, dilation_w, groups;
  Padding padding;
};

constexpr Case kCases[] = {
    {2, 7, 8, 3, 3, 3, 5, 1, 1, 2, 2, 1, kValid},   {2, 7, 8, 3, 3, 3, 5, 1, 1, 2, 2, 1, kSame},
    {1, 9, 9, 16, 3, 2, 16, 1, 1, 1, 3, 1, kSame},  {2, 9, 7, 4, 3, 3, 6, 1, 1, 1, 1, 2, kSame},
    {2, 9, 7, 8, 3, 3, 16, 2, 1, 1, 1, 4, kValid},  {2, 9, 7, 8, 3, 3, 8, 1, 1, 1, 1, 8, kSame},
    {2, 9, 8, 16, 3, 3, 32, 2, 2, 1, 1, 16, kSame}, {1, 9, 8, 3, 3, 3, 6, 1, 1, 2, 2, 3, kSame},
    {2, 6, 6, 1, 3, 3, 4, 1, 1, 1, 1, 1, kSame},    {1, 8, 8, 32, 5, 5, 32, 1, 1, 1, 1, 32, kSame}};

struct Axis {
  std::int64_t output, before;
};
Axis axis(std::int64_t input, std::int64_t kernel, std::int64_t stride, std::int64_t dilation,
          Padding padding) {
  const std::int64_t window = kernel + (kernel - 1) * (dilation - 1);
  if (padding == kValid) return {(input - window + 1 + stride - 1) / stride, 0};
  const std::int64_t output = (input + stride - 1) / stride;
  return {output, std::max<std::int64_t>(0, (output - 1) * stride + window - input) / 2};
}
Axis rows_of(const Case& c) { return axis(c.h, c.kh, c.stride_h, c.dilation_h, c.padding); }
Axis columns_of(const Case& c) { return axis(c.w, c.kw, c.stride_w, c.dilation_w, c.padding); }

Shape image_shape(const Case& c) { return {c.n, c.h, c.w, c.in}; }
Shape filter_shape(const Case& c) { return {c.kh, c.kw, c.in / c.groups, c.out}; }
Shape result_shape(const Case& c) { return {c.n, rows_of(c).output, columns_of(c).output, c.out}; }

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

std::size_t at(const Shape& s, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return static_cast<std::size_t>(((a * s[1] + b) * s[2] + c) * s[3] + d);
}

/// Calls body(x index, filter index, y index) for every product of the definition.
template <class Body>
void for_each_product(const Case& c, const Body& body) {
  const Shape x = image_shape(c), f = filter_shape(c), y = result_shape(c);
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

TEST(Conv2dVariants, AgreeWithPlainLoops) {
  for (const Case& c : kCases) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(concat(image_shape(c), " ", filter_shape(c), " groups ", c.groups, " ", dtype));
      const Tensor x = random_values(image_shape(c), dtype, -1, 1, 1);
      const Tensor filter = random_values(filter_shape(c), dtype, -1, 1, 2);
      const Tensor bias = random_values({c.out}, dtype, -1, 1, 3);
      const auto xs = x.to_doubles(), fs = filter.to_doubles(), bs = bias.to_doubles();
      auto expected = zeros(result_shape(c));
      for_each_product(c, [&](std::size_t px, std::size_t pf, std::size_t py) {
        expected[py] += xs[px] * fs[pf];
      });
      expect_tensor(conv2d(x, filter, options_of(c)), result_shape(c), expected, tolerance(dtype));
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bs[i % bs.size()];
      expect_tensor(conv2d(x, filter, bias, options_of(c)), result_shape(c), expected,
                    tolerance(dtype));
    }
  }
}

Conv2dAttributes attributes_of(const Case& c) {
  const auto after = [](const Axis& a, std::int64_t input, std::int64_t kernel, std::int64_t stride,
                        std::int64_t dilation, Padding padding) {
    const std::int64_t window = kernel + (kernel - 1) * (dilation - 1);
    if (padding == kValid) return std::int64_t{0};
    return std::max<std::int64_t>(0, (a.output - 1) * stride + window - input) - a.before;
  };
  Conv2dAttributes a;
  a.stride_h = c.stride_h;
  a.stride_w = c.stride_w;
  a.dilation_h = c.dilation_h;
  a.dilation_w = c.dilation_w;
  a.groups = c.groups;
  a.pad_top = rows_of(c).before;
  a.pad_left = columns_of(c).before;
  a.pad_bottom = after(rows_of(c), c.h, c.kh, c.stride_h, c.dilation_h, c.padding);
  a.pad_right = after(columns_of(c), c.w, c.kw, c.stride_w, c.dilation_w, c.padding);
  return a;
}

TEST(Conv2dVariants, GradientsAgreeWithPlainLoops) {
  for (const Case& c : kCases) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(concat(image_shape(c), " ", filter_shape(c), " groups ", c.groups, " ", dtype));
      const Tensor x = random_values(image_shape(c), dtype, -1, 1, 1);
      const Tensor filter = random_values(filter_shape(c), dtype, -1, 1, 2);
      const Tensor dy = random_values(result_shape(c), dtype, -1, 1, 3);
      const auto xs = x.to_doubles(), fs = filter.to_doubles(), ds = dy.to_doubles();
      auto dx = zeros(image_shape(c)), df = zeros(filter_shape(c));
      for_each_product(c, [&](std::size_t px, std::size_t pf, std::size_t py) {
        dx[px] += ds[py] * fs[pf];
        df[pf] += ds[py] * xs[px];
      });
      expect_tensor(conv2d_backward_input(dy, filter, image_shape(c), attributes_of(c)),
                    image_shape(c), dx, tolerance(dtype));
      expect_tensor(conv2d_backward_filter(x, dy, filter_shape(c), attributes_of(c)),
                    filter_shape(c), df, tolerance(dtype));
    }
  }
}

TEST(Conv2dVariants, DepthwiseKeepsChannelsApart) {
  for (DType dtype : kTypes) {
    const Tensor x = testing::tensor_of({1, 1, 2, 2}, {1, 10, 2, 20}, dtype);
    // One tap to the left, one here; channel 0 by (1, 2) and (3, 4), channel 1 by (5, 6) and (7,
    // 8).
    const Tensor filter = testing::tensor_of({1, 2, 2, 2}, {1, 3, 5, 7, 2, 4, 6, 8}, dtype);
    expect_tensor(depthwise_conv2d(x, filter), {1, 1, 1, 4}, {5, 11, 170, 230}, 1e-6);
    const Tensor bias = testing::tensor_of({4}, {1, 2, 3, -1000}, dtype);
    Conv2dOptions options;
    options.activation = FusedActivation::kRelu;
    expect_tensor(depthwise_conv2d(x, filter, bias, options), {1, 1, 1, 4}, {6, 13, 173, 0}, 1e-6);
  }
}

struct Transposed {
  std::int64_t input, kernel, stride;
  Padding padding;
  std::int64_t output;
};

TEST(Conv2dTranspose, SizesAreKerass) {
  const Transposed cases[] = {{4, 3, 1, kValid, 6},  {4, 3, 2, kValid, 9}, {4, 3, 2, kSame, 8},
                              {4, 2, 3, kValid, 12}, {4, 5, 3, kSame, 12}, {1, 1, 1, kSame, 1}};
  for (const Transposed& c : cases) {
    Conv2dTransposeOptions options;
    options.stride_h = options.stride_w = c.stride;
    options.padding = c.padding;
    const Tensor y = conv2d_transpose(Tensor::ones({2, c.input, c.input, 3}),
                                      Tensor::ones({c.kernel, c.kernel, 5, 3}), options);
    EXPECT_EQ(y.shape(), (Shape{2, c.output, c.output, 5}));
  }
}

TEST(Conv2dTranspose, SpreadsEachPixelOverTheWindow) {
  for (DType dtype : kTypes) {
    const Tensor x = testing::tensor_of({1, 1, 2, 1}, {1, 10}, dtype);
    const Tensor filter = testing::tensor_of({1, 3, 1, 1}, {1, 2, 3}, dtype);
    Conv2dTransposeOptions options;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 4, 1}, {1, 12, 23, 30}, 1e-6);
    options.stride_w = 2;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 5, 1}, {1, 2, 13, 20, 30}, 1e-6);
    options.padding = kSame;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 4, 1}, {1, 2, 13, 20}, 1e-6);
    options.output_width = 3;
    const Tensor bias = testing::tensor_of({1}, {0.5}, dtype);
    expect_tensor(conv2d_transpose(x, filter, bias, options), {1, 1, 3, 1}, {2.5, 13.5, 20.5},
                  1e-6);
  }
}

TEST(Conv2dVariants, BatchesOfNoRows) {
  Conv2dOptions options;
  options.dilation_h = 2;
  EXPECT_EQ(
      depthwise_conv2d(Tensor::zeros({0, 6, 6, 3}), Tensor::ones({3, 3, 3, 2}), options).shape(),
      (Shape{0, 2, 4, 6}));
  EXPECT_EQ(conv2d_transpose(Tensor::zeros({0, 6, 6, 3}), Tensor::ones({3, 3, 2, 3})).shape(),
            (Shape{0, 8, 8, 2}));
}

TEST(Conv2dVariants, ErrorsNameOperationShapesAndLine) {
  const Tensor x = Tensor::zeros({8, 6, 6, 4});
  const ErrorCode code = ErrorCode::kInvalidArgument;
  expect_error(code, {"depthwise_conv2d at convolution_variants_test.cc:", "dilations"}, [&] {
    depthwise_conv2d(x, Tensor::ones({3, 3, 4, 1}), {.dilation_h = 0});
  });
  expect_error(
      code, {"depthwise_conv2d at convolution_variants_test.cc:", "[3, 3, 5, 1]", "[8, 6, 6, 4]"},
      [&] {
        depthwise_conv2d(x, Tensor::ones({3, 3, 5, 1}));
      });
  expect_error(code,
               {"depthwise_conv2d at convolution_variants_test.cc:",
                "[height, width, in, multiplier]", "[3, 3]"},
               [&] {
                 depthwise_conv2d(x, Tensor::ones({3, 3}));
               });
  expect_error(
      code, {"conv2d_transpose at convolution_variants_test.cc:", "[3, 3, 4, 5]", "[8, 6, 6, 4]"},
      [&] {
        conv2d_transpose(x, Tensor::ones({3, 3, 4, 5}));
      });
  expect_error(code, {"conv2d_transpose at convolution_variants_test.cc:", "brings to 6", "got 9"},
               [&] {
                 Conv2dTransposeOptions options;
                 options.output_height = 9;
                 conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}), options);
               });
  expect_error(code, {"conv2d_transpose", "bias", "[5]", "[4]"}, [&] {
    conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}), Tensor::ones({4}));
  });
  expect_error(code, {"conv2d at convolution_variants_test.cc:", "groups", "[8, 6, 6, 4]", "got 3"},
               [&] {
                 Conv2dOptions options;
                 options.groups = 3;
                 conv2d(x, Tensor::ones({3, 3, 1, 6}), options);
               });
  expect_error(code, {"conv2d at convolution_variants_test.cc:", "in 2 groups", "[8, 6, 6, 4]"},
               [&] {
                 Conv2dOptions options;
                 options.groups = 2;
                 conv2d(x, Tensor::ones({3, 3, 4, 6}), options);
               });
  expect_error(code, {"dilations", "0"}, [&] {
    Conv2dOptions options;
    options.dilation_w = 0;
    conv2d(x, Tensor::ones({3, 3, 4, 6}), options);
  });
  expect_error(code, {"element types differ", "float64"}, [&] {
    conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}, DType::kFloat64));
  });
}

}  // namespace convolution_variants_test
}  // namespace tutti

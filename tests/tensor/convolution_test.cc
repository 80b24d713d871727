// Tests convolution and pooling: values computed by hand, padding, batches without rows, errors.
// For more shapes and gradients, see the table of operations, which compares kernels with the
// reference kernels, and those in float32 with float64. The records of Keras (tests/parity) have
// values and gradients of a few layers in float64.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/convolution_ops.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::convolution_test {

using testing::expect_tensor;
using testing::random_values;
using testing::tensor_of;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
constexpr Padding kSame = Padding::kSame, kValid = Padding::kValid;

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 3e-5 : 1e-12; }

TEST(Conv2d, ReadsPixelsOfStridesDilationsAndGroups) {
  for (DType dtype : kTypes) {
    const Tensor row = tensor_of({1, 1, 5, 1}, {1, 2, 3, 4, 5}, dtype);
    const Tensor two = tensor_of({1, 2, 1, 1}, {1, 10}, dtype);
    expect_tensor(conv2d(row, two, {.stride_w = 3}), {1, 1, 2, 1}, {21, 54});
    expect_tensor(conv2d(row, two, {.dilation_w = 2}), {1, 1, 3, 1}, {31, 42, 53});
    expect_tensor(conv2d(row, two, {.padding = kSame, .dilation_w = 2}), {1, 1, 5, 1},
                  {20, 31, 42, 53, 4});
    const Tensor column = row.detached_reshape({1, 5, 1, 1}),
                 high = two.detached_reshape({2, 1, 1, 1});
    expect_tensor(conv2d(column, high, {.stride_h = 3}), {1, 2, 1, 1}, {21, 54});
    expect_tensor(conv2d(column, high, {.dilation_h = 2}), {1, 3, 1, 1}, {31, 42, 53});
    const Tensor channels = tensor_of({1, 1, 1, 4}, {1, 2, 3, 4}, dtype);
    const Tensor filter = tensor_of({1, 1, 2, 4}, {1, 2, 3, 4, 10, 20, 30, 40}, dtype);
    expect_tensor(conv2d(channels, filter, {.groups = 2}), {1, 1, 1, 4}, {21, 42, 129, 172});
  }
}

TEST(Conv2d, SamePutsTheOddPaddingBottomAndRight) {
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, dtype);
    const Tensor filter = Tensor::ones({2, 2, 1, 1}, dtype);
    Conv2dOptions options;
    expect_tensor(conv2d(x, filter, options), {1, 2, 2, 1}, {12, 16, 24, 28});
    options.padding = kSame;
    expect_tensor(conv2d(x, filter, options), {1, 3, 3, 1}, {12, 16, 9, 24, 28, 15, 15, 17, 9});
    options.stride_h = options.stride_w = 2;
    expect_tensor(conv2d(x, filter, options), {1, 2, 2, 1}, {12, 9, 15, 9});
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

TEST(Conv2d, WindowLargerThanTheImage) {
  const Tensor filter = Tensor::ones({3, 3, 1, 2});
  EXPECT_EQ(conv2d(Tensor::ones({1, 2, 5, 1}), filter).shape(), (Shape{1, 0, 3, 2}));
  EXPECT_INVALID(conv2d(Tensor::ones({1, 1, 5, 1}), filter),
                 "conv2d at convolution_test.cc:", "window", "at most 1", "got a window of 3");
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
  EXPECT_INVALID(conv2d(x, Tensor::zeros({5, 5})), "[height, width, in, out]", "[5, 5]");
  EXPECT_INVALID(conv2d(Tensor::zeros({32, 32, 1}), fitting), "[batch, height, width, channels]",
                 "[32, 32, 1]");
  EXPECT_INVALID(conv2d(x, fitting, Tensor::zeros({5})), "bias", "[4]", "[5]");
  EXPECT_INVALID(conv2d(x, Tensor::zeros({5, 5, 1, 4}, DType::kFloat64)), "float32", "float64");
  EXPECT_INVALID(conv2d(x, fitting, {.stride_w = 0}), "strides", "0");
  EXPECT_ERROR(conv2d(x, Tensor()), kFailedPrecondition, "undefined");
  EXPECT_INVALID(conv2d_backward_filter(x, Tensor::zeros({8, 3, 3, 4}), fitting.shape(), {}),
                 "conv2d_backward_filter", "[8, 3, 3, 4]");
  EXPECT_INVALID(conv2d_backward_input(Tensor::zeros({8, 28, 28, 5}), fitting, x.shape(), {}),
                 "conv2d_backward_input", "[8, 28, 28, 5]");
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
  EXPECT_INVALID(bias_grad(Tensor(1.0f)), "[]");
}

// Half a million additions of 0.1: a running float sum would be wrong in the third digit.
TEST(BiasGrad, LongSumsStayAccurate) {
  const Tensor sum = bias_grad(Tensor::full({500000, 2}, 0.1));
  EXPECT_NEAR(sum.to_doubles()[0], 500000 * static_cast<double>(0.1f), 0.05);
}

TEST(Conv2dVariants, DepthwiseKeepsChannelsApart) {
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({1, 1, 2, 2}, {1, 10, 2, 20}, dtype);
    // Two taps, to the left and here; channel 0 has (1, 2) and (3, 4), channel 1 has (5, 6) and (7,
    // 8).
    const Tensor filter = tensor_of({1, 2, 2, 2}, {1, 3, 5, 7, 2, 4, 6, 8}, dtype);
    expect_tensor(depthwise_conv2d(x, filter), {1, 1, 1, 4}, {5, 11, 170, 230}, 1e-6);
    const Tensor bias = tensor_of({4}, {1, 2, 3, -1000}, dtype);
    expect_tensor(depthwise_conv2d(x, filter, bias, {.activation = FusedActivation::kRelu}),
                  {1, 1, 1, 4}, {6, 13, 173, 0}, 1e-6);
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
    const Conv2dTransposeOptions options{
        .stride_h = c.stride, .stride_w = c.stride, .padding = c.padding};
    const Tensor y = conv2d_transpose(Tensor::ones({2, c.input, c.input, 3}),
                                      Tensor::ones({c.kernel, c.kernel, 5, 3}), options);
    EXPECT_EQ(y.shape(), (Shape{2, c.output, c.output, 5}));
  }
}

TEST(Conv2dTranspose, SpreadsEachPixelOverTheWindow) {
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({1, 1, 2, 1}, {1, 10}, dtype);
    const Tensor filter = tensor_of({1, 3, 1, 1}, {1, 2, 3}, dtype);
    Conv2dTransposeOptions options;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 4, 1}, {1, 12, 23, 30}, 1e-6);
    options.stride_w = 2;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 5, 1}, {1, 2, 13, 20, 30}, 1e-6);
    options.padding = kSame;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 4, 1}, {1, 2, 13, 20}, 1e-6);
    options.output_width = 3;
    const Tensor bias = tensor_of({1}, {0.5}, dtype);
    expect_tensor(conv2d_transpose(x, filter, bias, options), {1, 1, 3, 1}, {2.5, 13.5, 20.5},
                  1e-6);
  }
}

TEST(Conv2dVariants, ErrorsNameOperationShapesAndLine) {
  const Tensor x = Tensor::zeros({8, 6, 6, 4});
  EXPECT_INVALID(depthwise_conv2d(x, Tensor::ones({3, 3, 4, 1}), {.dilation_h = 0}),
                 "depthwise_conv2d at convolution_test.cc:", "dilations");
  EXPECT_INVALID(depthwise_conv2d(x, Tensor::ones({3, 3, 5, 1})),
                 "depthwise_conv2d at convolution_test.cc:", "[3, 3, 5, 1]", "[8, 6, 6, 4]");
  EXPECT_INVALID(depthwise_conv2d(x, Tensor::ones({3, 3})),
                 "depthwise_conv2d at convolution_test.cc:", "[height, width, in, multiplier]",
                 "[3, 3]");
  EXPECT_INVALID(conv2d_transpose(x, Tensor::ones({3, 3, 4, 5})),
                 "conv2d_transpose at convolution_test.cc:", "[3, 3, 4, 5]", "[8, 6, 6, 4]");
  EXPECT_INVALID(conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}), {.output_height = 9}),
                 "conv2d_transpose at convolution_test.cc:", "brings to 6", "got 9");
  EXPECT_INVALID(conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}), Tensor::ones({4})),
                 "conv2d_transpose", "bias", "[5]", "[4]");
  EXPECT_INVALID(conv2d(x, Tensor::ones({3, 3, 1, 6}), {.groups = 3}),
                 "conv2d at convolution_test.cc:", "groups", "[8, 6, 6, 4]", "got 3");
  EXPECT_INVALID(conv2d(x, Tensor::ones({3, 3, 4, 6}), {.groups = 2}),
                 "conv2d at convolution_test.cc:", "in 2 groups", "[8, 6, 6, 4]");
  EXPECT_INVALID(conv2d(x, Tensor::ones({3, 3, 4, 6}), {.dilation_w = 0}), "dilations", "0");
  EXPECT_INVALID(conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}, DType::kFloat64)),
                 "element types differ", "float64");
}

TEST(MaxPool, GradientGoesToTheFirstOfEqualElements) {
  const Tensor x = Tensor::from<float>({1, 2, 4, 1}, {3, 3, 1, 2, 3, 0, 2, 2});
  const Tensor dy = Tensor::from<float>({1, 1, 2, 1}, {5, 7});
  expect_tensor(max_pool2d_grad(x, dy, Pool2dAttributes{}), {1, 2, 4, 1}, {5, 0, 0, 7, 0, 0, 0, 0});
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
  const Pool2dOptions wide{.window_h = 1, .window_w = 3, .stride_h = 2, .stride_w = 1};
  expect_tensor(max_pool2d(x, wide), {1, 2, 1, 1}, {3, 9});
  expect_tensor(average_pool2d(negate(x), wide), {1, 2, 1, 1}, {-2, -8});
  Pool2dOptions padded = wide;
  padded.padding = kSame;  // Zeros from the padding would be the largest elements.
  expect_tensor(max_pool2d(negate(x), padded), {1, 2, 3, 1}, {-1, -1, -2, -7, -7, -8});
}

TEST(MaxPool, NanWinsAndTakesTheGradient) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : kTypes) {
    // Channels: NaN first, NaN last, NaN twice, infinity with NaN, only minus infinity.
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
  EXPECT_INVALID(global_max_pool2d(Tensor::zeros({2, 2})), "[2, 2]");
}

TEST(Pooling, ErrorsNameTheShapesAndTheLine) {
  const Tensor x = Tensor::zeros({1, 4, 4, 3});
  EXPECT_INVALID(max_pool2d(Tensor::zeros({4, 4})), "max_pool",
                 " at convolution_test.cc:", "[4, 4]");
  EXPECT_INVALID(average_pool2d(Tensor::zeros({1, 4, 4, 3}, DType::kInt32)), "float", "int32");
  EXPECT_INVALID(max_pool2d(x, {.window_h = 0}), "window", "0 x 2");
  EXPECT_INVALID(max_pool2d(x, {.window_w = 9}), "at most 4", "window of 9");
  EXPECT_INVALID(max_pool2d_grad(x, Tensor::zeros({1, 3, 2, 3}), {}), "[1, 4, 4, 3]",
                 "[1, 3, 2, 3]");
  EXPECT_INVALID(average_pool2d_grad(Tensor::zeros({2, 2, 2, 3}), x.shape(), {}), "[1, 4, 4, 3]",
                 "[2, 2, 2, 3]");
}

}  // namespace tutti::convolution_test

// Depthwise and transposed convolution, and what grouped and dilated ones refuse.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/convolution_ops.h"

namespace tutti {
namespace convolution_variants_test {

using testing::expect_error;
using testing::expect_tensor;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
constexpr Padding kSame = Padding::kSame, kValid = Padding::kValid;

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

// Dilated, grouped, depthwise, separable and transposed convolution against plain loops.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/convolution.h"

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"

namespace tutti {
namespace {

using layer_tests::check_layer;
using layer_tests::error_of;
using layer_tests::expect_values;
using layer_tests::spread;
using layer_tests::weights_of_layer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// An array of four dimensions by index; 0 outside the second and third.
struct PlainArray {
  explicit PlainArray(const Tensor& tensor) : shape(tensor.shape()), values(tensor.to_doubles()) {}
  double at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    if (b < 0 || b >= shape[1] || c < 0 || c >= shape[2]) return 0.0;
    return values[static_cast<std::size_t>(((a * shape[1] + b) * shape[2] + c) * shape[3] + d)];
  }
  Shape shape;
  std::vector<double> values;
};

struct PlainConvolution {
  std::int64_t stride = 1, dilation = 1, groups = 1, pad_before = 0;

  /// Sum over the window, channel `in` of the image and filter element of (i, j).
  template <class Filter>
  double window(const PlainArray& x, std::int64_t row, std::int64_t y, std::int64_t z,
                std::int64_t in, std::int64_t size, const Filter& filter) const {
    double sum = 0.0;
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t j = 0; j < size; ++j)
        sum += x.at(row, y * stride - pad_before + i * dilation,
                    z * stride - pad_before + j * dilation, in) *
               filter(i, j);
    return sum;
  }
};

/// Weights and input of a layer, set to numbers without pattern; its result.
Tensor with_spread_weights(Layer& layer, const Tensor& x) {
  layer.build_for(x.shape().without_axis(0));
  std::uint64_t seed = 3;
  for (Variable weight : layer.variables()) weight.assign(spread(weight.shape(), ++seed));
  return layer(x);
}

TEST(Conv2DTest, DilationAndGroupsEqualPlainLoops) {
  const layer_tests::ExactLayers exact;
  const Tensor image = spread({2, 7, 7, 4}, 1);
  Conv2D layer(6, 3, {.padding = "same", .dilation_rate = 2, .groups = 2});
  const Tensor result = with_spread_weights(layer, image);
  ASSERT_EQ(result.shape(), (Shape{2, 7, 7, 6}));
  EXPECT_THAT(weights_of_layer(layer),
              ElementsAre("conv2d/kernel [3, 3, 2, 6]", "conv2d/bias [6]"));
  const PlainArray x(image), kernel(layer.variables()[0].value());
  const std::vector<double> bias = layer.variables()[1].value().to_doubles();
  const PlainConvolution plain{.dilation = 2, .pad_before = 2};
  std::vector<double> expected;
  for (std::int64_t row = 0; row < 2; ++row)
    for (std::int64_t y = 0; y < 7; ++y)
      for (std::int64_t z = 0; z < 7; ++z)
        for (std::int64_t out = 0; out < 6; ++out) {
          double sum = bias[static_cast<std::size_t>(out)];
          for (std::int64_t in = 0; in < 2; ++in)
            sum += plain.window(x, row, y, z, out / 3 * 2 + in, 3,
                                [&](auto i, auto j) { return kernel.at(i, j, in, out); });
          expected.push_back(sum);
        }
  expect_values(result, expected, 1e-10);
}

TEST(DepthwiseConv2DTest, FiltersEachChannelByItself) {
  const layer_tests::ExactLayers exact;
  const Tensor image = spread({2, 5, 6, 3}, 1);
  DepthwiseConv2D layer(2, {.strides = 2, .depth_multiplier = 2});
  SeparableConv2D separable(4, 2, {.strides = 2, .depth_multiplier = 2});
  const Tensor result = with_spread_weights(layer, image);
  const Tensor mixed = with_spread_weights(separable, image);
  ASSERT_EQ(result.shape(), (Shape{2, 2, 3, 6}));
  ASSERT_EQ(mixed.shape(), (Shape{2, 2, 3, 4}));
  EXPECT_THAT(weights_of_layer(layer),
              ElementsAre("depthwise_conv2d/kernel [2, 2, 3, 2]", "depthwise_conv2d/bias [6]"));
  EXPECT_THAT(
      weights_of_layer(separable),
      ElementsAre("separable_conv2d/depthwise_kernel [2, 2, 3, 2]",
                  "separable_conv2d/pointwise_kernel [1, 1, 6, 4]", "separable_conv2d/bias [4]"));
  const PlainArray x(image), kernel(layer.variables()[0].value());
  const PlainArray pointwise(separable.variables()[1].value());
  const std::vector<double> bias = layer.variables()[1].value().to_doubles();
  const std::vector<double> last = separable.variables()[2].value().to_doubles();
  const PlainConvolution plain{.stride = 2};
  std::vector<double> expected, expected_mixed;
  for (std::int64_t row = 0; row < 2; ++row)
    for (std::int64_t y = 0; y < 2; ++y)
      for (std::int64_t z = 0; z < 3; ++z) {
        std::vector<double> sums = last;
        for (std::int64_t out = 0; out < 6; ++out) {
          const double value = plain.window(x, row, y, z, out / 2, 2, [&](auto i, auto j) {
            return kernel.at(i, j, out / 2, out % 2);
          });
          expected.push_back(value + bias[static_cast<std::size_t>(out)]);
          for (std::size_t f = 0; f < 4; ++f)
            sums[f] += value * pointwise.at(0, 0, out, static_cast<std::int64_t>(f));
        }
        expected_mixed.insert(expected_mixed.end(), sums.begin(), sums.end());
      }
  expect_values(result, expected, 1e-10);
  expect_values(mixed, expected_mixed, 1e-10);
}

TEST(Conv2DTransposeTest, SpreadsEachPixelByItsKernel) {
  const layer_tests::ExactLayers exact;
  const Tensor image = spread({2, 3, 4, 2}, 1);
  for (const bool same : {false, true}) {
    SCOPED_TRACE(same);
    Conv2DTranspose layer(3, 3, {.strides = 2, .padding = same ? "same" : "valid"});
    const Tensor result = with_spread_weights(layer, image);
    const std::int64_t height = same ? 6 : 7, width = same ? 8 : 9;
    ASSERT_EQ(result.shape(), (Shape{2, height, width, 3}));
    EXPECT_EQ(layer.variables()[0].shape(), (Shape{3, 3, 3, 2}));
    const PlainArray x(image), kernel(layer.variables()[0].value());
    const std::vector<double> bias = layer.variables()[1].value().to_doubles();
    std::vector<double> expected;
    for (std::int64_t i = 0; i < 2 * height * width; ++i)
      expected.insert(expected.end(), bias.begin(), bias.end());
    // "same" of a convolution from 6 to 3 rows pads (3 - 1) * 2 + 3 - 6 = 1 row, behind.
    for (std::int64_t row = 0; row < 2; ++row)
      for (std::int64_t y = 0; y < 3; ++y)
        for (std::int64_t z = 0; z < 4; ++z)
          for (std::int64_t i = 0; i < 3; ++i)
            for (std::int64_t j = 0; j < 3; ++j)
              for (std::int64_t out = 0; out < 3; ++out)
                for (std::int64_t in = 0; in < 2; ++in) {
                  const std::int64_t to_y = 2 * y + i, to_z = 2 * z + j;
                  if (to_y >= height || to_z >= width) continue;
                  expected[static_cast<std::size_t>(((row * height + to_y) * width + to_z) * 3 +
                                                    out)] +=
                      x.at(row, y, z, in) * kernel.at(i, j, out, in);
                }
    expect_values(result, expected, 1e-10);
  }
}

TEST(ConvVariants, KeepPromisesAndGradients) {
  check_layer([] { return Conv2D(2, 2, {.dilation_rate = 2}); }, {{4, 4, 2}});
  check_layer([] { return Conv2D(4, 2, {.groups = 2, .activation = "tanh"}); }, {{3, 3, 4}});
  check_layer([] { return Conv1D(2, 2, {.padding = "causal", .dilation_rate = 2}); }, {{5, 2}});
  check_layer([] { return Conv1D(4, 2, {.groups = 2}); }, {{4, 2}});
  check_layer([] { return Conv1D(4, 2, {.padding = "causal", .dilation_rate = 2, .groups = 2}); },
              {{5, 2}});
  check_layer([] { return DepthwiseConv2D(2, {.depth_multiplier = 2}); }, {{3, 3, 2}});
  check_layer([] { return DepthwiseConv2D(2, {.padding = "same", .use_bias = false}); },
              {{3, 3, 2}});
  check_layer([] { return SeparableConv2D(3, 2, {.activation = "sigmoid"}); }, {{3, 3, 2}});
  check_layer([] { return SeparableConv2D(3, 2, {.dilation_rate = 2, .use_bias = false}); },
              {{4, 4, 2}});
  check_layer([] { return Conv2DTranspose(2, 3, {.strides = 2}); }, {{2, 3, 2}});
  check_layer([] { return Conv2DTranspose(2, 3, {.strides = 2, .padding = "same"}); }, {{2, 3, 2}});
  check_layer([] { return Conv2DTranspose(1, 2, {.activation = "tanh", .use_bias = false}); },
              {{2, 3, 2}});
}

TEST(ConvVariants, ErrorsNameLayerAndShapes) {
  auto error_for = [](auto layer, const Shape& shape) {
    return error_of([&] { layer.build_for(shape); });
  };
  EXPECT_THAT(error_for(DepthwiseConv2D(3), {4}),
              HasSubstr("layer 'depthwise_conv2d' (DepthwiseConv2D): DepthwiseConv2D: expected "
                        "examples of shape [height, width, channels], got [4]"));
  EXPECT_THAT(error_for(SeparableConv2D(2, 3), {2, 2, 1}),
              HasSubstr("SeparableConv2D: a window of 3 does not fit into a length of 2"));
  EXPECT_THAT(error_for(Conv2DTranspose(2, 3), {4, 4}), HasSubstr("got [4, 4]"));
  EXPECT_THAT(error_for(Conv2D(4, 1, {.groups = 2}), {3, 3, 3}),
              HasSubstr("3 channels cannot be cut into 2 equal groups"));
  EXPECT_THAT(error_of([] { Conv2D bad(3, 1, {.groups = 2}); }),
              HasSubstr("groups that divide the 3 filters, got 2"));
  EXPECT_THAT(error_of([] { Conv2DTranspose bad(0, 1); }),
              HasSubstr("a positive number of filters"));
}

}  // namespace
}  // namespace tutti

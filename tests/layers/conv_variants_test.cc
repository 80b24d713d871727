// Dilated, grouped, depthwise, separable and transposed convolution; tests/parity has their values.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/convolution.h"

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"

namespace tutti {
namespace {

using namespace layer_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ConvVariants, WeightsHaveKerasNamesAndShapes) {
  Conv2D grouped(6, 3, {.padding = "same", .dilation_rate = 2, .groups = 2});
  EXPECT_EQ(grouped.build_for({7, 7, 4}), (Shape{7, 7, 6}));
  EXPECT_THAT(weights_of_layer(grouped),
              ElementsAre("conv2d/kernel [3, 3, 2, 6]", "conv2d/bias [6]"));
  DepthwiseConv2D depthwise(2, {.strides = 2, .depth_multiplier = 2});
  EXPECT_EQ(depthwise.build_for({5, 6, 3}), (Shape{2, 3, 6}));
  EXPECT_THAT(weights_of_layer(depthwise),
              ElementsAre("depthwise_conv2d/kernel [2, 2, 3, 2]", "depthwise_conv2d/bias [6]"));
  SeparableConv2D separable(4, 2, {.strides = 2, .depth_multiplier = 2});
  EXPECT_EQ(separable.build_for({5, 6, 3}), (Shape{2, 3, 4}));
  EXPECT_THAT(
      weights_of_layer(separable),
      ElementsAre("separable_conv2d/depthwise_kernel [2, 2, 3, 2]",
                  "separable_conv2d/pointwise_kernel [1, 1, 6, 4]", "separable_conv2d/bias [4]"));
  for (const bool same : {false, true}) {
    Conv2DTranspose transpose(3, 3, {.strides = 2, .padding = same ? "same" : "valid"});
    EXPECT_EQ(transpose.build_for({3, 4, 2}), (same ? Shape{6, 8, 3} : Shape{7, 9, 3}));
    EXPECT_EQ(transpose.variables()[0].shape(), (Shape{3, 3, 3, 2}));
  }
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
  EXPECT_ERROR(Conv2D bad(3, 1, {.groups = 2}), kInvalidArgument,
               "groups that divide the 3 filters, got 2");
  EXPECT_ERROR(Conv2DTranspose bad(0, 1), kInvalidArgument, "a positive number of filters");
}

}  // namespace
}  // namespace tutti

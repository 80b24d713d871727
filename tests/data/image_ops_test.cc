// Compares image functions with published values from tf.image and with plain loops.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numeric>

#include "tests/data/dataset_values.h"
#include "tutti/data/image.h"
#include "tutti/data/image_ops.h"
#include "tutti/tensor/ops/convolution_ops.h"

namespace tutti::testing::image_ops_test {

using Numbers = std::vector<std::int64_t>;

Tensor bytes_image(const Shape& shape, const Numbers& values) {
  std::vector<std::uint8_t> bytes;
  for (const auto value : values) bytes.push_back(static_cast<std::uint8_t>(value));
  return Tensor::from(shape, bytes);
}

/// Returns an image with one channel whose pixels are 1, 2, 3, ...
Tensor counting(std::int64_t height, std::int64_t width, DType dtype = DType::kUInt8) {
  Numbers values(static_cast<std::size_t>(height * width));
  std::iota(values.begin(), values.end(), 1);
  const Tensor bytes = bytes_image({height, width, 1}, values);
  if (dtype == DType::kUInt8) return bytes;
  return Tensor::from({height, width, 1}, std::vector<float>(values.begin(), values.end()));
}

/// Image of 2 x 2 pixels with 3 channels, from TensorFlow's tests.
const Numbers kPublished = {0, 5, 13, 54, 135, 226, 37, 8, 234, 90, 255, 1};
Tensor published() { return bytes_image({2, 2, 3}, kPublished); }
Tensor published_float() {
  std::vector<float> values;
  for (const auto value : kPublished) values.push_back(static_cast<float>(value) / 255.0f);
  return Tensor::from({2, 2, 3}, values);
}

void expect_255ths(const Tensor& image, const std::vector<double>& expected) {
  const std::vector<double> actual = image.to_doubles();
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i] * 255.0, expected[i], 1e-3) << "value " << i;
  }
}

// Values from TensorFlow's ResizeImageWithCropOrPadTest.
TEST(ImageOps, ResizeWithCropOrPadMatchesTensorFlow) {
  struct Case {
    std::int64_t height, width, new_height, new_width;
    Numbers expected;
  };
  const std::vector<Case> cases = {
      {2, 4, 2, 6, {0, 1, 2, 3, 4, 0, 0, 5, 6, 7, 8, 0}},
      {2, 4, 2, 7, {0, 1, 2, 3, 4, 0, 0, 0, 5, 6, 7, 8, 0, 0}},
      {2, 4, 4, 4, {0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0}},
      {2, 4, 5, 4, {0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}},
      {2, 4, 2, 2, {2, 3, 6, 7}},
      {2, 6, 2, 3, {2, 3, 4, 8, 9, 10}},
      {4, 2, 2, 2, {3, 4, 5, 6}},
      {8, 2, 5, 2, {3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
      {2, 4, 4, 2, {0, 0, 2, 3, 6, 7, 0, 0}},
      {4, 2, 2, 4, {0, 3, 4, 0, 0, 5, 6, 0}},
  };
  for (const Case& each : cases) {
    for (const DType dtype : {DType::kUInt8, DType::kFloat32}) {
      const Tensor resized = image::resize_with_crop_or_pad(
          counting(each.height, each.width, dtype), each.new_height, each.new_width);
      EXPECT_EQ(resized.shape(), Shape({each.new_height, each.new_width, 1}));
      EXPECT_EQ(resized.dtype(), dtype);
      EXPECT_THAT(numbers_of(resized), ElementsAreArray(each.expected));
    }
  }
}

TEST(ImageOps, CropsReturnRequestedRegion) {
  const Tensor image = counting(3, 4);  // 1 2 3 4 / 5 6 7 8 / 9 10 11 12
  EXPECT_THAT(numbers_of(image::crop_to_bounding_box(image, 1, 2, 2, 2)),
              ElementsAre(7, 8, 11, 12));
  EXPECT_THAT(numbers_of(image::center_crop(image, 1, 2)), ElementsAre(6, 7));
  EXPECT_THAT(numbers_of(image::center_crop(image, 3, 1)), ElementsAre(2, 6, 10));
  EXPECT_THAT(numbers_of(image::crop_or_pad_to_bounding_box(image, -1, -2, 3, 4,
                                                            image::PaddingMode::kZeros)),
              ElementsAre(0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 5, 6));
  // The crop lies entirely outside the image.
  EXPECT_THAT(
      numbers_of(image::crop_or_pad_to_bounding_box(image, 0, 9, 1, 2, image::PaddingMode::kZeros)),
      ElementsAre(0, 0));
}

// Values from numpy.pad(mode="reflect") of [[1, 2, 3], [4, 5, 6]] by 1 row and 2 columns.
TEST(ImageOps, ReflectPaddingMatchesNumpy) {
  EXPECT_THAT(numbers_of(image::crop_or_pad_to_bounding_box(counting(2, 3), -1, -2, 4, 7,
                                                            image::PaddingMode::kReflect)),
              ElementsAreArray(Numbers{6, 5, 4, 5, 6, 5, 4,  //
                                       3, 2, 1, 2, 3, 2, 1,  //
                                       6, 5, 4, 5, 6, 5, 4,  //
                                       3, 2, 1, 2, 3, 2, 1}));
  EXPECT_INVALID(
      image::crop_or_pad_to_bounding_box(counting(2, 3), -2, 0, 2, 3, image::PaddingMode::kReflect),
      "fewer reflected pixels", "2 x 3", "2 rows");
}

TEST(ImageOps, FlipsReversePixelsForAnyChannelCount) {
  EXPECT_THAT(numbers_of(image::flip_left_right(counting(2, 3))), ElementsAre(3, 2, 1, 6, 5, 4));
  EXPECT_THAT(numbers_of(image::flip_up_down(counting(2, 3))), ElementsAre(4, 5, 6, 1, 2, 3));
  for (const std::int64_t channels : {1, 2, 3, 4, 5}) {
    Numbers values(static_cast<std::size_t>(6 * channels)), expected;
    std::iota(values.begin(), values.end(), 0);
    for (std::int64_t y = 0; y < 2; ++y)
      for (std::int64_t x = 2; x >= 0; --x)
        for (std::int64_t c = 0; c < channels; ++c) expected.push_back((y * 3 + x) * channels + c);
    const Shape shape = {2, 3, channels};
    EXPECT_EQ(numbers_of(image::flip_left_right(bytes_image(shape, values))), expected);
    const Tensor floats = Tensor::from(shape, std::vector<float>(values.begin(), values.end()));
    EXPECT_EQ(numbers_of(image::flip_left_right(floats)), expected);
    EXPECT_EQ(numbers_of(image::flip_up_down(image::flip_up_down(floats))), values);
  }
}

TEST(ImageOps, EraseFillsOverlapOfBoxAndImage) {
  EXPECT_THAT(numbers_of(image::erase(counting(2, 3), 1, 1, 5, 5, 99)),
              ElementsAre(1, 2, 3, 4, 99, 99));
  EXPECT_THAT(numbers_of(image::erase(counting(2, 3), -1, -1, 2, 2)),
              ElementsAre(0, 2, 3, 4, 5, 6));
  EXPECT_THAT(numbers_of(image::erase(counting(2, 3), 2, 0, 2, 2)), ElementsAre(1, 2, 3, 4, 5, 6));
  const Tensor image = counting(1, 2, DType::kFloat32);
  EXPECT_THAT(image::erase(image, 0, 0, 1, 1, 0.5).to_doubles(), ElementsAre(0.5, 2.0));
  EXPECT_THAT(image.to_doubles(), ElementsAre(1.0, 2.0));  // the input is unchanged
  EXPECT_INVALID(image::erase(counting(2, 3), 0, 0, 1, 1, 256), "image::erase", "0 .. 255",
                 "got 256");
}

// Values from TensorFlow's AdjustBrightnessTest.
TEST(ImageOps, BrightnessMatchesTensorFlow) {
  EXPECT_THAT(numbers_of(image::adjust_brightness(published(), 10. / 255.)),
              ElementsAre(10, 15, 23, 64, 145, 236, 47, 18, 244, 100, 255, 11));
  EXPECT_THAT(numbers_of(image::adjust_brightness(published(), -10. / 255.)),
              ElementsAre(0, 0, 3, 44, 125, 216, 27, 0, 224, 80, 245, 0));
  expect_255ths(image::adjust_brightness(published_float(), 10. / 255.),
                {10, 15, 23, 64, 145, 236, 47, 18, 244, 100, 265, 11});
}

// Values from TensorFlow's AdjustContrastTest.
TEST(ImageOps, ContrastMatchesTensorFlow) {
  EXPECT_THAT(numbers_of(image::adjust_contrast(published(), 2.0)),
              ElementsAre(0, 0, 0, 62, 169, 255, 28, 0, 255, 135, 255, 0));
  EXPECT_THAT(numbers_of(image::adjust_contrast(published(), 0.5)),
              ElementsAre(22, 52, 65, 49, 118, 172, 41, 54, 176, 67, 178, 59));
  expect_255ths(
      image::adjust_contrast(published_float(), 2.0),
      {-45.25, -90.75, -92.5, 62.75, 169.25, 333.5, 28.75, -84.75, 349.5, 134.75, 409.25, -116.5});
}

// Values from TensorFlow's AdjustSaturationTest and AdjustHueTest.
TEST(ImageOps, SaturationAndHueMatchTensorFlow) {
  EXPECT_THAT(numbers_of(image::adjust_saturation(published(), 0.5)),
              ElementsAre(6, 9, 13, 140, 180, 226, 135, 121, 234, 172, 255, 128));
  EXPECT_THAT(numbers_of(image::adjust_saturation(published(), 2.0)),
              ElementsAre(0, 5, 13, 0, 106, 226, 30, 0, 234, 89, 255, 0));
  EXPECT_THAT(numbers_of(image::adjust_hue(published(), 0.25)),
              ElementsAre(13, 0, 11, 226, 54, 221, 234, 8, 92, 1, 217, 255));
  EXPECT_THAT(numbers_of(image::adjust_hue(published(), -0.25)),
              ElementsAre(0, 13, 1, 54, 226, 59, 8, 234, 150, 255, 39, 1));
  EXPECT_THAT(numbers_of(image::adjust_hue(published(), 1.0)), ElementsAreArray(kPublished));
  EXPECT_INVALID(image::adjust_hue(counting(2, 2), 0.1), "image::adjust_hue", "3 channels",
                 "got 1");
}

TEST(ImageOps, IdentityAdjustmentsPreserveEveryByte) {
  Numbers all(256 * 3);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i * 7 % 256);
  const Tensor image = bytes_image({16, 16, 3}, all);
  EXPECT_EQ(numbers_of(image::adjust_brightness(image, 0.0)), all);
  EXPECT_EQ(numbers_of(image::adjust_contrast(image, 1.0)), all);
  EXPECT_EQ(numbers_of(image::adjust_saturation(image, 1.0)), all);
  EXPECT_EQ(numbers_of(image::adjust_hue(image, 0.0)), all);
  const Tensor unit = image::convert_image_dtype(image, DType::kFloat32);
  EXPECT_FLOAT_EQ(unit.to_doubles()[1], 7.0 / 255.0);
  EXPECT_EQ(numbers_of(image::convert_image_dtype(unit, DType::kUInt8)), all);
}

TEST(ImageOps, ConversionToUInt8Saturates) {
  const Tensor image = Tensor::from<float>({1, 2, 2}, {-0.5f, 1.5f, 0.5f, std::nanf("")});
  EXPECT_THAT(numbers_of(image::convert_image_dtype(image, DType::kUInt8)),
              ElementsAre(0, 255, 127, 0));
}

// Follows TensorFlow's PerImageWhiteningTest, but computes the expected values in double precision.
TEST(ImageOps, StandardizationMatchesFormula) {
  for (const DType dtype : {DType::kUInt8, DType::kFloat32}) {
    Numbers values(13 * 9 * 3);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i % 256);
    const Tensor image =
        dtype == DType::kUInt8
            ? bytes_image({13, 9, 3}, values)
            : Tensor::from({13, 9, 3}, std::vector<float>(values.begin(), values.end()));
    double mean = 0.0, squares = 0.0;
    const double count = static_cast<double>(values.size());
    for (const auto value : values) mean += static_cast<double>(value) / count;
    for (const auto value : values) squares += std::pow(static_cast<double>(value) - mean, 2);
    const Tensor result = image::per_image_standardization(image);
    EXPECT_EQ(result.dtype(), DType::kFloat32);
    const std::vector<double> actual = result.to_doubles();
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(actual[i], (static_cast<double>(values[i]) - mean) / std::sqrt(squares / count),
                  1e-5);
    }
  }
}

TEST(ImageOps, StandardizationOfNearlyUniformImagesUsesMinimumDivisor) {
  for (const double value :
       image::per_image_standardization(Tensor::full({19, 19, 3}, 249.0)).to_doubles()) {
    EXPECT_EQ(value, 0.0);
  }
  // The standard deviation, 0.1, is below 1 / sqrt(4), so values are divided by 1 / 2.
  EXPECT_THAT(
      image::per_image_standardization(Tensor::from<float>({2, 2, 1}, {.9f, 1.1f, .9f, 1.1f}))
          .to_doubles(),
      ElementsAre(DoubleNear(-0.2, 1e-6), DoubleNear(0.2, 1e-6), DoubleNear(-0.2, 1e-6),
                  DoubleNear(0.2, 1e-6)));
}

TEST(ImageOps, RefusesInvalidArguments) {
  EXPECT_INVALID(image::flip_left_right(Tensor::zeros({2, 3, 4, 1})), "image::flip_left_right",
                 "[height, width, channels]", "[2, 3, 4, 1]", "before batch()");
  EXPECT_INVALID(image::adjust_contrast(Tensor::zeros({28, 28}), 2.0), "image::adjust_contrast",
                 "got shape [28, 28]", "reshape()");
  EXPECT_INVALID(image::per_image_standardization(Tensor::zeros({2, 2, 1}, DType::kInt64)),
                 "image::per_image_standardization", "uint8 or float32", "int64");
  EXPECT_INVALID(image::center_crop(counting(2, 3), 4, 2), "image::center_crop", "at most 2 x 3",
                 "got 4 x 2", "crop_or_pad");
  EXPECT_INVALID(image::crop_to_bounding_box(counting(2, 3), 1, 0, 2, 2),
                 "image::crop_to_bounding_box", "2 x 3 image", "2 x 2", "(1, 0)");
  EXPECT_INVALID(image::resize_with_crop_or_pad(counting(2, 3), 0, 2),
                 "image::resize_with_crop_or_pad", "got 0 x 2");
  EXPECT_INVALID(image::adjust_brightness(counting(2, 3), std::nan("")), "image::adjust_brightness",
                 "finite");
  EXPECT_INVALID(image::adjust_saturation(published(), -1.0), "image::adjust_saturation", ">= 0",
                 "-1");
  EXPECT_INVALID(image::adjust_hue(published(), 1.5), "image::adjust_hue", "[-1, 1]", "1.5");
  EXPECT_INVALID(image::convert_image_dtype(published(), DType::kInt32),
                 "image::convert_image_dtype", "uint8 or float32", "int32");
}

constexpr ResizeImageOptions kNearest{Interpolation::kNearest};

Tensor test_picture(int width, int height) {
  return picture_of(
      [](int x, int y) {
        return std::vector<int>{x * x % 251, (7 * x + 31 * y) % 256};
      },
      width, height);
}

/// Implements bilinear interpolation by its definition: averages nearby pixels, weighted by
/// distance; positions outside the image take the value of the nearest border pixel.
double slow_bilinear(const Tensor& image, double y, double x, std::int64_t channel) {
  double sum = 0;
  for (auto row = static_cast<std::int64_t>(y) - 2; row <= y + 2; ++row) {
    for (auto column = static_cast<std::int64_t>(x) - 2; column <= x + 2; ++column) {
      const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(row) + 0.5 - y)) *
                            std::max(0.0, 1 - std::abs(static_cast<double>(column) + 0.5 - x));
      const auto inside_y = std::clamp<std::int64_t>(row, 0, image.shape()[0] - 1);
      const auto inside_x = std::clamp<std::int64_t>(column, 0, image.shape()[1] - 1);
      sum += weight * pixel_at(image, inside_x, inside_y)[static_cast<std::size_t>(channel)];
    }
  }
  return sum;
}

TEST(ResizeImage, BilinearMatchesDefinition) {
  const Tensor image = test_picture(7, 5);
  for (const ImageSize size : {ImageSize{5, 7}, {13, 3}, {2, 20}, {1, 1}}) {
    const Tensor resized = resize_image(image, size);
    ASSERT_EQ(resized.shape(), (Shape{size.height, size.width, 2}));
    ASSERT_EQ(resized.dtype(), DType::kFloat32);
    std::size_t i = 0;
    for (std::int64_t row = 0; row < size.height; ++row) {
      for (std::int64_t column = 0; column < size.width; ++column) {
        for (std::int64_t channel = 0; channel < 2; ++channel) {
          const double y = (static_cast<double>(row) + 0.5) * 5 / static_cast<double>(size.height);
          const double x =
              (static_cast<double>(column) + 0.5) * 7 / static_cast<double>(size.width);
          EXPECT_NEAR(resized.host_span<float>()[i++], slow_bilinear(image, y, x, channel), 1e-3);
        }
      }
    }
  }
}

// Expected values from tf.image.resize of [[0], [1]] to 4 rows.
TEST(ResizeImage, UsesHalfPixelCenters) {
  const Tensor image = Tensor::from<float>({2, 1, 1}, {0, 1});
  EXPECT_THAT(resize_image(image, {4, 1}).to_doubles(), ElementsAre(0, 0.25, 0.75, 1));
  EXPECT_THAT(resize_image(image, {3, 1}, kNearest).to_doubles(), ElementsAre(0, 1, 1));
}

TEST(ResizeImage, MatchesResizeOperationForIntegerFactors) {
  const Tensor image = Tensor::from<float>({2, 3, 2}, {1, 9, 2, 8, 3, 7, 4, 6, 5, 5, 6, 4});
  for (Interpolation how : {Interpolation::kBilinear, Interpolation::kNearest}) {
    const Tensor batch = upsample2d(image.detached_reshape({1, 2, 3, 2}), {3, 2, how});
    const Tensor resized = resize_image(image, {6, 6}, ResizeImageOptions{how});
    const auto expected = batch.host_span<float>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(resized.host_span<float>()[i], expected[i], 1e-5);
    }
  }
}

TEST(ResizeImage, CropsCenterAndRefusesUnsupportedShapes) {
  const Tensor image = Tensor::from<float>({2, 5, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  ResizeImageOptions crop{.crop_to_aspect_ratio = true};
  EXPECT_THAT(resize_image(image, {2, 2}, crop).to_doubles(), ElementsAre(1, 2, 6, 7));
  EXPECT_THAT(resize_image(image, {1, 1}, crop).to_doubles(), ElementsAre(4));
  EXPECT_THAT(resize_image(image, {2, 5}, crop).to_doubles(),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(resize_image(image, {100, 1}, crop).shape(), (Shape{100, 1, 1}));
  EXPECT_INVALID(resize_image(Tensor::zeros({4, 4}), {2, 2}), "resize_image", "[4, 4]");
  EXPECT_INVALID(resize_image(Tensor::zeros({4, 4, 1}, DType::kInt64), {2, 2}), "resize_image",
                 "int64");
  EXPECT_INVALID(resize_image(Tensor::zeros({0, 4, 1}), {2, 2}), "resize_image", "[0, 4, 1]");
  EXPECT_INVALID(resize_image(Tensor::zeros({4, 4, 1}), {0, 2}), "at least 1 x 1, got 0 x 2");
}

}  // namespace tutti::testing::image_ops_test

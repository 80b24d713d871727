// Resizing: equal to its definition, pixel by pixel, and to the operation for whole factors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/image.h"

#include <cmath>

#include "tests/data/dataset_values.h"
#include "tests/data/image_seeds.h"
#include "tutti/tensor/ops/convolution_ops.h"

namespace tutti {
namespace resize_image_test {

using data_test::expect_error;
using image_seeds::picture_of;
using testing::ElementsAre;

constexpr ResizeImageOptions kNearest{Interpolation::kNearest};

Tensor test_picture(int width, int height) {
  return picture_of(
      [](int x, int y) {
        return std::vector<int>{x * x % 251, (7 * x + 31 * y) % 256};
      },
      width, height);
}

/// The definition: each pixel within reach counts by its distance, those beyond the border repeat
/// the border.
double slow_bilinear(const Tensor& image, double y, double x, std::int64_t channel) {
  double sum = 0;
  for (auto row = static_cast<std::int64_t>(y) - 2; row <= y + 2; ++row) {
    for (auto column = static_cast<std::int64_t>(x) - 2; column <= x + 2; ++column) {
      const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(row) + 0.5 - y)) *
                            std::max(0.0, 1 - std::abs(static_cast<double>(column) + 0.5 - x));
      const auto inside_y = std::clamp<std::int64_t>(row, 0, image.shape()[0] - 1);
      const auto inside_x = std::clamp<std::int64_t>(column, 0, image.shape()[1] - 1);
      sum += weight *
             image_seeds::pixel_at(image, inside_x, inside_y)[static_cast<std::size_t>(channel)];
    }
  }
  return sum;
}

TEST(ResizeImage, BilinearEqualsItsDefinition) {
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

// tf.image.resize of [[0], [1]] to 4 rows.
TEST(ResizeImage, TakesPixelCentresAtHalfNumbers) {
  const Tensor image = Tensor::from<float>({2, 1, 1}, {0, 1});
  EXPECT_THAT(resize_image(image, {4, 1}).to_doubles(), ElementsAre(0, 0.25, 0.75, 1));
  EXPECT_THAT(resize_image(image, {3, 1}, kNearest).to_doubles(), ElementsAre(0, 1, 1));
}

TEST(ResizeImage, EqualsTheOperationForWholeFactors) {
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

TEST(ResizeImage, CropsTheMiddleToKeepProportions) {
  const Tensor image = Tensor::from<float>({2, 5, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  ResizeImageOptions crop{.crop_to_aspect_ratio = true};
  EXPECT_THAT(resize_image(image, {2, 2}, crop).to_doubles(), ElementsAre(1, 2, 6, 7));
  EXPECT_THAT(resize_image(image, {1, 1}, crop).to_doubles(), ElementsAre(4));
  EXPECT_THAT(resize_image(image, {2, 5}, crop).to_doubles(),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(resize_image(image, {100, 1}, crop).shape(), (Shape{100, 1, 1}));
}

TEST(ResizeImage, RefusesWhatIsNoPicture) {
  expect_error(ErrorCode::kInvalidArgument, {"resize_image", "[4, 4]"}, [] {
    resize_image(Tensor::zeros({4, 4}), {2, 2});
  });
  expect_error(ErrorCode::kInvalidArgument, {"resize_image", "int64"}, [] {
    resize_image(Tensor::zeros({4, 4, 1}, DType::kInt64), {2, 2});
  });
  expect_error(ErrorCode::kInvalidArgument, {"resize_image", "[0, 4, 1]"}, [] {
    resize_image(Tensor::zeros({0, 4, 1}), {2, 2});
  });
  expect_error(ErrorCode::kInvalidArgument, {"at least 1 x 1, got 0 x 2"}, [] {
    resize_image(Tensor::zeros({4, 4, 1}), {0, 2});
  });
}

}  // namespace resize_image_test
}  // namespace tutti

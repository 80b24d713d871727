// Tests JPEG images: colour spaces, and damaged files. Built only with libjpeg.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"
#include "tutti/data/image.h"

namespace tutti::testing::jpeg_image_test {

/// Expects the values to differ by at most 2, because decoders round their transforms differently.
void expect_near(const std::vector<int>& got, const std::vector<int>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2);
}

// The expected values come from Pillow.
TEST(Jpeg, DecodedColorsMatchPillow) {
  const Tensor rgb = decode_jpeg(seed_bytes("rgb.jpg"), "here");
  ASSERT_EQ(rgb.shape(), (Shape{12, 16, 3}));
  EXPECT_EQ(rgb.dtype(), DType::kUInt8);
  expect_near(pixel_at(rgb, 0, 0), {12, 21, 124});
  expect_near(pixel_at(rgb, 7, 5), {107, 110, 125});
  expect_near(pixel_at(rgb, 15, 11), {220, 215, 134});
  const Tensor progressive = decode_image(seed_bytes("progressive.jpg"), "here");
  expect_near(pixel_at(progressive, 7, 5), {108, 109, 127});
  expect_near(pixel_at(progressive, 15, 11), {218, 216, 129});
}

TEST(Jpeg, ConvertsGrayAndCmyk) {
  const Tensor gray = decode_jpeg(seed_bytes("gray.jpg"), "here");
  ASSERT_EQ(gray.shape(), (Shape{12, 16, 1}));
  expect_near(pixel_at(gray, 7, 5), {111});
  const auto decode = [](const char* name, ColorMode mode) {
    return decode_image(seed_bytes(name), "here", {.color_mode = mode});
  };
  expect_near(pixel_at(decode("gray.jpg", ColorMode::kRgb), 15, 11), {207, 207, 207});
  expect_near(pixel_at(decode("rgb.jpg", ColorMode::kGrayscale), 15, 11), {207});
  expect_near(pixel_at(decode("rgb.jpg", ColorMode::kRgba), 0, 0), {12, 21, 124, 255});
  EXPECT_EQ(decode("cmyk.jpg", ColorMode::kUnchanged).shape(), (Shape{8, 8, 3}));
  expect_near(pixel_at(decode("cmyk.jpg", ColorMode::kRgb), 7, 7), {0, 191, 95});
  expect_near(pixel_at(decode("cmyk.jpg", ColorMode::kGrayscale), 7, 7), {123});
}

TEST(Jpeg, RoundTripsWithinTolerance) {
  for (int channels : {1, 3}) {
    const Tensor image = picture_of(
        [&](int x, int y) { return std::vector<int>(static_cast<std::size_t>(channels), x + y); },
        40, 30);
    const std::string fine = encode_jpeg(image, {.quality = 100});
    const std::string coarse = encode_jpeg(image, {.quality = 10});
    EXPECT_LT(coarse.size(), fine.size());
    const Tensor again = decode_jpeg(fine, "here");
    ASSERT_EQ(again.shape(), image.shape());
    for (int place : {0, 17, 29})
      expect_near(pixel_at(again, place, place), pixel_at(image, place, place));
  }
}

TEST(Jpeg, RefusesTruncatedFilesAndOversizedImages) {
  for (const char* name : {"rgb.jpg", "progressive.jpg", "gray.jpg"}) {
    const std::string good = seed_bytes(name);
    for (std::size_t length = 0; length < good.size(); length += length < 20 ? 1 : 7) {
      EXPECT_ERROR(decode_jpeg(good.substr(0, length), "here"), kDataLoss, "here", "offset");
    }
  }
  EXPECT_ERROR(decode_jpeg("no picture", "here"), kDataLoss, "here", "libjpeg refuses",
               "Not a JPEG");
  EXPECT_ERROR(decode_jpeg(seed_bytes("rgb.jpg"), "here", {.max_pixels = 191}), kResourceExhausted,
               "here", "at most 191 pixels", "got 12 x 16", "max_pixels");
}

TEST(Jpeg, EncodeRefusesUnsupportedTensors) {
  EXPECT_INVALID(encode_jpeg(Tensor::zeros({2, 2, 3})), "encode_jpeg", "uint8", "float32");
  EXPECT_INVALID(encode_jpeg(Tensor::zeros({2, 2, 4}, DType::kUInt8)), "encode_jpeg",
                 "1 or 3 channels, got 4");
  EXPECT_INVALID(encode_jpeg(Tensor::zeros({1, 65501, 1}, DType::kUInt8)), "encode_jpeg", "65500",
                 "[1, 65501, 1]");
  EXPECT_INVALID(encode_jpeg(Tensor::zeros({1, 1, 1}, DType::kUInt8), {.quality = 0}),
                 "encode_jpeg", "from 1 to 100, got 0");
}

}  // namespace tutti::testing::jpeg_image_test

// PNG pictures: every kind of pixel, and every way to be damaged. Not part of builds without
// libpng.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"
#include "tests/data/image_seeds.h"
#include "tutti/data/image.h"

namespace tutti {
namespace png_image_test {

using namespace image_seeds;  // NOLINT: the pixels of the pictures

void expect_picture(const Tensor& image, const Pixel& pixel) {
  const Tensor expected = picture_of(pixel);
  EXPECT_EQ(image.dtype(), DType::kUInt8);
  ASSERT_EQ(image.shape(), expected.shape());
  EXPECT_EQ(image.to_doubles(), expected.to_doubles());
}

struct PngKind {
  const char* name;
  Pixel pixel;
};

class PngPicture : public testing::TestWithParam<PngKind> {};

TEST_P(PngPicture, IsDecodedAsItIs) {
  const std::string bytes = seed_bytes(std::string(GetParam().name) + ".png");
  expect_picture(decode_png(bytes, "here"), GetParam().pixel);
  expect_picture(decode_image(bytes, "here"), GetParam().pixel);
}

std::vector<int> palette_color(int x, int) {
  static const std::vector<std::vector<int>> kColors = {
      {0, 0, 0}, {255, 0, 0}, {0, 255, 0}, {0, 0, 255}};
  return kColors[static_cast<std::size_t>(x % 4)];
}

std::vector<int> palette_color_and_alpha(int x, int y) {
  std::vector<int> color = palette_color(x, y);
  color.push_back(x % 4 == 0 ? 0 : x % 4 == 1 ? 128 : 255);
  return color;
}

std::vector<int> rgb_pixel(int x, int y) { return {red(x, y), green(x, y), blue(x, y)}; }
std::vector<int> gray_pixel(int x, int y) { return {red(x, y)}; }

INSTANTIATE_TEST_SUITE_P(
    Kinds, PngPicture,
    testing::Values(
        PngKind{"rgb", rgb_pixel},
        PngKind{"rgba",
                [](int x, int y) {
                  return std::vector<int>{red(x, y), green(x, y), blue(x, y), alpha(x, y)};
                }},
        PngKind{"gray", gray_pixel},
        PngKind{"gray_alpha",
                [](int x, int y) {
                  return std::vector<int>{red(x, y), alpha(x, y)};
                }},
        PngKind{"gray16", gray_pixel}, PngKind{"rgb16", rgb_pixel},
        PngKind{"interlaced", rgb_pixel}, PngKind{"palette", palette_color},
        PngKind{"palette_alpha", palette_color_and_alpha},
        PngKind{"bits", [](int x, int y) { return std::vector<int>{255 * ((x + y) % 2)}; }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(PngColors, AreThoseOfTheMode) {
  const std::string rgba = seed_bytes("rgba.png"), gray = seed_bytes("gray.png"),
                    gray_alpha = seed_bytes("gray_alpha.png");
  const auto decode = [](const std::string& bytes, ColorMode mode) {
    return decode_image(bytes, "here", {.color_mode = mode});
  };
  expect_picture(decode(rgba, ColorMode::kRgb), rgb_pixel);
  expect_picture(decode(gray, ColorMode::kRgb),
                 [](int x, int y) { return std::vector<int>(3, red(x, y)); });
  expect_picture(decode(gray, ColorMode::kRgba), [](int x, int y) {
    return std::vector<int>{red(x, y), red(x, y), red(x, y), 255};
  });
  expect_picture(decode(gray_alpha, ColorMode::kRgba), [](int x, int y) {
    return std::vector<int>{red(x, y), red(x, y), red(x, y), alpha(x, y)};
  });
  expect_picture(decode(gray_alpha, ColorMode::kGrayscale), gray_pixel);
  expect_picture(decode(rgba, ColorMode::kGrayscale), [](int x, int y) {
    const double gray_value = 0.299 * red(x, y) + 0.587 * green(x, y) + 0.114 * blue(x, y);
    return std::vector<int>{static_cast<int>(std::lround(gray_value))};
  });
}

TEST(PngColors, ComeBackFromWhatIsEncoded) {
  for (int channels = 1; channels <= 4; ++channels) {
    const Tensor image = picture_of(
        [&](int x, int y) {
          std::vector<int> pixel = {x * 3 % 256, y * 5 % 256, (x * y) % 256, (x + y) % 256};
          pixel.resize(static_cast<std::size_t>(channels));
          return pixel;
        },
        300, 200);
    const Tensor again = decode_png(encode_png(image), "here");
    ASSERT_EQ(again.shape(), image.shape());
    EXPECT_EQ(again.to_doubles(), image.to_doubles());
  }
}

TEST(PngFile, IsReadByPath) {
  const std::string path = data_test::empty_folder() + "/a.png";
  data_test::write_bytes(path, seed_bytes("rgb.png"));
  expect_picture(read_image(path), rgb_pixel);
  EXPECT_ERROR(read_image("/nowhere.png"), kNotFound, "/nowhere.png");
  data_test::write_bytes(path, "no picture");
  EXPECT_ERROR(read_image(path), kDataLoss, path, "offset 0", "PNG or JPEG",
               "text that begins with 'no picture'");
}

TEST(PngFile, IsRefusedWhereItIsCutOrChanged) {
  const std::string good = seed_bytes("rgb.png");
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_ERROR(decode_png(good.substr(0, length), "here"), kDataLoss, "here", "offset");
  }
  EXPECT_ERROR(decode_png(good.substr(0, 60), "here"), kDataLoss, "here", "offset",
               "libpng refuses", "ends early");
  for (std::size_t place = 0; place < good.size(); ++place) {
    std::string wrong = good;
    wrong[place] ^= 0x40;
    EXPECT_ERROR(decode_png(wrong, "here"), kDataLoss, "here");
  }
}

TEST(PngFile, IsRefusedWhereItIsTooLarge) {
  EXPECT_ERROR(decode_png(seed_bytes("rgb.png"), "here", {.max_pixels = 19}), kResourceExhausted,
               "here", "at most 19 pixels", "got 4 x 5", "max_pixels");
  EXPECT_EQ(decode_png(seed_bytes("rgb.png"), "here", {.max_pixels = 20}).num_elements(), 60);
  // The header of a picture of 10000 x 10000 pixels, by Python's zlib.crc32.
  const std::string bomb(
      "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x27\x10\0\0\x27\x10\x08\x02\0\0\0"
      "\x35\x2c\xf5\x70",
      33);
  EXPECT_ERROR(decode_png(bomb, "here"), kDataLoss, "here", "offset");
}

// libpng would take 16 GiB for rows of this width.
TEST(PngFile, IsRefusedForItsWidthBeforeRowsTakeMemory) {
  const std::string wide(
      "\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x7f\xff\xff\xff"
      "\x00\x00\x00\x01\x08\x06\x00\x00\x00\xa0\x36\x33\xdd\x00\x00\x00\x00\x49\x44\x41"
      "\x54\x35\xaf\x06\x1e",
      45);
  EXPECT_ERROR(decode_png(wide, "here"), kResourceExhausted, "here", "got 1 x 2147483647");
}

TEST(PngFile, IsNotWrittenFromOtherTensors) {
  EXPECT_ERROR(encode_png(Tensor::zeros({2, 2, 3})), kInvalidArgument, "encode_png", "uint8",
               "float32", "[2, 2, 3]", "try");
  EXPECT_ERROR(encode_png(Tensor::zeros({2, 2}, DType::kUInt8)), kInvalidArgument, "encode_png",
               "[2, 2]");
  EXPECT_ERROR(encode_png(Tensor::zeros({2, 2, 5}, DType::kUInt8)), kInvalidArgument, "encode_png",
               "1 to 4 channels, got 5");
  EXPECT_ERROR(encode_png(Tensor::zeros({0, 2, 3}, DType::kUInt8)), kInvalidArgument, "encode_png",
               "[0, 2, 3]");
}

TEST(OtherPictures, AreRefusedByName) {
  EXPECT_ERROR(decode_image("GIF89a", "here"), kUnimplemented, "here", "got GIF", "try");
  EXPECT_ERROR(decode_image("RIFF....WEBP", "here"), kUnimplemented, "got WebP");
  EXPECT_ERROR(decode_image("", "here"), kDataLoss, "got an empty file");
}

}  // namespace png_image_test
}  // namespace tutti

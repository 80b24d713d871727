// Tests PNG images and image_folder(): pixels, labels and damaged files. Built only with libpng.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/data/dataset_values.h"
#include "tutti/data/image.h"

namespace tutti::testing::png_image_test {

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

class PngFormat : public TestWithParam<PngKind> {};

TEST_P(PngFormat, DecodesWithOriginalChannels) {
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
    Kinds, PngFormat,
    Values(PngKind{"rgb", rgb_pixel},
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

TEST(PngColors, AreConvertedToRequestedColorMode) {
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

TEST(PngColors, RoundTrip) {
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
  const std::string path = empty_folder() + "/a.png";
  write_bytes(path, seed_bytes("rgb.png"));
  expect_picture(read_image(path), rgb_pixel);
  EXPECT_ERROR(read_image("/nowhere.png"), kNotFound, "/nowhere.png");
  write_bytes(path, "no picture");
  EXPECT_ERROR(read_image(path), kDataLoss, path, "offset 0", "PNG or JPEG",
               "text that begins with 'no picture'");
}

TEST(PngFile, IsRefusedIfTruncatedOrCorrupted) {
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

TEST(PngFile, IsRefusedAbovePixelLimit) {
  EXPECT_ERROR(decode_png(seed_bytes("rgb.png"), "here", {.max_pixels = 19}), kResourceExhausted,
               "here", "at most 19 pixels", "got 4 x 5", "max_pixels");
  EXPECT_EQ(decode_png(seed_bytes("rgb.png"), "here", {.max_pixels = 20}).num_elements(), 60);
  // Header of an image of 10000 x 10000 pixels. Python's zlib.crc32 computed its checksum.
  const std::string bomb(
      "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x27\x10\0\0\x27\x10\x08\x02\0\0\0"
      "\x35\x2c\xf5\x70",
      33);
  EXPECT_ERROR(decode_png(bomb, "here"), kDataLoss, "here", "offset");
}

// libpng would allocate 16 GiB for rows of this width.
TEST(PngFile, ExcessiveWidthIsRefusedBeforeRowAllocation) {
  const std::string wide(
      "\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x7f\xff\xff\xff"
      "\x00\x00\x00\x01\x08\x06\x00\x00\x00\xa0\x36\x33\xdd\x00\x00\x00\x00\x49\x44\x41"
      "\x54\x35\xaf\x06\x1e",
      45);
  EXPECT_ERROR(decode_png(wide, "here"), kResourceExhausted, "here", "got 1 x 2147483647");
}

TEST(PngFile, EncodeRefusesUnsupportedTensors) {
  EXPECT_INVALID(encode_png(Tensor::zeros({2, 2, 3})), "encode_png", "uint8", "float32",
                 "[2, 2, 3]", "call cast()");
  EXPECT_INVALID(encode_png(Tensor::zeros({2, 2}, DType::kUInt8)), "encode_png", "[2, 2]");
  EXPECT_INVALID(encode_png(Tensor::zeros({2, 2, 5}, DType::kUInt8)), "encode_png",
                 "1 to 4 channels, got 5");
  EXPECT_INVALID(encode_png(Tensor::zeros({0, 2, 3}, DType::kUInt8)), "encode_png", "[0, 2, 3]");
}

TEST(DecodeImage, ErrorNamesUnsupportedFormat) {
  EXPECT_ERROR(decode_image("GIF89a", "here"), kUnimplemented, "here", "got GIF",
               "convert the file");
  EXPECT_ERROR(decode_image("RIFF....WEBP", "here"), kUnimplemented, "got WebP");
  EXPECT_ERROR(decode_image("", "here"), kDataLoss, "got an empty file");
}

std::string flat_picture(int value, int width = 3, int height = 2) {
  return encode_png(picture_of(
      [&](int, int) {
        return std::vector<int>{value, value, 2 * value};
      },
      width, height));
}

void put(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_bytes(path, bytes);
}

/// Writes a folder with classes cats (images 10, 11, 12) and dogs (20, 21), and with files that are
/// not images.
std::string pets() {
  const std::string folder = empty_folder();
  put(folder + "/dogs/b.png", flat_picture(21, 5, 5));
  put(folder + "/dogs/a.PNG", flat_picture(20));
  put(folder + "/cats/y.png", flat_picture(11));
  put(folder + "/cats/x.png", flat_picture(10));
  put(folder + "/cats/z/deep.png", flat_picture(12));
  put(folder + "/cats/notes.txt", "none");
  put(folder + "/cats/.hidden.png", "none");
  put(folder + "/.git/a.png", "none");
  put(folder + "/list.csv", "none");
  return folder;
}

ImageFolderOptions small() {
  ImageFolderOptions options;
  options.image_size = {4, 6};
  return options;
}

/// Returns the first value of each image, which identifies the image.
std::vector<int> pictures_in(const Dataset& dataset) {
  std::vector<int> numbers;
  for (const Element& element : dataset) {
    numbers.push_back(static_cast<int>(element[0].to_doubles()[0]));
  }
  return numbers;
}

TEST(ImageFolderDataset, LabelsImagesByFolder) {
  const ImageFolder folder = image_folder(pets(), small());
  EXPECT_THAT(folder.class_names, ElementsAre("cats", "dogs"));
  EXPECT_THAT(folder.labels, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_EQ(folder.paths.size(), 5u);
  EXPECT_EQ(folder.dataset.cardinality(), 5);
  EXPECT_THAT(pictures_in(folder.dataset), ElementsAre(10, 11, 12, 20, 21));
  const Element first = *folder.dataset.begin();
  EXPECT_THAT(first.names(), ElementsAre("features", "labels"));
  EXPECT_EQ(first[0].shape(), (Shape{4, 6, 3}));
  EXPECT_EQ(first[0].dtype(), DType::kFloat32);
  EXPECT_EQ(first[0].to_doubles()[2], 20);
  EXPECT_EQ(first[1].dtype(), DType::kInt64);
  EXPECT_EQ(first[1].shape(), Shape{});
}

TEST(ImageFolderDataset, DecodesInParallelAndResumesAtAnyPosition) {
  ImageFolderOptions options = small();
  options.num_parallel_calls = 3;
  const Dataset dataset = image_folder(pets(), options).dataset;
  EXPECT_THAT(pictures_in(dataset), ElementsAre(10, 11, 12, 20, 21));
  auto elements = dataset.iterate();
  elements->skip(3);
  EXPECT_EQ(elements->next()->at("labels").item_int(), 1);
  EXPECT_EQ(drain(*elements).size(), 1u);
}

TEST(ImageFolderDataset, ReturnsRequestedColorModeDTypeAndLabels) {
  const std::string folder = pets();
  ImageFolderOptions options = small();
  options.color_mode = ColorMode::kGrayscale;
  options.dtype = DType::kUInt8;
  options.label_mode = LabelMode::kCategorical;
  const Element first = *image_folder(folder, options).dataset.begin();
  EXPECT_EQ(first[0].shape(), (Shape{4, 6, 1}));
  EXPECT_EQ(first[0].dtype(), DType::kUInt8);
  EXPECT_EQ(first[0].to_doubles()[0], 11);  // gray value: 0.886 * 10 + 0.114 * 20
  EXPECT_EQ(numbers_of(first[1]), (std::vector<std::int64_t>{1, 0}));
  options.label_mode = LabelMode::kBinary;
  options.class_names = {"dogs", "cats"};
  const ImageFolder reversed = image_folder(folder, options);
  EXPECT_THAT(reversed.labels, ElementsAre(0, 0, 1, 1, 1));
  EXPECT_EQ(reversed.dataset.begin()->at("labels").shape(), (Shape{1}));
  options.class_names = {};
  options.label_mode = LabelMode::kNone;
  const ImageFolder unlabelled = image_folder(folder, options);
  EXPECT_EQ(unlabelled.dataset.begin()->size(), 1u);
  EXPECT_EQ(unlabelled.paths.size(), 5u);
  EXPECT_THAT(unlabelled.class_names, ElementsAre());
}

TEST(ImageFolderDataset, EveryImageIsInEitherTrainingOrValidationSubset) {
  const std::string folder = empty_folder();
  for (int i = 0; i < 10; ++i) {
    put(folder + (i < 5 ? "/a/" : "/b/") + std::to_string(i) + ".png", flat_picture(10 * i));
  }
  ImageFolderOptions options = small();
  options.seed = 3;
  const std::vector<int> all = pictures_in(image_folder(folder, options).dataset);
  options.validation_split = 0.25;
  options.subset = Subset::kTraining;
  const ImageFolder training = image_folder(folder, options);
  options.subset = Subset::kValidation;
  const ImageFolder validation = image_folder(folder, options);
  EXPECT_EQ(training.paths.size(), 8u);  // the other int(0.25 * 10) are for validation
  std::vector<int> both = pictures_in(training.dataset);
  for (int number : pictures_in(validation.dataset)) both.push_back(number);
  EXPECT_EQ(both, all);
  EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), 10u);
  EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
  for (std::size_t i = 0; i < training.paths.size(); ++i) {
    EXPECT_EQ(training.labels[i], all[i] >= 50 ? 1 : 0);
  }
}

TEST(ImageFolderDataset, ErrorNamesDamagedImageAndIterationContinues) {
  const std::string folder = pets();
  put(folder + "/cats/y.png", flat_picture(11).substr(0, 50));
  auto elements = image_folder(folder, small()).dataset.iterate();
  elements->next();
  EXPECT_ERROR(elements->next(), kDataLoss, folder + "/cats/y.png", "offset");
  EXPECT_EQ(drain(*elements).size(), 3u);
}

TEST(ImageFolderDataset, RefusesFoldersWithoutClassesOrImages) {
  const std::string folder = empty_folder();
  EXPECT_ERROR(image_folder(folder), kNotFound, folder, "a folder per class", "kNone");
  std::filesystem::create_directories(folder + "/a");
  EXPECT_ERROR(image_folder(folder), kNotFound, "class 'a'", folder + "/a", ".png", "got none",
               "class_names");
  EXPECT_ERROR(image_folder("/nowhere"), kNotFound, "/nowhere");
  // Keras accepts a class without images; here it is an error, so that no class is silently lost.
  put(folder + "/b/1.png", flat_picture(1));
  put(folder + "/a/notes.txt", "no picture");
  EXPECT_ERROR(image_folder(folder), kNotFound, "class 'a'", folder + "/a");
  ImageFolderOptions others;
  others.class_names = {"b"};
  EXPECT_EQ(image_folder(folder, others).paths.size(), 1u);
  others.class_names = {};
  others.label_mode = LabelMode::kNone;
  EXPECT_EQ(image_folder(folder, others).paths.size(), 1u);
  put(folder + "/a/b.gif", "GIF89a");
  EXPECT_ERROR(image_folder(folder), kUnimplemented, folder + "/a/b.gif", "convert");
}

TEST(ImageFolderDataset, RefusesInvalidOptions) {
  const std::string folder = pets();
  const auto refuse = [&](ErrorCode code, const std::vector<std::string>& parts, auto change) {
    ImageFolderOptions options = small();
    change(options);
    expect_error(code, parts, [&] { image_folder(folder, options); });
  };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  refuse(kInvalid, {"image_size", "0 x 6"}, [](auto& options) { options.image_size.height = 0; });
  refuse(kInvalid, {"kUnchanged"},
         [](auto& options) { options.color_mode = ColorMode::kUnchanged; });
  refuse(kInvalid, {"float32 or uint8, got int64"},
         [](auto& options) { options.dtype = DType::kInt64; });
  refuse(kInvalid, {"validation_split", "got 1"}, [](auto& options) {
    options.validation_split = 1;
    options.subset = Subset::kTraining;
  });
  refuse(kInvalid, {"together"}, [](auto& options) { options.validation_split = 0.5; });
  refuse(kInvalid, {"together"}, [](auto& options) { options.subset = Subset::kTraining; });
  refuse(kInvalid, {"expected a seed", "same seed"}, [](auto& options) {
    options.validation_split = 0.5;
    options.subset = Subset::kTraining;
  });
  refuse(kInvalid, {"at least one image in the subset", "0.1"}, [](auto& options) {
    options.validation_split = 0.1;
    options.subset = Subset::kValidation;
    options.seed = 1;
  });
  refuse(kInvalid, {"kBinary", "[dogs]"}, [](auto& options) {
    options.label_mode = LabelMode::kBinary;
    options.class_names = {"dogs"};
  });
  refuse(ErrorCode::kNotFound, {"'birds'", "[cats, dogs]"},
         [](auto& options) { options.class_names = {"birds"}; });
  refuse(kInvalid, {"'dogs' is named twice"}, [](auto& options) {
    options.class_names = {"dogs", "dogs"};
  });
  refuse(kInvalid, {"num_parallel_calls", "got 0"},
         [](auto& options) { options.num_parallel_calls = 0; });
}

}  // namespace tutti::testing::png_image_test

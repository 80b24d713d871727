// Folders of pictures: classes, labels, splits and what is refused. Not part of builds without
// libpng.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/data/dataset_values.h"
#include "tests/data/image_seeds.h"
#include "tutti/data/image.h"

namespace tutti {
namespace png_image_folder_test {

using namespace data_test;
using testing::ElementsAre;

std::string flat_picture(int value, int width = 3, int height = 2) {
  return encode_png(image_seeds::picture_of(
      [&](int, int) {
        return std::vector<int>{value, value, 2 * value};
      },
      width, height));
}

void put(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_bytes(path, bytes);
}

/// Classes cats (10, 11, 12) and dogs (20, 21), with things that are no pictures.
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

/// The first value of each picture: which one it is.
std::vector<int> pictures_in(const Dataset& dataset) {
  std::vector<int> numbers;
  for (const Element& element : dataset) {
    numbers.push_back(static_cast<int>(element[0].to_doubles()[0]));
  }
  return numbers;
}

TEST(ImageFolders, LabelPicturesByTheirFolders) {
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

TEST(ImageFolders, DecodeInParallelAndResumeAnywhere) {
  ImageFolderOptions options = small();
  options.num_parallel_calls = 3;
  const Dataset dataset = image_folder(pets(), options).dataset;
  EXPECT_THAT(pictures_in(dataset), ElementsAre(10, 11, 12, 20, 21));
  auto elements = dataset.iterate();
  elements->skip(3);
  EXPECT_EQ(elements->next()->at("labels").item_int(), 1);
  EXPECT_EQ(data_test::drain(*elements).size(), 1u);
}

TEST(ImageFolders, GiveColorsTypesAndLabelsThatAreAskedFor) {
  const std::string folder = pets();
  ImageFolderOptions options = small();
  options.color_mode = ColorMode::kGrayscale;
  options.dtype = DType::kUInt8;
  options.label_mode = LabelMode::kCategorical;
  const Element first = *image_folder(folder, options).dataset.begin();
  EXPECT_EQ(first[0].shape(), (Shape{4, 6, 1}));
  EXPECT_EQ(first[0].dtype(), DType::kUInt8);
  EXPECT_EQ(first[0].to_doubles()[0], 11);  // 0.886 * 10 + 0.114 * 20
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

TEST(ImageFolders, SplitIntoPartsThatAreTheWhole) {
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
  EXPECT_EQ(training.paths.size(), 8u);  // int(0.25 * 10) are held back
  std::vector<int> both = pictures_in(training.dataset);
  for (int number : pictures_in(validation.dataset)) both.push_back(number);
  EXPECT_EQ(both, all);
  EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), 10u);
  EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
  for (std::size_t i = 0; i < training.paths.size(); ++i) {
    EXPECT_EQ(training.labels[i], all[i] >= 50 ? 1 : 0);
  }
}

TEST(ImageFolders, RefuseADamagedPictureByItsPathAndGoOn) {
  const std::string folder = pets();
  put(folder + "/cats/y.png", flat_picture(11).substr(0, 50));
  auto elements = image_folder(folder, small()).dataset.iterate();
  elements->next();
  EXPECT_ERROR(elements->next(), kDataLoss, folder + "/cats/y.png", "offset");
  EXPECT_EQ(data_test::drain(*elements).size(), 3u);
}

TEST(ImageFolders, RefuseFoldersWithoutClassesOrPictures) {
  const std::string folder = empty_folder();
  EXPECT_ERROR(image_folder(folder), kNotFound, folder, "a folder per class", "kNone");
  std::filesystem::create_directories(folder + "/a");
  EXPECT_ERROR(image_folder(folder), kNotFound, "class 'a'", folder + "/a", ".png", "got none",
               "class_names");
  EXPECT_ERROR(image_folder("/nowhere"), kNotFound, "/nowhere");
  // Keras reads such a class as one without pictures; here nothing is trained on half the classes.
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

TEST(ImageFolders, RefuseOptionsThatDoNotFit) {
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
  refuse(kInvalid, {"both subsets", "0.1"}, [](auto& options) {
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

}  // namespace png_image_folder_test
}  // namespace tutti

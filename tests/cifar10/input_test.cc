// The input of the CIFAR-10 tutorial: decoding, distortions, batches of towers, made-up pictures.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/cifar10_input.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/file.h"
#include "data/image_sets.h"
#include "examples/cifar10/synthetic_images.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

using namespace examples::cifar10;

namespace input_test {

std::string folder_for(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "tutti_cifar10_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

/// `count` pictures; pixel (x, y) of colour c is value(picture, y, x, c). Labels count up.
template <class Value>
ImageData pictures(std::int64_t count, const Value& value) {
  MutableTensor images({count, 32, 32, 3}, DType::kUInt8, Device{});
  MutableTensor labels({count}, DType::kUInt8, Device{});
  std::uint8_t* next = images.span<std::uint8_t>().data();
  for (std::int64_t i = 0; i < count; ++i) {
    labels.span<std::uint8_t>()[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i % 10);
    for (std::int64_t y = 0; y < 32; ++y) {
      for (std::int64_t x = 0; x < 32; ++x) {
        for (std::int64_t c = 0; c < 3; ++c) *next++ = static_cast<std::uint8_t>(value(i, y, x, c));
      }
    }
  }
  return {images.freeze(), labels.freeze()};
}

/// The first `count` distorted pictures, [24, 24, 3] each.
std::vector<Tensor> distorted(const ImageData& data, std::int64_t count, std::uint64_t seed = 1,
                              int threads = 1) {
  std::vector<Tensor> images;
  for (const Element& batch :
       distorted_inputs(data, {.batch_size = 8, .seed = seed, .num_threads = threads})) {
    for (std::int64_t i = 0; i < 8; ++i) {
      images.push_back(batch[0].detached_rows(i, 1).detached_reshape({24, 24, 3}));
      if (static_cast<std::int64_t>(images.size()) == count) return images;
    }
  }
  return images;
}

float at(const Tensor& image, std::int64_t y, std::int64_t x, std::int64_t c) {
  return image.host_span<float>()[static_cast<std::size_t>((y * 24 + x) * 3 + c)];
}

}  // namespace input_test

// cifar10_input_test.py: three records of label and constant planes, then the end.
TEST(Cifar10Input, RecordsBecomeImagesInDepthMajorOrder) {
  const std::array<int, 3> labels = {9, 3, 0};
  const int colours[3][3] = {{255, 0, 0}, {0, 255, 0}, {0, 0, 255}};
  std::string bytes;
  for (std::size_t i = 0; i < 3; ++i) {
    bytes += static_cast<char>(labels[i]);
    for (const int colour : colours[i]) bytes.append(1024, static_cast<char>(colour));
  }
  const ImageData data = parse_cifar10(bytes, "three records");
  auto elements = Dataset::from_tensor_slices({data.images, data.labels}).iterate();
  for (std::size_t i = 0; i < 3; ++i) {
    const auto element = elements->next();
    ASSERT_TRUE(element);
    EXPECT_EQ((*element)[1].item_int(), labels[i]);
    EXPECT_EQ((*element)[0].shape(), (Shape{32, 32, 3}));
    const auto values = (*element)[0].host_span<std::uint8_t>();
    for (std::size_t k = 0; k < values.size(); ++k) ASSERT_EQ(values[k], colours[i][k % 3]);
  }
  EXPECT_FALSE(elements->next());
}

// One bright pixel at (16, 16) and a darker one right of it tell the place of the crop (0 .. 8 on
// each axis) and whether it was mirrored. Standardising keeps the order of values.
TEST(Cifar10Input, CropsAreUniformAndHalfAreMirrored) {
  using namespace input_test;
  const ImageData data = pictures(8, [](auto, auto y, auto x, auto) {
    if (y == 16 && x == 16) return 250;
    return y == 16 && x == 17 ? 200 : 20;
  });
  std::array<int, 9> rows{}, columns{};
  int mirrored = 0;
  constexpr int kCount = 4000;
  for (const Tensor& image : distorted(data, kCount)) {
    std::int64_t brightest = 0;
    for (std::int64_t pixel = 1; pixel < 24 * 24; ++pixel) {
      const auto values = image.host_span<float>();
      if (values[static_cast<std::size_t>(3 * pixel)] >
          values[static_cast<std::size_t>(3 * brightest)])
        brightest = pixel;
    }
    const std::int64_t y = brightest / 24, x = brightest % 24;
    const bool is_mirrored = at(image, y, x - 1, 0) > at(image, y, x + 1, 0);
    mirrored += is_mirrored ? 1 : 0;
    ++rows.at(static_cast<std::size_t>(16 - y));
    ++columns.at(static_cast<std::size_t>(16 - (is_mirrored ? 23 - x : x)));
  }
  // Five standard deviations of a binomial count.
  const double of_nine = 5.0 * std::sqrt(kCount * (1.0 / 9.0) * (8.0 / 9.0));
  for (std::size_t offset = 0; offset <= 8; ++offset) {
    EXPECT_NEAR(rows[offset], kCount / 9.0, of_nine) << offset;
    EXPECT_NEAR(columns[offset], kCount / 9.0, of_nine) << offset;
  }
  EXPECT_NEAR(mirrored, kCount * 0.5, 5.0 * std::sqrt(kCount * 0.25));
}

// Contrast changes what lies within a colour by its factor, and not the distance between the means
// of colours: their ratio is the factor, which standardising keeps. (Brightness it takes away;
// tests/data/augment_test.cc sees to it.)
TEST(Cifar10Input, ContrastFactorsAreUniformBetween02And18) {
  using namespace input_test;
  const ImageData data = pictures(
      8, [](auto, auto y, auto, auto c) { return (c == 0 ? 150 : 90) + (y % 2 == 0 ? 10 : -10); });
  constexpr int kCount = 2000;
  double sum = 0.0, lowest = 10.0, highest = 0.0;
  for (const Tensor& image : distorted(data, kCount)) {
    const double within = std::abs(at(image, 0, 0, 1) - at(image, 1, 0, 1)) / 20.0;
    double between = 0.0;  // of the means of two colours, over a pair of rows
    for (std::int64_t y = 0; y < 2; ++y) between += (at(image, y, 0, 0) - at(image, y, 0, 1)) / 2.0;
    const double factor = within / (between / 60.0);
    sum += factor;
    lowest = std::min(lowest, factor);
    highest = std::max(highest, factor);
  }
  EXPECT_GE(lowest, 0.2 - 1e-4);
  EXPECT_LT(lowest, 0.21);
  EXPECT_LT(highest, 1.8 + 1e-4);
  EXPECT_GT(highest, 1.79);
  EXPECT_NEAR(sum / kCount, 1.0, 5.0 * (1.6 / std::sqrt(12.0)) / std::sqrt(kCount));
}

TEST(Cifar10Input, ImagesAreStandardized) {
  using namespace input_test;
  const ImageData data = pictures(
      8, [](auto i, auto y, auto x, auto c) { return (7 * i + 5 * y + 3 * x + 31 * c) % 256; });
  for (const Tensor& image : distorted(data, 32)) {
    double sum = 0.0, squares = 0.0;
    for (const float value : image.host_span<float>()) {
      sum += value;
      squares += double{value} * double{value};
    }
    EXPECT_NEAR(sum / 1728.0, 0.0, 1e-5);
    EXPECT_NEAR(squares / 1728.0, 1.0, 1e-4);
  }
  // A picture of one colour has no deviation: it is divided by 1 / sqrt(1728) and stays 0.
  for (const Tensor& image : distorted(pictures(8, [](auto, auto, auto, auto) { return 9; }), 8)) {
    for (const float value : image.host_span<float>()) EXPECT_NEAR(value, 0.0f, 1e-3f);
  }
}

TEST(Cifar10Input, SeedDeterminesTheImages) {
  using namespace input_test;
  const testing::HangWatchdog watchdog("threads that distort pictures", std::chrono::seconds(60));
  const ImageData data = pictures(
      24, [](auto i, auto y, auto x, auto c) { return (29 * i + 5 * y + 3 * x + c) % 256; });
  const std::vector<Tensor> first = distorted(data, 64, 1);
  const std::vector<Tensor> threads = distorted(data, 64, 1, 3);
  const std::vector<Tensor> other = distorted(data, 64, 2);
  int equal = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    testing::expect_same_bits(first[i], threads[i]);
    equal += first[i].to_doubles() == other[i].to_doubles() ? 1 : 0;
  }
  EXPECT_EQ(equal, 0);
}

TEST(Cifar10Input, TowersGetDifferentImages) {
  using namespace input_test;
  const testing::HangWatchdog watchdog("input of two towers", std::chrono::seconds(60));
  const ImageData data = pictures(40, [](auto, auto y, auto x, auto) { return y + x; });
  // Labels number the pictures.
  std::vector<std::uint8_t> numbers;
  for (std::uint8_t i = 0; i < 40; ++i) numbers.push_back(i);
  const ImageData numbered{data.images, Tensor::from<std::uint8_t>({40}, numbers)};
  CentralStorageStrategy strategy({.local = {.devices = "cpu:0-1"}});
  DistributedDataset batches =
      strategy.distribute_dataset(distorted_inputs(numbered, {.batch_size = 20, .seed = 3}));
  int step = 0;
  std::set<double> epoch;
  for (const PerReplica<Batch>& batch : batches) {
    for (const Batch& tower : batch) {
      EXPECT_EQ(tower.features().shape(), (Shape{10, 24, 24, 3}));
      for (const double number : tower.labels().to_doubles()) {
        EXPECT_TRUE(epoch.insert(number).second) << "picture " << number << " twice";
      }
    }
    if (++step == 2) break;  // an epoch
  }
  EXPECT_EQ(epoch.size(), 40u);
}

TEST(Cifar10Input, EvaluationTakesTheMiddleOfEachPictureOnce) {
  using namespace input_test;
  const ImageData data = pictures(
      10, [](auto i, auto y, auto x, auto c) { return (11 * i + 7 * y + x + 50 * c) % 256; });
  std::int64_t row = 0;
  for (const Element& batch : evaluation_inputs(data, 4)) {
    for (std::int64_t i = 0; i < batch.rows(); ++i, ++row) {
      EXPECT_EQ(batch[1].to_doubles()[static_cast<std::size_t>(i)], row % 10);
      std::vector<double> middle;  // rows and columns 4 .. 27
      for (std::int64_t k = 0; k < 1728; ++k) {
        const std::int64_t y = k / 72 + 4, x = k / 3 % 24 + 4, c = k % 3;
        middle.push_back(static_cast<double>((11 * row + 7 * y + x + 50 * c) % 256));
      }
      double mean = 0.0, variance = 0.0;
      for (const double value : middle) mean += value / 1728.0;
      for (const double value : middle) variance += (value - mean) * (value - mean) / 1728.0;
      for (double& value : middle) value = (value - mean) / std::sqrt(variance);
      testing::expect_tensor(batch[0].detached_rows(i, 1), {1, 24, 24, 3}, middle, 1e-5);
    }
  }
  EXPECT_EQ(row, 10);
}

TEST(Cifar10Input, TheQueueHoldsTwoFifthsOfAnEpochAndThreeBatches) {
  EXPECT_EQ(queue_size(128), 20'384);
}

TEST(Cifar10Input, MissingFilesAreNamedWithRemedy) {
  const std::string folder = input_test::folder_for("missing");
  testing::expect_error(ErrorCode::kNotFound,
                        {"failed to find file: data_batch_1.bin", folder, "cifar-10-binary.tar.gz",
                         "--data_dir", "--synthetic"},
                        [&] { read_images(folder, Split::kTrain); });
}

TEST(SyntheticImages, AreWrittenOnceInCifar10sFormat) {
  namespace fs = std::filesystem;
  const std::string data_dir = input_test::folder_for("synthetic");
  const SyntheticOptions small{.per_training_file = 20, .per_test_file = 30};
  const std::string folder = make_synthetic_images(data_dir, small);
  EXPECT_EQ(folder, data_dir + "/synthetic");
  EXPECT_EQ(fs::file_size(folder + "/data_batch_5.bin"), 20u * 3073u);
  const ImageData train = read_images(folder, Split::kTrain);
  EXPECT_EQ(train.images.shape(), (Shape{100, 32, 32, 3}));
  EXPECT_EQ(read_images(folder, Split::kTest).labels.num_elements(), 30);
  const std::vector<double> labels = train.labels.to_doubles();
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(labels[i], i % 10);
  // The same bytes again; files that are there stay.
  EXPECT_EQ(read_file(folder + "/data_batch_2.bin").substr(3073, 3073), synthetic_record(2, 1));
  const auto written = fs::last_write_time(folder + "/data_batch_2.bin");
  make_synthetic_images(data_dir, small);
  EXPECT_EQ(fs::last_write_time(folder + "/data_batch_2.bin"), written);
  fs::resize_file(folder + "/data_batch_2.bin", 100);
  make_synthetic_images(data_dir, small);
  EXPECT_EQ(read_file(folder + "/data_batch_2.bin").substr(3073, 3073), synthetic_record(2, 1));
}

// Pictures of a class are alike, also when mirrored, which a distortion does.
TEST(SyntheticImages, ClassesLookDifferent) {
  const auto amplitude = [](const std::string& record, int waves, bool upright, int colour) {
    double sine = 0.0, cosine = 0.0;
    for (int pixel = 0; pixel < 1024; ++pixel) {
      const int place = upright ? pixel % 32 : pixel / 32;
      const double angle = 2.0 * 3.14159265358979 * waves * place / 32.0;
      const auto index = static_cast<std::size_t>(1 + 1024 * colour + pixel);
      const double value = static_cast<unsigned char>(record[index]);
      sine += value * std::sin(angle);
      cosine += value * std::cos(angle);
    }
    return std::hypot(sine, cosine) / 512.0;
  };
  for (std::uint64_t i = 0; i < 20; ++i) {
    const std::string record = synthetic_record(1, i);
    const int label = record[0];
    for (int waves = 2; waves < 7; ++waves) {
      for (const bool upright : {false, true}) {
        const bool is_class = waves == 2 + label % 5 && upright == (label >= 5);
        double strongest = 0.0;
        for (int colour = 0; colour < 3; ++colour) {
          strongest = std::max(strongest, amplitude(record, waves, upright, colour));
        }
        EXPECT_EQ(strongest > 30.0, is_class) << i << " " << waves << " " << upright;
      }
    }
  }
}

}  // namespace
}  // namespace tutti

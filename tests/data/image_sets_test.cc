// Tests readers of IDX files, MNIST folders and CIFAR-10's fixed-length records, and their errors.
// SPDX-License-Identifier: Apache-2.0
#include "data/image_sets.h"
#include "core/file.h"
#include "data/input_file.h"
#include "tests/data/dataset_values.h"
#include "tests/support/scopes.h"
#include "tutti/data/readers.h"
#include "tutti/data/records.h"
#include "tutti/data/tar.h"

namespace tutti::testing::mnist_test {

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (int value : values) text.push_back(static_cast<char>(value));
  return text;
}

TEST(Idx, ReadsUnsignedBytes) {
  const Tensor tensor =
      parse_idx(bytes({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255}), "f");
  EXPECT_EQ(tensor.dtype(), DType::kUInt8);
  EXPECT_EQ(tensor.shape(), (Shape{2, 3}));
  EXPECT_THAT(tensor.to_doubles(), ElementsAre(1, 2, 3, 4, 5, 255));
}

// The bytes are the IEEE 754 and two's complement encodings, written by hand.
TEST(Idx, ReadsBigEndianNumbers) {
  const Tensor ints = parse_idx(
      bytes({0, 0, 0x0C, 1, 0, 0, 0, 2, 0x01, 0x02, 0x03, 0x04, 0xFF, 0xFF, 0xFF, 0xFE}), "f");
  EXPECT_EQ(ints.dtype(), DType::kInt32);
  EXPECT_THAT(ints.to_doubles(), ElementsAre(16909060, -2));
  const Tensor floats =
      parse_idx(bytes({0, 0, 0x0D, 1, 0, 0, 0, 2, 0x3F, 0x80, 0, 0, 0xC0, 0x20, 0, 0}), "f");
  EXPECT_EQ(floats.dtype(), DType::kFloat32);
  EXPECT_THAT(floats.to_doubles(), ElementsAre(1.0, -2.5));
  const Tensor doubles =
      parse_idx(bytes({0, 0, 0x0E, 1, 0, 0, 0, 1, 0x3F, 0xF8, 0, 0, 0, 0, 0, 0}), "f");
  EXPECT_EQ(doubles.dtype(), DType::kFloat64);
  EXPECT_THAT(doubles.to_doubles(), ElementsAre(1.5));
}

TEST(Idx, ReadsScalarsAndEmptyArrays) {
  EXPECT_EQ(parse_idx(bytes({0, 0, 8, 0, 9}), "f").item_int(), 9);
  const Tensor none = parse_idx(bytes({0, 0, 8, 2, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF}), "f");
  EXPECT_EQ(none.shape(), (Shape{0, 4294967295}));
}

struct Malformed {
  const char* name;
  std::string bytes;
  std::vector<std::string> parts;
  ErrorCode code = ErrorCode::kDataLoss;
};

class MalformedIdx : public TestWithParam<Malformed> {};

TEST_P(MalformedIdx, ErrorHasPathOffsetAndExpectedAndActualValues) {
  const std::string path = empty_folder() + "/some-images";
  write_bytes(path, GetParam().bytes);
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(path);
  parts.push_back("expected");
  expect_error(GetParam().code, parts, [&] { read_idx(path); });
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedIdx,
    Values(Malformed{"Empty", "", {"offset 0", "at least 4 bytes, got 0"}},
           Malformed{"HalfMagic", bytes({0, 0}), {"offset 2", "got 2"}},
           Malformed{"NotIdx", "PK\x03\x04zip", {"offset 0", "magic", "80 and 75"}},
           Malformed{"UnknownType", bytes({0, 0, 7, 1, 0, 0, 0, 0}), {"offset 2", "got 7"}},
           Malformed{"SignedBytes",
                     bytes({0, 0, 9, 1, 0, 0, 0, 1, 1}),
                     {"offset 2", "signed byte", "convert the file"},
                     ErrorCode::kUnimplemented},
           Malformed{"Shorts",
                     bytes({0, 0, 11, 1, 0, 0, 0, 1, 1, 1}),
                     {"offset 2", "short", "convert the file"},
                     ErrorCode::kUnimplemented},
           Malformed{
               "TooManyDimensions", bytes({0, 0, 8, 9, 0, 0}), {"offset 3", "at most 8", "got 9"}},
           Malformed{"HalfHeader",
                     bytes({0, 0, 8, 2, 0, 0, 0, 1, 0}),
                     {"offset 9", "12 bytes for 2 dimensions, got 9"}},
           Malformed{"Truncated",
                     bytes({0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3}),
                     {"offset 11", "ends early", "expected 4 bytes", "[4] of uint8", "got 3"}},
           Malformed{"Overlong",
                     bytes({0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3}),
                     {"offset 10", "continues after", "expected 2 bytes", "got 3"}},
           Malformed{"HalfNumber",
                     bytes({0, 0, 13, 1, 0, 0, 0, 1, 1, 2, 3}),
                     {"offset 11", "expected 4 bytes", "got 3"}},
           Malformed{
               "HugeDimensions",
               bytes({0, 0, 14, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
               {"offset 4", "4294967295"}},
           Malformed{"HugeDimensionsAndZero",
                     bytes({0,   0,   8,   4,   0,   0,   0,   0,   255, 255,
                            255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
                     {"offset 4", "4294967295"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Idx, ErrorNamesMissingFile) {
  EXPECT_ERROR(read_idx("/nowhere/images"), kNotFound, "/nowhere/images");
}

constexpr const char* kFashionMnist = "/usr/share/datasets/fashion-mnist";

bool has_fashion_mnist() {
  return std::filesystem::exists(std::string(kFashionMnist) + "/train-images-idx3-ubyte.gz");
}

/// Returns an IDX file with byte values.
std::string idx(std::vector<int> dims, int num_values, int first) {
  std::string text = {'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (int dim : dims) text += std::string{'\0', '\0', '\0', static_cast<char>(dim)};
  for (int i = 0; i < num_values; ++i) text.push_back(static_cast<char>(first + i));
  return text;
}

std::string small_folder() {
  const std::string folder = empty_folder();
  write_bytes(folder + "/t10k-images-idx3-ubyte", idx({2, 2, 3}, 12, 0));
  write_bytes(folder + "/t10k-labels-idx1-ubyte", idx({2}, 2, 8));
  return folder;
}

TEST(Mnist, ReadsImagesWithOneChannelAndLabels) {
  const ImageData data = read_mnist(small_folder(), Split::kTest);
  EXPECT_EQ(data.images.shape(), (Shape{2, 2, 3, 1}));
  EXPECT_EQ(data.images.dtype(), DType::kUInt8);
  EXPECT_THAT(data.labels.to_doubles(), ElementsAre(8, 9));
}

TEST(Mnist, ReadsFolderFromEnvironmentVariable) {
  const std::string folder = small_folder();
  const test_scopes::EnvironmentScope environment("TUTTI_DATA_DIR", folder);
  EXPECT_EQ(read_mnist("", Split::kTest).labels.num_elements(), 2);
}

TEST(Mnist, ErrorNamesMissingFileAndRemedy) {
  const std::string folder = small_folder();
  EXPECT_ERROR(read_mnist(folder, Split::kTrain), kNotFound, "train-images-idx3-ubyte", folder,
               "dataset-fashion-mnist", "TUTTI_DATA_DIR");
}

TEST(Mnist, RefusesMismatchedImageAndLabelFiles) {
  const std::string folder = small_folder();
  write_bytes(folder + "/t10k-labels-idx1-ubyte", idx({3}, 3, 0));
  EXPECT_ERROR(read_mnist(folder, Split::kTest), kDataLoss, folder, "labels", "expected 2 labels",
               "got 3");
  write_bytes(folder + "/t10k-labels-idx1-ubyte", idx({2, 1}, 2, 0));
  EXPECT_ERROR(read_mnist(folder, Split::kTest), kDataLoss, folder, "rank 1", "[2, 1]");
  write_bytes(folder + "/t10k-images-idx3-ubyte", idx({2}, 2, 0));
  EXPECT_ERROR(read_mnist(folder, Split::kTest), kDataLoss, folder, "rank 3", "[2]");
}

TEST(ImageDataset, ScalesPixelsToUnitRangeAndWidensLabels) {
  const Dataset dataset = load_mnist(small_folder(), Split::kTest);
  EXPECT_EQ(dataset.cardinality(), 2);
  const Element first = *dataset.begin();
  EXPECT_EQ(first.at("features").shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(first.at("features").dtype(), DType::kFloat32);
  EXPECT_EQ(first.at("features").host_span<float>()[5], 5.0f / 255.0f);
  EXPECT_EQ(first.at("labels").dtype(), DType::kInt64);
  EXPECT_EQ(first.at("labels").shape(), Shape{});
  EXPECT_EQ(first.at("labels").item_int(), 8);
}

// The expected values are the output of these commands:
//   zcat train-labels-idx1-ubyte.gz | tail -c +9 | head -c 8 | od -An -tu1     ->  9 0 0 3 0 2 7 2
//   zcat t10k-labels-idx1-ubyte.gz | tail -c +9 | head -c 8 | od -An -tu1      ->  9 2 1 1 6 1 4 6
//   Sum of all pixels: zcat train-images-idx3-ubyte.gz | tail -c +17 | od -An -v -tu1 -w1 |
//     awk '{s += $1} END {printf "%.0f", s}'  ->  3431114169 (with t10k-images:  573469082)
//   Pixels 400 .. 407 of training image 0: tail -c +417 | head -c 8  ->  0 0 0 0 237 226 217 223
TEST(FashionMnist, HasExpectedSizesLabelsAndPixels) {
  if (!has_fashion_mnist()) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  auto sum = [](const Tensor& images) {
    std::uint64_t total = 0;
    for (std::uint8_t value : images.host_span<std::uint8_t>()) total += value;
    return total;
  };
  const ImageData train = read_mnist("", Split::kTrain);
  EXPECT_EQ(train.images.shape(), (Shape{60000, 28, 28, 1}));
  EXPECT_EQ(train.labels.shape(), (Shape{60000}));
  EXPECT_THAT(numbers_of(train.labels.detached_rows(0, 8)), ElementsAre(9, 0, 0, 3, 0, 2, 7, 2));
  EXPECT_EQ(sum(train.images), 3431114169u);
  const auto pixels = train.images.host_span<std::uint8_t>().subspan(400, 8);
  EXPECT_THAT(pixels, ElementsAre(0, 0, 0, 0, 237, 226, 217, 223));
  const ImageData test = read_mnist("", Split::kTest);
  EXPECT_EQ(test.images.shape(), (Shape{10000, 28, 28, 1}));
  EXPECT_THAT(numbers_of(test.labels.detached_rows(0, 8)), ElementsAre(9, 2, 1, 1, 6, 1, 4, 6));
  EXPECT_EQ(sum(test.images), 573469082u);
}

TEST(FashionMnist, ClassesAreEquallyFrequentInShuffledPass) {
  if (!has_fashion_mnist()) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const Dataset dataset = load_mnist("", Split::kTest).shuffle(10000, 1).batch(128);
  std::vector<int> counts(10);
  std::int64_t batches = 0;
  for (const Element& batch : dataset) {
    for (std::int64_t label : batch.at("labels").host_span<std::int64_t>()) {
      ++counts.at(static_cast<std::size_t>(label));
    }
    ++batches;
  }
  EXPECT_EQ(batches, 79);
  EXPECT_THAT(counts, Each(1000));
}

TEST(FixedLengthRecords, SkipsHeaderAndFooterOfEveryFile) {
  const std::string folder = empty_folder();
  write_bytes(folder + "/1",
              "HHH\x01\x02\x03\xff"
              "F");
  write_bytes(folder + "/2", "HHHF");
  write_bytes(folder + "/3",
              "HHH\x05\x06"
              "F");
  const Dataset dataset = fixed_length_record_dataset(list_files(folder + "/*"), 2,
                                                      {.header_bytes = 3, .footer_bytes = 1});
  EXPECT_EQ(rows_of(dataset), (Rows{{1, 2}, {3, 255}, {5, 6}}));
  EXPECT_EQ(dataset.begin()->at("features").dtype(), DType::kUInt8);
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
}

// The first file is larger than the read buffer, so skipping many records requires a seek.
TEST(FixedLengthRecords, ResumesAtAnyPosition) {
  constexpr std::int64_t kSize = 10000;
  const std::string folder = empty_folder();
  std::string bytes;
  for (char number = 0; number < 40; ++number) bytes += std::string(kSize, number);
  write_bytes(folder + "/1", bytes);
  write_bytes(folder + "/2", bytes.substr(0, 3 * kSize));
  const Dataset dataset = fixed_length_record_dataset({folder + "/1", folder + "/2"}, kSize);
  const Rows all = rows_of(dataset);
  ASSERT_EQ(all.size(), 43u);
  for (std::size_t start = 0; start <= all.size() + 1; ++start) {
    auto elements = dataset.iterate();
    elements->skip(static_cast<std::int64_t>(start / 2));
    elements->skip(static_cast<std::int64_t>(start - start / 2));
    const Rows rest(all.begin() + static_cast<std::ptrdiff_t>(std::min(start, all.size())),
                    all.end());
    EXPECT_EQ(drain(*elements), rest) << start;
  }
}

TEST(FixedLengthRecords, RefusesTruncatedFiles) {
  const std::string path = empty_folder() + "/cut";
  const auto read = [&] { rows_of(fixed_length_record_dataset({path}, 4, {2, 1})); };
  write_bytes(path, "HH12345678abcF");
  expect_error(ErrorCode::kDataLoss, {path, "offset 10", "expected 4 bytes, got 3"}, read);
  write_bytes(path, "HH");
  expect_error(ErrorCode::kDataLoss, {path, "offset 2", "expected 3 bytes, got 2"}, read);
  std::filesystem::remove(path);
  expect_error(ErrorCode::kNotFound, {path}, read);
  EXPECT_ERROR(rows_of(fixed_length_record_dataset({"/usr"}, 4)), kUnavailable, "cannot read",
               "directory");
}

TEST(FixedLengthRecords, RefusesInvalidSizes) {
  EXPECT_INVALID(fixed_length_record_dataset({}, 4), "at least one path");
  EXPECT_INVALID(fixed_length_record_dataset({"a"}, 0), "record_bytes >= 1", "got 0");
  EXPECT_INVALID(fixed_length_record_dataset({"a"}, 1, {.header_bytes = -1}), "-1");
}

TEST(InputFile, ReadsAndSkipsUpToEndOfFile) {
  internal::InputFile file = internal::InputFile::of_bytes("abcdef", "here");
  std::string bytes;
  EXPECT_EQ(file.read(bytes, 2), 2u);
  EXPECT_EQ(file.peek(), 'c');
  EXPECT_EQ(file.get(), 'c');
  EXPECT_EQ(file.skip(1), 1u);
  EXPECT_EQ(file.offset(), 4u);
  EXPECT_EQ(file.read(bytes, UINT64_MAX), 2u);
  EXPECT_EQ(bytes, "abef");
  EXPECT_EQ(file.skip(5), 0u);
  EXPECT_EQ(file.get(), -1);
  EXPECT_EQ(file.offset(), 6u);
}

/// Returns a CIFAR-10 record whose red, green and blue planes are constant, as in
/// cifar10_input_test.py.
std::string record(int label, int red, int green, int blue) {
  std::string bytes(1, static_cast<char>(label));
  for (int value : {red, green, blue}) bytes.append(32 * 32, static_cast<char>(value));
  return bytes;
}

TEST(Cifar10, ConvertsPlanarChannelsToChannelsLast) {
  std::string bytes = record(1, 0, 0, 0);
  auto value = [](std::size_t row, std::size_t column, std::size_t channel) {
    return static_cast<std::uint8_t>(row * 7 + column * 3 + channel * 101);
  };
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t y = 0; y < 32; ++y) {
      for (std::size_t x = 0; x < 32; ++x) {
        bytes[1 + c * 1024 + y * 32 + x] = static_cast<char>(value(y, x, c));
      }
    }
  }
  const ImageData data = parse_cifar10(bytes, "memory");
  const auto image = data.images.host_span<std::uint8_t>();
  for (std::size_t y = 0; y < 32; ++y) {
    for (std::size_t x = 0; x < 32; ++x) {
      for (std::size_t c = 0; c < 3; ++c) ASSERT_EQ(image[(y * 32 + x) * 3 + c], value(y, x, c));
    }
  }
}

TEST(Cifar10, RefusesMalformedFiles) {
  const std::string path = empty_folder() + "/bad.bin";
  const std::string one = record(2, 1, 1, 1);
  write_bytes(path, "");
  EXPECT_ERROR(read_cifar10_file(path), kDataLoss, path, "offset 0", "3073 bytes",
               "got 0 bytes after 0 records");
  write_bytes(path, one + one.substr(0, 3072));
  EXPECT_ERROR(read_cifar10_file(path), kDataLoss, path, "offset 3073",
               "got 3072 bytes after 1 records");
  write_bytes(path, one + record(10, 1, 1, 1));
  EXPECT_ERROR(read_cifar10_file(path), kDataLoss, path, "offset 3073", "label below 10", "got 10");
  EXPECT_ERROR(read_cifar10_file(path + "x"), kNotFound, path + "x");
}

TEST(Cifar10, FindsFilesInFolderOrSubfolder) {
  for (const char* inner : {"", "/cifar-10-batches-bin"}) {
    const std::string folder = empty_folder();
    std::filesystem::create_directories(folder + inner);
    for (int i = 1; i <= 5; ++i) {
      write_bytes(folder + inner + "/data_batch_" + std::to_string(i) + ".bin",
                  record(i, 0, 0, 0) + record(i + 1, 0, 0, i));
    }
    write_bytes(folder + inner + "/test_batch.bin", record(7, 1, 2, 3));
    const ImageData train = read_cifar10(folder, Split::kTrain);
    EXPECT_EQ(train.images.shape(), (Shape{10, 32, 32, 3}));
    EXPECT_THAT(train.labels.to_doubles(), ElementsAre(1, 2, 2, 3, 3, 4, 4, 5, 5, 6));
    EXPECT_EQ(train.images.host_span<std::uint8_t>()[3072 * 9 + 2], 5);
    EXPECT_EQ(read_cifar10(folder, Split::kTest).labels.item_int(), 7);
  }
}

// Reads a tar archive without unpacking it. archives_test.cc tests a compressed archive.
TEST(Cifar10, ReadsArchiveByFolderOrPath) {
  const std::string folder = empty_folder();
  const std::string archive = folder + "/cifar-10-binary.tar.gz";
  TarWriter writer(archive);
  writer.write("cifar-10-batches-bin/batches.meta.txt", "airplane\n");
  for (int i = 5; i >= 1; --i) {  // the order of files does not matter
    writer.write("cifar-10-batches-bin/data_batch_" + std::to_string(i) + ".bin",
                 record(i, 0, 0, i));
  }
  writer.write("cifar-10-batches-bin/test_batch.bin", record(7, 1, 2, 3));
  writer.close();
  for (const std::string& directory : {folder, archive}) {
    const ImageData train = read_cifar10(directory, Split::kTrain);
    EXPECT_EQ(train.images.shape(), (Shape{5, 32, 32, 3}));
    EXPECT_THAT(train.labels.to_doubles(), ElementsAre(1, 2, 3, 4, 5));
    EXPECT_EQ(train.images.host_span<std::uint8_t>()[3072 * 4 + 2], 5);
    EXPECT_EQ(read_cifar10(directory, Split::kTest).labels.item_int(), 7);
  }
  // Unpacked files next to the archive take precedence.
  write_bytes(folder + "/test_batch.bin", record(4, 1, 2, 3));
  EXPECT_EQ(read_cifar10(folder, Split::kTest).labels.item_int(), 4);
  EXPECT_EQ(read_cifar10(folder, Split::kTrain).labels.num_elements(), 5);
}

TEST(Cifar10, TruncatedOrUnrelatedArchiveIsRefused) {
  const std::string folder = empty_folder();
  const std::string archive = folder + "/cifar-10-binary.tar.gz";
  TarWriter writer(archive);
  writer.write("cifar-10-batches-bin/data_batch_1.bin", record(1, 0, 0, 0));
  writer.close();
  EXPECT_ERROR(read_cifar10(folder, Split::kTrain), kNotFound,
               "failed to find file: data_batch_2.bin", archive, "binary version");
  const std::string bytes = read_file(archive);
  write_bytes(archive, bytes.substr(0, 2000));
  EXPECT_ERROR(read_cifar10(folder, Split::kTrain), kDataLoss, archive);
}

TEST(Cifar10, ErrorNamesMissingFileAndSearchedPaths) {
  const std::string folder = empty_folder();
  EXPECT_ERROR(read_cifar10(folder, Split::kTrain), kNotFound,
               "failed to find file: data_batch_1.bin", folder, "cifar-10-batches-bin",
               "cifar-10-binary.tar.gz", "download the archive");
  for (int i = 1; i <= 4; ++i) {
    write_bytes(folder + "/data_batch_" + std::to_string(i) + ".bin", record(i, 0, 0, 0));
  }
  EXPECT_ERROR(read_cifar10(folder, Split::kTrain), kNotFound,
               "failed to find file: data_batch_5.bin");
}

}  // namespace tutti::testing::mnist_test

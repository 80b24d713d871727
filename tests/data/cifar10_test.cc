// Files of equal records, and CIFAR-10's among them.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "data/image_sets.h"
#include "data/input_file.h"
#include "tests/data/dataset_values.h"
#include "tutti/data/records.h"
#include "tutti/data/tar.h"

namespace tutti {
namespace cifar10_test {

using namespace data_test;

TEST(FixedLengthRecords, YieldsTheRecordsOfAllFilesWithoutHeadersAndFooters) {
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

// Larger than the buffer, so that skipping seeks.
TEST(FixedLengthRecords, ResumesAnywhere) {
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
    EXPECT_EQ(data_test::drain(*elements), rest) << start;
  }
}

TEST(FixedLengthRecords, RefusesFilesThatAreCut) {
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

TEST(FixedLengthRecords, RefusesSizesThatCannotBe) {
  EXPECT_ERROR(fixed_length_record_dataset({}, 4), kInvalidArgument, "at least one path");
  EXPECT_ERROR(fixed_length_record_dataset({"a"}, 0), kInvalidArgument,
               "record_bytes of at least 1", "got 0");
  EXPECT_ERROR(fixed_length_record_dataset({"a"}, 1, {.header_bytes = -1}), kInvalidArgument, "-1");
}

TEST(InputFile, ReadsAndSkipsToTheEndAndNoFurther) {
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

using testing::ElementsAre;

/// A record as cifar10_input_test.py makes it: constant planes.
std::string record(int label, int red, int green, int blue) {
  std::string bytes(1, static_cast<char>(label));
  for (int value : {red, green, blue}) bytes.append(32 * 32, static_cast<char>(value));
  return bytes;
}

TEST(Cifar10, PutsEveryValueInItsPlace) {
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

TEST(Cifar10, FindsTheFilesInTheFolderOrTheOneInside) {
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

// "Good": the archive as it is downloaded, without unpacking it by hand. (Packed:
// gzip_input_test.cc.)
TEST(Cifar10, ReadsArchiveByFolderOrPath) {
  const std::string folder = empty_folder();
  const std::string archive = folder + "/cifar-10-binary.tar.gz";
  TarWriter writer(archive);
  writer.write("cifar-10-batches-bin/batches.meta.txt", "airplane\n");
  for (int i = 5; i >= 1; --i) {  // in any order
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
  // Files that were unpacked beside it are taken first.
  write_bytes(folder + "/test_batch.bin", record(4, 1, 2, 3));
  EXPECT_EQ(read_cifar10(folder, Split::kTest).labels.item_int(), 4);
  EXPECT_EQ(read_cifar10(folder, Split::kTrain).labels.num_elements(), 5);
}

TEST(Cifar10, TruncatedOrForeignArchiveIsNamed) {
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

TEST(Cifar10, MissingFileIsNamedWithSearchedPlaces) {
  const std::string folder = empty_folder();
  EXPECT_ERROR(read_cifar10(folder, Split::kTrain), kNotFound,
               "failed to find file: data_batch_1.bin", folder, "cifar-10-batches-bin",
               "cifar-10-binary.tar.gz", "try");
  for (int i = 1; i <= 4; ++i) {
    write_bytes(folder + "/data_batch_" + std::to_string(i) + ".bin", record(i, 0, 0, 0));
  }
  EXPECT_ERROR(read_cifar10(folder, Split::kTrain), kNotFound,
               "failed to find file: data_batch_5.bin");
}

}  // namespace cifar10_test
}  // namespace tutti

// Files of equal records: what is yielded, resuming anywhere, and files that are cut.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include "data/input_file.h"
#include "tests/data/dataset_values.h"

namespace tutti {
namespace fixed_length_records_test {

using data_test::empty_folder;
using data_test::expect_error;
using data_test::Rows;
using data_test::rows_of;
using data_test::write_bytes;

TEST(FixedLengthRecords, YieldsTheRecordsOfAllFilesWithoutHeadersAndFooters) {
  const std::string folder = empty_folder("");
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
  const std::string folder = empty_folder("");
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
  const std::string path = empty_folder("") + "/cut";
  const auto read = [&] { rows_of(fixed_length_record_dataset({path}, 4, {2, 1})); };
  write_bytes(path, "HH12345678abcF");
  expect_error(ErrorCode::kDataLoss, {path, "offset 10", "expected 4 bytes, got 3"}, read);
  write_bytes(path, "HH");
  expect_error(ErrorCode::kDataLoss, {path, "offset 2", "expected 3 bytes, got 2"}, read);
  std::filesystem::remove(path);
  expect_error(ErrorCode::kNotFound, {path}, read);
  expect_error(ErrorCode::kUnavailable, {"cannot read", "directory"},
               [] { rows_of(fixed_length_record_dataset({"/usr"}, 4)); });
}

TEST(FixedLengthRecords, RefusesSizesThatCannotBe) {
  expect_error(ErrorCode::kInvalidArgument, {"at least one path"},
               [] { fixed_length_record_dataset({}, 4); });
  expect_error(ErrorCode::kInvalidArgument, {"record_bytes of at least 1", "got 0"},
               [] { fixed_length_record_dataset({"a"}, 0); });
  expect_error(ErrorCode::kInvalidArgument, {"-1"},
               [] { fixed_length_record_dataset({"a"}, 1, {.header_bytes = -1}); });
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

}  // namespace fixed_length_records_test
}  // namespace tutti

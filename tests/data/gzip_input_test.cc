// Compressed CSV, tar and record files.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "data/input_file.h"
#include "tests/data/dataset_values.h"
#include "tutti/data/csv.h"
#include "tutti/data/npy.h"
#include "tutti/data/readers.h"
#include "tutti/data/records.h"
#include "tutti/data/tar.h"

namespace tutti {
namespace gzip_input_test {

using data_test::empty_folder;
using data_test::expect_error;
using data_test::Rows;
using data_test::rows_of;

std::string packed_file(const std::string& name, const std::string& bytes) {
  const std::string path = empty_folder(name) + "/" + name;
  data_test::write_bytes(path, internal::deflate_bytes(bytes, internal::DeflateFormat::kGzip));
  return path;
}

TEST(PackedInput, IsReadLikePlainFiles) {
  EXPECT_EQ(rows_of(csv_dataset({packed_file("a.csv.gz", "x\n1\n2\n")})), (Rows{{1}, {2}}));
  EXPECT_EQ(
      rows_of(fixed_length_record_dataset({packed_file("a.gz", "H\x01\x02\x03\x04")}, 2, {1})),
      (Rows{{1, 2}, {3, 4}}));
  const std::string tar = read_file(std::string(TUTTI_FUZZ_SEEDS) + "/tar/gnu.tar");
  EXPECT_EQ(rows_of(tar_dataset({packed_file("a.tar.gz", tar)})).size(), 4u);
}

TEST(PackedInput, ReadsCifar10ArchiveAsDownloaded) {
  const std::string tar = empty_folder("") + "/plain.tar";
  TarWriter writer(tar);
  writer.write("cifar-10-batches-bin/test_batch.bin",
               std::string(1, '\x07') + std::string(3072, 'x'));
  writer.close();
  const std::string packed = packed_file("cifar-10-binary.tar.gz", read_file(tar));
  const std::string folder = std::filesystem::path(packed).parent_path().string();
  for (const std::string& place : {folder, packed}) {
    const ImageData data = read_cifar10(place, Split::kTest);
    EXPECT_EQ(data.labels.item_int(), 7);
    EXPECT_EQ(data.images.host_span<std::uint8_t>()[3071], 'x');
  }
  const std::string bytes = read_file(packed);
  data_test::write_bytes(packed, bytes.substr(0, bytes.size() / 2));
  expect_error(ErrorCode::kDataLoss, {packed}, [&] { read_cifar10(folder, Split::kTest); });
}

// Larger than one piece of the file.
TEST(PackedInput, IsUnpackedWhole) {
  std::string csv = "x\n";
  for (int i = 0; i < 100000; ++i) csv += std::to_string(i * 7919 % 100003) + "\n";
  const std::string path = packed_file("a.csv.gz", csv);
  ASSERT_GT(std::filesystem::file_size(path), 100000u);
  const CsvTable table = read_csv({path});
  EXPECT_EQ(table.rows.rows(), 100000);
  EXPECT_EQ(table.rows[0].host_span<std::int64_t>()[99999], 99999LL * 7919 % 100003);
}

TEST(PackedInput, IsRefusedWhereItIsCut) {
  const std::string path = packed_file("a.csv.gz", "x\n1\n2\n");
  data_test::write_bytes(path, read_file(path).substr(0, 15));
  expect_error(ErrorCode::kDataLoss, {path, "ends early"}, [&] { csv_dataset({path}); });
}

// 300 MB of zeros in a third of a megabyte.
TEST(PackedInput, BombsAreRefusedByEveryReader) {
  const std::string path = packed_file("bomb.gz", std::string(300 << 20, '\0'));
  ASSERT_LT(std::filesystem::file_size(path), 400000u);
  const std::vector<std::function<void()>> readers = {
      [&] { csv_dataset({path}); },
      [&] { read_csv({path}); },
      [&] { read_idx(path); },
      [&] { read_cifar10_file(path); },
      [&] { rows_of(tar_dataset({path})); },
      [&] { rows_of(tfrecord_dataset({path}, {Compression::kGzip})); },
      [&] { fixed_length_record_dataset({path}, 1024).iterate()->skip(1); },
  };
  for (const auto& read : readers) {
    expect_error(ErrorCode::kResourceExhausted,
                 {path, "compressed bytes become", "InputLimits::max_expansion"}, read);
  }
  const InputLimits raised{.max_expansion = 1100};
  EXPECT_EQ(rows_of(tar_dataset({path}, raised)).size(), 0u);
  expect_error(ErrorCode::kDataLoss, {path + ":1: ", "bytes that are all 0"},
               [&] { csv_dataset({path}, {.limits = raised}); });
  expect_error(ErrorCode::kResourceExhausted,
               {path, "at most 1000 bytes", "InputLimits::max_bytes"},
               [&] { read_idx(path, {.max_bytes = 1000}); });
}

}  // namespace gzip_input_test
}  // namespace tutti

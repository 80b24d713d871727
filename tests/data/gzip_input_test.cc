// Compressed CSV, tar and record files. Not part of builds without zlib.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"
#include "tutti/core/file.h"
#include "tutti/data/csv.h"
#include "tutti/data/fixed_length_records.h"
#include "tutti/data/gzip_file.h"
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

}  // namespace gzip_input_test
}  // namespace tutti

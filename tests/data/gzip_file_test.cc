// Compressed files: read whatever their name, refused when damaged.
// SPDX-License-Identifier: Apache-2.0
#include "data/input_file.h"

#include "tests/data/dataset_values.h"
#include "tests/data/packed_idx_file.h"
#include "tutti/data/readers.h"

namespace tutti {
namespace gzip_file_test {

using data_test::empty_folder;
using data_test::expect_error;
using data_test::packed_idx_file;
using data_test::write_bytes;
using testing::ElementsAre;

TEST(Gzip, ReadsCompressedFilesWhateverTheirName) {
  const std::string path = empty_folder("") + "/labels";
  write_bytes(path, packed_idx_file());
  EXPECT_THAT(read_idx(path).to_doubles(), ElementsAre(5, 6, 7));
}

TEST(Gzip, RefusesDamagedCompressedFiles) {
  const std::string path = empty_folder("") + "/labels.gz";
  for (std::size_t length : {std::size_t{2}, std::size_t{12}, packed_idx_file().size() - 1}) {
    write_bytes(path, packed_idx_file().substr(0, length));
    expect_error(ErrorCode::kDataLoss, {path, "offset", "ends early"}, [&] { read_idx(path); });
  }
  std::string wrong_sum = packed_idx_file();
  wrong_sum[wrong_sum.size() - 8] ^= 1;
  write_bytes(path, wrong_sum);
  expect_error(ErrorCode::kDataLoss, {path, "offset", "incorrect data check"},
               [&] { read_idx(path); });
  write_bytes(path, packed_idx_file() + "rest");
  expect_error(ErrorCode::kDataLoss, {path, "offset", "expected gzip data"},
               [&] { read_idx(path); });
}

}  // namespace gzip_file_test
}  // namespace tutti

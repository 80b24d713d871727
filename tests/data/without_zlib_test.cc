// Builds without zlib: compressed files are refused by name. Not part of builds with it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"
#include "tests/data/packed_idx_file.h"
#include "tutti/data/readers.h"

namespace tutti {
namespace without_zlib_test {

TEST(WithoutZlib, CompressedFilesAreRefusedWithTheRemedy) {
  const std::string path = data_test::empty_folder("") + "/labels.gz";
  data_test::write_bytes(path, data_test::packed_idx_file());
  data_test::expect_error(ErrorCode::kUnimplemented,
                          {path, "this build reads no compressed files", "zlib1g-dev"},
                          [&] { read_idx(path); });
}

}  // namespace without_zlib_test
}  // namespace tutti

// Compressed TFRecord and npz files.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"
#include "tests/data/npy_seeds.h"
#include "tutti/data/npy.h"
#include "tutti/data/records.h"

namespace tutti {
namespace gzip_records_test {

using data_test::empty_folder;
using data_test::expect_error;
using testing::ElementsAre;

std::vector<std::string> records_in(const Dataset& dataset) {
  std::vector<std::string> records;
  for (const Element& element : dataset) records.emplace_back(bytes_of(element[0]));
  return records;
}

void write_packed(const std::string& path, Compression how,
                  const std::vector<std::string>& records) {
  TFRecordWriter writer(path, {how});
  for (const std::string& record : records) writer.write(record);
  writer.close();
}

TEST(PackedTFRecord, ReadsWhatItWrote) {
  const std::vector<std::string> records = {"first", "", std::string(3000000, 'x'), "last"};
  const std::string path = empty_folder("") + "/a.tfrecord";
  for (Compression how : {Compression::kGzip, Compression::kZlib}) {
    write_packed(path, how, records);
    EXPECT_LT(std::filesystem::file_size(path), 30000u);
    EXPECT_EQ(records_in(tfrecord_dataset({path}, {how})), records);
  }
}

TEST(PackedTFRecord, ReadAsPlainItNamesTheRemedy) {
  const std::string path = empty_folder("") + "/a.tfrecord";
  write_packed(path, Compression::kGzip, {"abc"});
  expect_error(ErrorCode::kDataLoss, {path, "record 0", "offset", "try Compression::kGzip"},
               [&] { records_in(tfrecord_dataset({path})); });
}

TEST(PackedNpz, ReadsDeflatedFilesOfPython) { npy_seeds::expect_arrays_of_python("deflated.npz"); }

}  // namespace gzip_records_test
}  // namespace tutti

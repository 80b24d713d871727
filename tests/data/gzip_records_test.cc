// Compressed TFRecord and npz files. Not part of builds without zlib.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"
#include "tutti/data/npy.h"
#include "tutti/data/tfrecord.h"

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

// tests/fuzz/seeds/npy: written by Python's struct and zipfile.
TEST(PackedNpz, ReadsDeflatedFilesOfPython) {
  for (const char* name : {"deflated.npz"}) {
    const NamedTensors read = read_npz(std::string(TUTTI_FUZZ_SEEDS) + "/npy/" + name);
    ASSERT_EQ(read.size(), 2u);
    EXPECT_EQ(read[0].first, "a");
    EXPECT_THAT(read[0].second.to_doubles(), ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_EQ(read[1].second.shape(), (Shape{2, 2}));
    EXPECT_THAT(read[1].second.to_doubles(), ElementsAre(1, 3, 2, 4));  // in Fortran order
  }
}

}  // namespace gzip_records_test
}  // namespace tutti

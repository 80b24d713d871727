// TFRecord files: round trips, published checksums, and every way to be damaged.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include "core/file.h"
#include "data/format_bytes.h"
#include "data/input_file.h"
#include "tests/data/dataset_values.h"
#include "tests/data/resumable_iterator.h"

namespace tutti {
namespace tfrecord_test {

using data_test::empty_folder;
using data_test::expect_error;
using data_test::write_bytes;
using testing::ElementsAre;

// "123456789": the check value in the catalogue of CRCs; of the masked one turned by 15 bits, and
// TFRecord's constant added.
TEST(Crc, EqualsPublishedValues) {
  EXPECT_EQ(internal::crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(internal::masked_crc32c("123456789"), 0xc78ab0e5u);
}

// Written by a bitwise CRC in Python: struct.pack('<Q', 3), its masked sum, b'abc', its masked sum.
std::string record_abc() {
  return std::string("\003\000\000\000\000\000\000\000\260\231\111\016\141\142\143\156\127\361\041",
                     19);
}

std::vector<std::string> texts_of(const Dataset& dataset) {
  std::vector<std::string> texts;
  for (const Element& element : dataset) texts.emplace_back(bytes_of(element[0]));
  return texts;
}

TEST(TFRecord, WritesTheFormat) {
  const std::string path = empty_folder("") + "/a.tfrecord";
  TFRecordWriter writer(path);
  writer.write("abc");
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.close();
  EXPECT_EQ(read_file(path), record_abc());
  expect_error(ErrorCode::kFailedPrecondition, {path, "closed"}, [&] { writer.write("x"); });
}

TEST(TFRecord, ReadsWhatItWrote) {
  const std::vector<std::string> records = {"first", "", std::string(100000, 'x'), "last"};
  const std::string path = empty_folder("") + "/a.tfrecord";
  TFRecordWriter writer(path);
  for (const std::string& record : records) writer.write(record);
  writer.close();
  EXPECT_EQ(texts_of(tfrecord_dataset({path})), records);
}

TEST(TFRecord, ReadsFilesOneAfterTheOtherAndResumesAnywhere) {
  const std::string folder = empty_folder("");
  write_bytes(folder + "/1", record_abc() + record_abc());
  write_bytes(folder + "/2", "");
  write_bytes(folder + "/3", record_abc());
  const Dataset dataset = tfrecord_dataset({folder + "/1", folder + "/2", folder + "/3"});
  EXPECT_THAT(texts_of(dataset), ElementsAre("abc", "abc", "abc"));
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  for (std::int64_t start = 0; start <= 4; ++start) {
    auto elements = dataset.iterate();
    elements->skip(start);
    EXPECT_EQ(data_test::drain(*elements).size(),
              static_cast<std::size_t>(std::max<std::int64_t>(3 - start, 0)));
  }
  expect_error(ErrorCode::kInvalidArgument, {"at least one path"}, [] { tfrecord_dataset({}); });
}

TEST(TFRecord, RefusesDamagedFilesNamingRecordAndOffset) {
  const std::string path = empty_folder("") + "/broken";
  const std::string good = record_abc();
  auto expect_refused = [&](const std::string& bytes, std::vector<std::string> parts) {
    write_bytes(path, bytes);
    parts.push_back(path);
    expect_error(ErrorCode::kDataLoss, parts, [&] { texts_of(tfrecord_dataset({path})); });
  };
  for (std::size_t length = 1; length < good.size(); ++length) {
    expect_refused(good + good.substr(0, length), {"record 1", "ends within", "offset"});
  }
  std::string wrong_length = good;
  wrong_length[0] ^= 1;
  expect_refused(wrong_length, {"record 0", "offset 8", "length's checksum", "expected", "got"});
  std::string wrong_data = good;
  wrong_data[12] ^= 1;
  expect_refused(good + wrong_data, {"record 1", "offset 34", "data's checksum"});
}

}  // namespace tfrecord_test
}  // namespace tutti

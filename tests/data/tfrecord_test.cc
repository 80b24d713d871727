// Tests TFRecord files and tf.train.Example: round trips, published checksums, every kind of
// damage.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "data/input_file.h"
#include "tests/data/dataset_values.h"
#include "tests/data/resumable_iterator.h"
#include "tutti/data/records.h"

namespace tutti::tfrecord_test {

using namespace data_test;
using testing::ElementsAre;

// The check value of "123456789" from the catalogue of CRCs; the masked one is rotated by 15 bits
// plus TFRecord's constant.
TEST(Crc, EqualsPublishedValues) {
  EXPECT_EQ(internal::crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(internal::masked_crc32c("123456789"), 0xc78ab0e5u);
}

// Record written with a bitwise CRC in Python: struct.pack('<Q', 3), its masked CRC, b'abc', its
// masked CRC.
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
  const std::string path = empty_folder() + "/a.tfrecord";
  TFRecordWriter writer(path);
  writer.write("abc");
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.close();
  EXPECT_EQ(read_file(path), record_abc());
  EXPECT_ERROR(writer.write("x"), kFailedPrecondition, path, "closed");
}

TEST(TFRecord, ReadsWhatItWrote) {
  const std::vector<std::string> records = {"first", "", std::string(100000, 'x'), "last"};
  const std::string path = empty_folder() + "/a.tfrecord";
  TFRecordWriter writer(path);
  for (const std::string& record : records) writer.write(record);
  writer.close();
  EXPECT_EQ(texts_of(tfrecord_dataset({path})), records);
}

TEST(TFRecord, ReadsFilesOneAfterTheOtherAndResumesAnywhere) {
  const std::string folder = empty_folder();
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
  EXPECT_INVALID(tfrecord_dataset({}), "at least one path");
}

TEST(TFRecord, RefusesDamagedFilesNamingRecordAndOffset) {
  const std::string path = empty_folder() + "/broken";
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

using Strings = std::vector<std::string>;
using Floats = std::vector<float>;
using Integers = std::vector<std::int64_t>;

// Example{features{feature{"a": int64_list [1, 300]}}}, encoded by hand as protobuf.
const std::string& packed_bytes() {
  static const std::string bytes =
      "\x0a\x0e\x0a\x0c\x0a\x01"
      "a\x12\x07\x1a\x05\x0a\x03\x01\xac\x02";
  return bytes;
}

TEST(Example, WritesTheBytesOfProtobuf) {
  EXPECT_EQ(serialize_example({{"a", Integers{1, 300}}}), packed_bytes());
  // 1.0f is 00 00 80 3f.
  EXPECT_EQ(serialize_example({{"f", Floats{1.0f}}}),
            std::string("\x0a\x0f\x0a\x0d\x0a\x01"
                        "f\x12\x08\x12\x06\x0a\x04\x00\x00\x80\x3f",
                        17));
  EXPECT_EQ(serialize_example({{"s", Strings{"xy"}}}),
            "\x0a\x0d\x0a\x0b\x0a\x01"
            "s\x12\x06\x0a\x04\x0a\x02xy");
}

TEST(Example, ReadsPackedAndUnpackedNumbers) {
  EXPECT_EQ(parse_example(packed_bytes(), "e"), (Example{{"a", Integers{1, 300}}}));
  const std::string unpacked =
      "\x0a\x0f\x0a\x0d\x0a\x01"
      "a\x12\x08\x1a\x06\x08\x01\x08\xac\x02\x01";
  const std::string good = unpacked.substr(0, unpacked.size() - 1);
  std::string exact = good;
  exact[1] = 0x0e;
  exact[3] = 0x0c;
  exact[8] = 0x07;
  exact[10] = 0x05;
  EXPECT_EQ(parse_example(exact, "e"), (Example{{"a", Integers{1, 300}}}));
}

TEST(Example, ReadsWhatItWroteAndTheLastValueOfAName) {
  const Example example = {{"", Integers{}},
                           {"floats", Floats{0.5f, -3.0f}},
                           {"integers", Integers{-1, INT64_MAX, INT64_MIN}},
                           {"none", Feature{}},
                           {"strings", Strings{"", std::string(300, 'x')}}};
  EXPECT_EQ(parse_example(serialize_example(example), "e"), example);
  const std::string two =
      serialize_example({{"a", Integers{1}}}) + serialize_example({{"a", Floats{2.0f}}});
  EXPECT_EQ(parse_example(two, "e"), (Example{{"a", Floats{2.0f}}}));
}

TEST(Example, EveryCutIsRefusedOrSmaller) {
  for (std::size_t length = 1; length < packed_bytes().size(); ++length) {
    EXPECT_ERROR(parse_example(packed_bytes().substr(0, length), "file.tfrecord"), kDataLoss,
                 "file.tfrecord", "offset", "expected", "got");
  }
  EXPECT_ERROR(parse_example("\x0b", "e"), kDataLoss, "offset 0", "type 3");
  EXPECT_ERROR(parse_example(std::string(11, '\xff'), "e"), kDataLoss, "offset 0",
               "at most 10 bytes");
}

TEST(Example, BecomesAnElement) {
  const Example example = {
      {"image", Strings{"\x01\x02\x03\x04"}}, {"label", Integers{7}}, {"w", Floats{1, 2, 3}}};
  const Element element = element_of(example,
                                     {{"image", DType::kUInt8, Shape{2, 2}},
                                      {"label", DType::kInt64, Shape{}},
                                      {"w", DType::kFloat32},
                                      {"missing", DType::kFloat32, Shape{}, Tensor(5.0f)}},
                                     "e");
  EXPECT_THAT(element.names(), ElementsAre("image", "label", "w", "missing"));
  EXPECT_EQ(element.at("image").shape(), (Shape{2, 2}));
  EXPECT_THAT(element.at("image").to_doubles(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(element.at("label").item_int(), 7);
  EXPECT_THAT(element.at("w").to_doubles(), ElementsAre(1, 2, 3));
  EXPECT_EQ(element.at("missing").item(), 5.0f);
}

TEST(Example, RefusesFeaturesThatDoNotFit) {
  const Example example = {{"a", Integers{1, 2}}, {"s", Strings{"x", "y"}}};
  EXPECT_ERROR(element_of(example, {{"b", DType::kInt64}}, "e"), kNotFound, "e: ", "'b'", "[a, s]",
               "default_value");
  EXPECT_INVALID(element_of(example, {{"a", DType::kFloat32}}, "e"), "'a'", "a float_list",
                 "got an int64_list");
  EXPECT_INVALID(element_of(example, {{"a", DType::kInt64, Shape{3}}}, "e"), "'a'", "3 values",
                 "got 2");
  EXPECT_INVALID(element_of(example, {{"s", DType::kUInt8}}, "e"), "'s'", "one string, got 2");
}

}  // namespace tutti::tfrecord_test

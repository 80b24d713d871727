// tf.train.Example: bytes by hand from the wire format, round trips, damaged bytes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include "tests/data/dataset_values.h"

namespace tutti {
namespace example_test {

using data_test::expect_error;
using testing::ElementsAre;

using Strings = std::vector<std::string>;
using Floats = std::vector<float>;
using Integers = std::vector<std::int64_t>;

// Example{features{feature{"a": int64_list [1, 300]}}}, by hand from the encoding of protobuf.
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

TEST(Example, ReadsWhatItWrote) {
  const Example example = {{"", Integers{}},
                           {"floats", Floats{0.5f, -3.0f}},
                           {"integers", Integers{-1, INT64_MAX, INT64_MIN}},
                           {"none", Feature{}},
                           {"strings", Strings{"", std::string(300, 'x')}}};
  EXPECT_EQ(parse_example(serialize_example(example), "e"), example);
}

TEST(Example, TheLastValueOfANameHolds) {
  const std::string two =
      serialize_example({{"a", Integers{1}}}) + serialize_example({{"a", Floats{2.0f}}});
  EXPECT_EQ(parse_example(two, "e"), (Example{{"a", Floats{2.0f}}}));
}

TEST(Example, EveryCutIsRefusedOrSmaller) {
  for (std::size_t length = 1; length < packed_bytes().size(); ++length) {
    expect_error(ErrorCode::kDataLoss, {"file.tfrecord", "offset", "expected", "got"},
                 [&] { parse_example(packed_bytes().substr(0, length), "file.tfrecord"); });
  }
  expect_error(ErrorCode::kDataLoss, {"offset 0", "type 3"}, [] { parse_example("\x0b", "e"); });
  expect_error(ErrorCode::kDataLoss, {"offset 0", "at most 10 bytes"},
               [] { parse_example(std::string(11, '\xff'), "e"); });
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
  expect_error(ErrorCode::kNotFound, {"e: ", "'b'", "[a, s]", "default_value"}, [&] {
    element_of(example, {{"b", DType::kInt64}}, "e");
  });
  expect_error(ErrorCode::kInvalidArgument, {"'a'", "a float_list", "got an int64_list"}, [&] {
    element_of(example, {{"a", DType::kFloat32}}, "e");
  });
  expect_error(ErrorCode::kInvalidArgument, {"'a'", "3 values", "got 2"}, [&] {
    element_of(example, {{"a", DType::kInt64, Shape{3}}}, "e");
  });
  expect_error(ErrorCode::kInvalidArgument, {"'s'", "one string, got 2"}, [&] {
    element_of(example, {{"s", DType::kUInt8}}, "e");
  });
}

}  // namespace example_test
}  // namespace tutti

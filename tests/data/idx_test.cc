// IDX files: the formats that are read, and every way to be damaged.
// SPDX-License-Identifier: Apache-2.0
#include "data/image_sets.h"

#include "tests/data/dataset_values.h"
#include "tutti/data/readers.h"

namespace tutti {
namespace idx_test {

using data_test::empty_folder;
using data_test::expect_error;
using data_test::write_bytes;
using testing::ElementsAre;

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (int value : values) text.push_back(static_cast<char>(value));
  return text;
}

TEST(Idx, ReadsUnsignedBytes) {
  const Tensor tensor =
      parse_idx(bytes({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255}), "f");
  EXPECT_EQ(tensor.dtype(), DType::kUInt8);
  EXPECT_EQ(tensor.shape(), (Shape{2, 3}));
  EXPECT_THAT(tensor.to_doubles(), ElementsAre(1, 2, 3, 4, 5, 255));
}

// The numbers are written out by hand from IEEE 754 and two's complement.
TEST(Idx, ReadsBigEndianNumbers) {
  const Tensor ints = parse_idx(
      bytes({0, 0, 0x0C, 1, 0, 0, 0, 2, 0x01, 0x02, 0x03, 0x04, 0xFF, 0xFF, 0xFF, 0xFE}), "f");
  EXPECT_EQ(ints.dtype(), DType::kInt32);
  EXPECT_THAT(ints.to_doubles(), ElementsAre(16909060, -2));
  const Tensor floats =
      parse_idx(bytes({0, 0, 0x0D, 1, 0, 0, 0, 2, 0x3F, 0x80, 0, 0, 0xC0, 0x20, 0, 0}), "f");
  EXPECT_EQ(floats.dtype(), DType::kFloat32);
  EXPECT_THAT(floats.to_doubles(), ElementsAre(1.0, -2.5));
  const Tensor doubles =
      parse_idx(bytes({0, 0, 0x0E, 1, 0, 0, 0, 1, 0x3F, 0xF8, 0, 0, 0, 0, 0, 0}), "f");
  EXPECT_EQ(doubles.dtype(), DType::kFloat64);
  EXPECT_THAT(doubles.to_doubles(), ElementsAre(1.5));
}

TEST(Idx, ReadsScalarsAndEmptyArrays) {
  EXPECT_EQ(parse_idx(bytes({0, 0, 8, 0, 9}), "f").item_int(), 9);
  const Tensor none = parse_idx(bytes({0, 0, 8, 2, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF}), "f");
  EXPECT_EQ(none.shape(), (Shape{0, 4294967295}));
}

struct Malformed {
  const char* name;
  std::string bytes;
  ErrorCode code;
  std::vector<std::string> parts;
};

class MalformedIdx : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedIdx, IsRefusedWithPathOffsetExpectedAndGot) {
  const std::string path = empty_folder("") + "/some-images";
  write_bytes(path, GetParam().bytes);
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(path);
  parts.push_back("expected");
  expect_error(GetParam().code, parts, [&] { read_idx(path); });
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedIdx,
    testing::Values(
        Malformed{"Empty", "", ErrorCode::kDataLoss, {"offset 0", "at least 4 bytes, got 0"}},
        Malformed{"HalfMagic", bytes({0, 0}), ErrorCode::kDataLoss, {"offset 2", "got 2"}},
        Malformed{
            "NoIdx", "PK\x03\x04zip", ErrorCode::kDataLoss, {"offset 0", "magic", "80 and 75"}},
        Malformed{"UnknownType",
                  bytes({0, 0, 7, 1, 0, 0, 0, 0}),
                  ErrorCode::kDataLoss,
                  {"offset 2", "got 7"}},
        Malformed{"SignedBytes",
                  bytes({0, 0, 9, 1, 0, 0, 0, 1, 1}),
                  ErrorCode::kUnimplemented,
                  {"offset 2", "signed byte", "try"}},
        Malformed{"Shorts",
                  bytes({0, 0, 11, 1, 0, 0, 0, 1, 1, 1}),
                  ErrorCode::kUnimplemented,
                  {"offset 2", "short", "try"}},
        Malformed{"TooManyDimensions",
                  bytes({0, 0, 8, 9, 0, 0}),
                  ErrorCode::kDataLoss,
                  {"offset 3", "at most 8", "got 9"}},
        Malformed{"HalfHeader",
                  bytes({0, 0, 8, 2, 0, 0, 0, 1, 0}),
                  ErrorCode::kDataLoss,
                  {"offset 9", "12 bytes for 2 dimensions, got 9"}},
        Malformed{"Truncated",
                  bytes({0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3}),
                  ErrorCode::kDataLoss,
                  {"offset 11", "ends early", "expected 4 bytes", "[4] of uint8", "got 3"}},
        Malformed{"Overlong",
                  bytes({0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3}),
                  ErrorCode::kDataLoss,
                  {"offset 10", "goes on", "expected 2 bytes", "got 3"}},
        Malformed{"HalfNumber",
                  bytes({0, 0, 13, 1, 0, 0, 0, 1, 1, 2, 3}),
                  ErrorCode::kDataLoss,
                  {"offset 11", "expected 4 bytes", "got 3"}},
        Malformed{"HugeDimensions",
                  bytes({0, 0, 14, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
                  ErrorCode::kDataLoss,
                  {"offset 4", "4294967295"}},
        Malformed{"HugeDimensionsAndZero",
                  bytes({0,   0,   8,   4,   0,   0,   0,   0,   255, 255,
                         255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
                  ErrorCode::kDataLoss,
                  {"offset 4", "4294967295"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Idx, NamesTheFileThatIsNotThere) {
  expect_error(ErrorCode::kNotFound, {"/nowhere/images"}, [] { read_idx("/nowhere/images"); });
}

}  // namespace idx_test
}  // namespace tutti

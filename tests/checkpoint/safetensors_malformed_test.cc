// Damaged safetensors files: each is refused, and the error says where and why.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "tests/checkpoint/checkpoint_test_util.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti {
namespace safetensors_malformed_test {

using checkpoint_test_util::empty_folder;
using checkpoint_test_util::expect_error;

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

std::string file_with(const std::string& header, std::size_t num_bytes) {
  return length_bytes(header.size()) + header + std::string(num_bytes, '\0');
}

/// One tensor 'w' with these members.
std::string tensor_header(const std::string& members) { return R"({"w":{)" + members + "}}"; }

struct Damage {
  const char* name;
  std::string bytes;
  std::vector<std::string> parts;
  ErrorCode code = ErrorCode::kDataLoss;
};

std::vector<Damage> damages() {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  return {
      {"Empty", "", {"offset 0", "at least 8 bytes, got 0"}},
      {"HalfLength", "\x08\0\0", {"offset 1", "got 1"}},
      {"HugeLength", std::string(8, '\xFF'), {"offset 0", "too long", "18446744073709551615"}},
      {"LongLength", length_bytes(100'000'001) + "{}", {"offset 0", "too long", "100000001"}},
      {"HalfHeader", length_bytes(50) + "{}", {"offset 10", "expected 50 bytes of header, got 2"}},
      {"EmptyHeader", length_bytes(0), {"offset 8"}},
      {"NoJson", file_with("{\"w\":", 0), {"offset 8", "JSON"}},
      {"NoObject", file_with("[1]", 0), {"offset 8", "JSON object"}},
      {"SpaceFirst", file_with(" {}", 0), {"offset 8", "JSON object"}},
      {"TwiceTheSameName", file_with("{" + a + "," + a + "}", 4), {"offset 8", "'a'", "twice"}},
      {"NoTensorObject", file_with(R"({"w":3})", 0), {"tensor 'w'"}},
      {"NoDType",
       file_with(tensor_header(R"("shape":[2],"data_offsets":[0,8])"), 8),
       {"tensor 'w'", "dtype"}},
      {"NoShape",
       file_with(tensor_header(R"("dtype":"F32","data_offsets":[0,8])"), 8),
       {"tensor 'w'", "shape"}},
      {"NoOffsets",
       file_with(tensor_header(R"("dtype":"F32","shape":[2])"), 8),
       {"tensor 'w'", "data_offsets"}},
      {"OneMemberTooMany", file_with(tensor_header(good + R"(,"x":1)"), 8), {"tensor 'w'", "'x'"}},
      {"UnknownDType",
       file_with(tensor_header(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), 8),
       {"tensor 'w'", "F33"}},
      {"QuarterPrecision",
       file_with(tensor_header(R"("dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4])"), 4),
       {"tensor 'w'", "F8_E5M2; expected F16, BF16, F32", "try"},
       ErrorCode::kUnimplemented},
      {"TooManyDimensions",
       file_with(tensor_header(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"),
                 1),
       {"tensor 'w'", "9 dimensions"},
       ErrorCode::kUnimplemented},
      {"NegativeDimension",
       file_with(tensor_header(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8),
       {"tensor 'w'", "-2"}},
      {"FractionalDimension",
       file_with(tensor_header(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), 8),
       {"tensor 'w'"}},
      {"HugeDimensions",
       file_with(
           tensor_header(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"),
           0),
       {"tensor 'w'", "no more elements than an int64 can count"}},
      {"ThreeOffsets",
       file_with(tensor_header(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), 8),
       {"tensor 'w'", "2 data_offsets, got 3"}},
      {"BackwardOffsets",
       file_with(tensor_header(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8),
       {"tensor 'w'", "[8, 0]"}},
      {"NegativeOffset",
       file_with(tensor_header(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), 8),
       {"tensor 'w'", "-8"}},
      {"SpanOfAnotherShape",
       file_with(tensor_header(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8),
       {"tensor 'w'", "12 bytes", "[3] of float32", "[0, 8]"}},
      {"Truncated",
       file_with(tensor_header(good), 7),
       {"tensor 'w'", "ends within", "offset 70, got 69"}},
      {"OutOfBounds",
       file_with(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[900,901]}})", 4),
       {"tensor 'b'", "ends within"}},
      {"Overlong",
       file_with(tensor_header(good), 9),
       {"offset 70", "goes on", "expected 70 bytes, got 71"}},
      {"Overlap",
       file_with("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6),
       {"tensor 'b'", "overlaps"}},
      {"Hole",
       file_with("{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})", 6),
       {"tensor 'b'", "hole"}},
      {"HoleAtTheStart",
       file_with(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
       {"tensor 'b'", "hole"}},
      {"NoBool",
       length_bytes(55) + R"({"f":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})" + "\x01\x02",
       {"tensor 'f'", "0 or 1, got 2", "offset 64"}},
      {"MetadataNoObject", file_with(R"({"__metadata__":[]})", 0), {"metadata"}},
      {"MetadataNoText", file_with(R"({"__metadata__":{"step":3}})", 0), {"metadata"}},
  };
}

class DamagedSafetensors : public testing::TestWithParam<Damage> {};

TEST_P(DamagedSafetensors, IsRefusedWithPathAndReason) {
  const std::string path = empty_folder() + "/damaged.safetensors";
  write_file_atomically(path, GetParam().bytes);
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(path);
  parts.push_back("expected");
  expect_error(GetParam().code, parts, [&] { parse_safetensors(read_file(path), path); });
}

INSTANTIATE_TEST_SUITE_P(Table, DamagedSafetensors, testing::ValuesIn(damages()),
                         [](const auto& info) { return std::string(info.param.name); });

SafetensorsFile small_file() {
  return {{{"w", Tensor::from<float>({2}, {1, 2})}, {"f", Tensor::full({1}, 1, DType::kBool)}},
          {{"k", "v"}}};
}

TEST(Safetensors, RefusesEveryPrefixOfAFile) {
  const std::string bytes = format_safetensors(small_file());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_ERROR(parse_safetensors(std::string_view(bytes).substr(0, length), "memory"), kDataLoss,
                 "memory");
  }
}

// Damage of single bytes: read as something or refused, never a crash (run with sanitizers).
TEST(Safetensors, SurvivesEveryChangedByte) {
  const std::string good = format_safetensors(small_file());
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      try {
        parse_safetensors(bytes, "memory");
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace safetensors_malformed_test
}  // namespace tutti

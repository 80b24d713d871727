// numpy's files: headers written out by hand, round trips, every way to be damaged.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/npy.h"

#include "tests/data/dataset_values.h"
#include "tests/data/npy_seeds.h"

namespace tutti {
namespace npy_test {

using data_test::empty_folder;
using data_test::expect_error;
using testing::ElementsAre;

std::string file(const std::string& header, const std::string& data) {
  std::string bytes("\x93NUMPY\x01\0", 8);
  bytes.push_back(static_cast<char>(header.size()));
  bytes.push_back('\0');
  return bytes + header + data;
}

std::string header_of(const std::string& type, const std::string& order, const std::string& shape) {
  return "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

TEST(Npy, WritesTheBytesOfNumpySave) {
  const std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }";
  const std::string padded = header + std::string(118 - header.size() - 1, ' ') + "\n";
  EXPECT_EQ(format_npy(Tensor::from<std::int32_t>({2}, {1, -1})),
            file(padded, std::string("\x01\0\0\0\xff\xff\xff\xff", 8)));
}

TEST(Npy, ReadsWhatItWroteOfEveryType) {
  for (DType dtype : kAllDTypes) {
    if (dtype == DType::kBFloat16) continue;  // numpy has none: refused below
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 1, 3}, Shape{0, 4}}) {
      const Tensor tensor = Tensor::full(shape, 1, dtype);
      const Tensor read = parse_npy(format_npy(tensor), "f");
      EXPECT_EQ(read.dtype(), dtype);
      EXPECT_EQ(read.shape(), shape);
      EXPECT_EQ(read.to_doubles(), tensor.to_doubles());
      EXPECT_EQ((format_npy(tensor).size() - tensor.num_bytes()) % 64, 0u);
    }
  }
}

TEST(Npy, Bfloat16HasNoName) {
  expect_error(ErrorCode::kUnimplemented, {"bfloat16", "float16, float32", "cast()"},
               [] { format_npy(Tensor::zeros({1}, DType::kBFloat16)); });
}

TEST(Npy, ConvertsBigEndianAndFortranOrder) {
  const Tensor big = parse_npy(
      file(header_of(">i4", "False", "(2,)"), std::string("\0\0\x01\x02\xff\xff\xff\xfe", 8)), "f");
  EXPECT_THAT(big.to_doubles(), ElementsAre(258, -2));
  const Tensor fortran =
      parse_npy(file(header_of("|u1", "True", "(2, 3)"), "\x01\x04\x02\x05\x03\x06"), "f");
  EXPECT_THAT(fortran.to_doubles(), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(Npy, RefusesDamagedFiles) {
  const std::string good = format_npy(Tensor::from<float>({2}, {1, 2}));
  for (std::size_t length = 0; length < good.size(); ++length) {
    expect_error(ErrorCode::kDataLoss, {"some.npy", "offset", "expected"},
                 [&] { parse_npy(good.substr(0, length), "some.npy"); });
  }
  expect_error(ErrorCode::kDataLoss, {"goes on", "got 9"}, [&] { parse_npy(good + "x", "f"); });
  expect_error(ErrorCode::kUnimplemented, {"'<c8'", "try"},
               [] { parse_npy(file(header_of("<c8", "False", "()"), "12345678"), "f"); });
  expect_error(ErrorCode::kDataLoss, {"dimension"},
               [] { parse_npy(file(header_of("|u1", "False", "(-1,)"), ""), "f"); });
  const std::string huge = "(0, 9223372036854775807, 9223372036854775807)";
  expect_error(ErrorCode::kDataLoss, {"some.npy: offset", "9223372036854775807"},
               [&] { parse_npy(file(header_of("|u1", "False", huge), ""), "some.npy"); });
  expect_error(ErrorCode::kDataLoss, {"True or False"},
               [] { parse_npy(file(header_of("|u1", "Maybe", "()"), "1"), "f"); });
  expect_error(ErrorCode::kDataLoss, {"lacks a key"}, [] { parse_npy(file("{}", ""), "f"); });
}

TEST(Npz, ReadsWhatItWrote) {
  const std::string path = empty_folder("") + "/a.npz";
  write_npz(path,
            {{"x", Tensor::from<float>({2}, {1, 2})}, {"y", Tensor::scalar(3, DType::kInt64)}});
  const NamedTensors read = read_npz(path);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].first, "x");
  EXPECT_THAT(read[0].second.to_doubles(), ElementsAre(1, 2));
  EXPECT_EQ(read[1].first, "y");
  EXPECT_EQ(read[1].second.item_int(), 3);
  expect_error(ErrorCode::kInvalidArgument, {"format_npz", "'x'"}, [] {
    format_npz({{"x", Tensor(1.0f)}, {"x", Tensor(1.0f)}});
  });
}

TEST(Npz, ReadsStoredFilesOfPython) { npy_seeds::expect_arrays_of_python("stored.npz"); }

TEST(Npz, RefusesDamagedFiles) {
  const std::string good = format_npz({{"x", Tensor::from<float>({2}, {1, 2})}});
  for (std::size_t length = 0; length < good.size(); ++length) {
    expect_error(ErrorCode::kDataLoss, {"some.npz", "offset", "expected"},
                 [&] { parse_npz(good.substr(0, length), "some.npz"); });
  }
  std::string wrong = good;
  wrong[200 > good.size() / 2 ? 160 : 200] ^= 1;
  expect_error(ErrorCode::kDataLoss, {"member 'x.npy'", "checksum"},
               [&] { parse_npz(wrong, "f"); });
}

}  // namespace npy_test
}  // namespace tutti

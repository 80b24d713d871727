// Tests numpy's files: headers written by hand, round trips, every kind of damage.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/npy.h"

#include "data/input_file.h"
#include "tests/data/dataset_values.h"
#include "tests/data/fuzz_seeds.h"
#include "tests/support/warnings.h"

namespace tutti::npy_test {

using namespace data_test;
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
    if (dtype == DType::kBFloat16) continue;  // not in numpy: refused below
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

TEST(Npy, ConvertsBigEndianAndFortranOrderButHasNoNameForBfloat16) {
  EXPECT_ERROR(format_npy(Tensor::zeros({1}, DType::kBFloat16)), kUnimplemented, "bfloat16",
               "float16, float32", "cast()");
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
    EXPECT_ERROR(parse_npy(good.substr(0, length), "some.npy"), kDataLoss, "some.npy", "offset",
                 "expected");
  }
  EXPECT_ERROR(parse_npy(good + "x", "f"), kDataLoss, "goes on", "got 9");
  EXPECT_ERROR(parse_npy(file(header_of("<c8", "False", "()"), "12345678"), "f"), kUnimplemented,
               "'<c8'", "try");
  EXPECT_ERROR(parse_npy(file(header_of("|u1", "False", "(-1,)"), ""), "f"), kDataLoss,
               "dimension");
  const std::string huge = "(0, 9223372036854775807, 9223372036854775807)";
  EXPECT_ERROR(parse_npy(file(header_of("|u1", "False", huge), ""), "some.npy"), kDataLoss,
               "some.npy: offset", "9223372036854775807");
  EXPECT_ERROR(parse_npy(file(header_of("|u1", "Maybe", "()"), "1"), "f"), kDataLoss,
               "True or False");
  EXPECT_ERROR(parse_npy(file("{}", ""), "f"), kDataLoss, "lacks a key");
}

// Bytes from numpy.array([...], '<i2').tobytes() and the like; numpy's own values are [-1, 258].
TEST(Npy, WidensIntegersThatNoTensorHas) {
  const auto parsed = [](const std::string& type, const std::string& bytes) {
    return parse_npy(file(header_of(type, "False", "(2,)"), bytes), "f");
  };
  using namespace std::string_literals;
  const Tensor i1 = parsed("|i1", "\xff\x7f"s), i2 = parsed("<i2", "\xff\xff\x02\x01"s),
               big = parsed(">i2", "\xff\xff\x01\x02"s), u2 = parsed("<u2", "\xff\xff\x02\x01"s),
               u4 = parsed("<u4", "\xff\xff\xff\xff\x02\x01\0\0"s);
  EXPECT_THAT(i1.to_doubles(), ElementsAre(-1, 127));
  EXPECT_THAT(i2.to_doubles(), ElementsAre(-1, 258));
  EXPECT_THAT(big.to_doubles(), ElementsAre(-1, 258));
  EXPECT_THAT(u2.to_doubles(), ElementsAre(65535, 258));
  EXPECT_THAT(u4.to_doubles(), ElementsAre(4294967295.0, 258));
  for (const Tensor& narrow : {i1, i2, big, u2}) EXPECT_EQ(narrow.dtype(), DType::kInt32);
  EXPECT_EQ(u4.dtype(), DType::kInt64);
  const Tensor fortran =
      parse_npy(file(header_of("<i2", "True", "(2, 2)"), "\x01\0\x02\0\x03\0\x04\0"s), "f");
  EXPECT_THAT(fortran.to_doubles(), ElementsAre(1, 3, 2, 4));
  EXPECT_ERROR(parsed("<u8", std::string(16, '\0')), kUnimplemented, "'<u8'", "u4");
}

TEST(Npy, ReadsHeadersOfPython2) {
  const Tensor read = parse_npy(
      file("{'descr': '|u1', 'fortran_order': False, 'shape': (2L, 3L), }\n", "abcdef"), "f");
  EXPECT_EQ(read.shape(), (Shape{2, 3}));
  EXPECT_EQ(read.to_doubles()[5], 'f');
}

TEST(Npy, NamesFilesOfOtherKindsAndTheCalledFunction) {
  const std::string folder = empty_folder();
  const std::vector<std::pair<std::string, const char*>> others = {
      {"", "an empty file"},
      {"{\"a\": [1, 2]}", "a JSON file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "a Git LFS pointer"},
      {"<html><body>404</body></html>", "an HTML page"},
      {std::string("\x1f\x8b\x08\0\0\0\0\0", 8), "a gzip file"},
      {"1 2 3\n", "text that begins with '1 2 3'"},
  };
  const std::string path = folder + "/a";
  for (const auto& [bytes, kind] : others) {
    data_test::write_bytes(path, bytes);
    EXPECT_ERROR(read_npy(path), kDataLoss, path, "expected a .npy file, got", kind);
    EXPECT_ERROR(read_npz(path), kDataLoss, path, "expected a .npz file, got", kind);
  }
  write_npz(path, {{"x", Tensor(1.0f)}});
  EXPECT_ERROR(read_npy(path), kDataLoss, path, "a zip archive");
  write_npy(path, Tensor(1.0f));
  EXPECT_ERROR(read_npz(path), kDataLoss, path, "a .npy file");
  EXPECT_ERROR(read_npy("/nothing"), kNotFound, "read_npy: cannot read '/nothing'");
  EXPECT_ERROR(read_npz("/nothing"), kNotFound, "read_npz: cannot read '/nothing'");
}

TEST(Npz, ReadsWhatItWrote) {
  const std::string path = empty_folder() + "/a.npz";
  write_npz(path,
            {{"x", Tensor::from<float>({2}, {1, 2})}, {"y", Tensor::scalar(3, DType::kInt64)}});
  const NamedTensors read = read_npz(path);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].first, "x");
  EXPECT_THAT(read[0].second.to_doubles(), ElementsAre(1, 2));
  EXPECT_EQ(read[1].first, "y");
  EXPECT_EQ(read[1].second.item_int(), 3);
  EXPECT_INVALID(format_npz({{"x", Tensor(1.0f)}, {"x", Tensor(1.0f)}}), "format_npz", "'x'");
}

/// Returns format_npz() plus the output of numpy.savez for np.array(['cat', 'dog'], object) as
/// member "o", and a member that is not an array.
std::string mixed_npz() {
  std::string bytes = format_npz({{"x_train", Tensor::from<float>({2}, {1, 2})},
                                  {"o", Tensor::from<std::uint8_t>({1}, {7})},
                                  {"README", Tensor(1.0f)},
                                  {"y_train", Tensor::from<std::int64_t>({2}, {3, 4})}});
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (std::size_t at = bytes.find(from); at != std::string::npos;
         at = bytes.find(from, at + 1)) {
      bytes.replace(at, from.size(), to);
    }
  };
  replace("README.npy", "README.txt");
  // Patches the type, then the member's checksum in both headers.
  const std::string local("PK\x03\x04", 4);
  const std::size_t type = bytes.find("|u1"), begin = bytes.rfind(local, type);
  bytes.replace(type, 3, "|O ");
  bytes.replace(type + 2, 2, "',");  // "|O'" is one character shorter
  bytes[type + 4] = ' ';
  const std::size_t content = begin + 30 + std::string("o.npy").size();
  const std::string member = bytes.substr(content, bytes.find(local, content) - content);
  const std::uint32_t crc = internal::crc32(member);
  std::string sum;
  for (int i = 0; i < 4; ++i) sum.push_back(static_cast<char>(crc >> (8 * i) & 0xff));
  replace(bytes.substr(begin + 14, 4), sum);
  return bytes;
}

TEST(Npz, ReadsArraysByNameWhateverElseIsInTheFile) {
  const std::string bytes = mixed_npz();
  const NamedTensors chosen = parse_npz(bytes, "f", {.names = {"y_train", "x_train"}});
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[0].first, "y_train");
  EXPECT_THAT(chosen.at("x_train").to_doubles(), ElementsAre(1, 2));
  EXPECT_THAT(chosen.at("y_train").to_doubles(), ElementsAre(3, 4));
  EXPECT_EQ(chosen.at(1).first, "x_train");  // by position
  EXPECT_TRUE(chosen.has("x_train"));
  EXPECT_FALSE(chosen.has("o"));
  EXPECT_ERROR(chosen.at("x_test"), kNotFound, "'x_test'", "[y_train, x_train]");
  EXPECT_ERROR(parse_npz(bytes, "f", {.names = {"x_train", "x_test"}}), kNotFound,
               "f: ", "'x_test'", "[x_train, o, README.txt, y_train]");
  EXPECT_ERROR(parse_npz(bytes, "f", {.names = {"o"}}), kUnimplemented, "f: member 'o.npy'",
               "'|O'");
}

TEST(Npz, LeavesOutWhatNoTensorHoldsWithAWarning) {
  NamedTensors all;
  const auto lines = thrown::warnings_of([&] { all = parse_npz(mixed_npz(), "f"); });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(all.size(), 2u);
  EXPECT_THAT(all.at("x_train").to_doubles(), ElementsAre(1, 2));
  EXPECT_THAT(all.at("y_train").to_doubles(), ElementsAre(3, 4));
  for (const char* part : {"f: left out", "'o.npy'", "'|O'", "'README.txt'", "NpzOptions::names"}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << part << " in " << lines[0];
  }
}

TEST(Npz, ReadsStoredFilesOfPythonAndRefusesDamagedOnes) {
  fuzz_seeds::expect_arrays_of_python("stored.npz");
  const std::string good = format_npz({{"x", Tensor::from<float>({2}, {1, 2})}});
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_ERROR(parse_npz(good.substr(0, length), "some.npz"), kDataLoss, "some.npz", "offset",
                 "expected");
  }
  std::string wrong = good;
  wrong[200 > good.size() / 2 ? 160 : 200] ^= 1;
  EXPECT_ERROR(parse_npz(wrong, "f"), kDataLoss, "member 'x.npy'", "checksum");
}

}  // namespace tutti::npy_test

// Files that would unpack, or read on, to more than a reader takes. Compressed ones are in
// gzip_input_test.cc.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/input_limits.h"

#include "data/csv_schema.h"
#include "data/file_sequence.h"
#include "tests/data/dataset_values.h"
#include "tutti/data/csv.h"
#include "tutti/data/npy.h"
#include "tutti/data/tar.h"

namespace tutti {
namespace input_limits_test {

using data_test::empty_folder;
using data_test::expect_error;
using data_test::rows_of;

std::string file_of(const std::string& bytes) {
  const std::string path = empty_folder("") + "/some";
  data_test::write_bytes(path, bytes);
  return path;
}

TEST(InputLimits, AreForWhatIsLargeAndUnlikely) {
  constexpr std::uint64_t kMegabyte = 1 << 20;
  internal::require_within({}, 256 * kMegabyte, 1, "f");
  internal::require_within({}, 249 * 2 * kMegabyte, 2 * kMegabyte, "f");
  expect_error(ErrorCode::kResourceExhausted,
               {"f: ", "2097152 compressed bytes", "less than 250 times", "max_expansion"},
               [&] { internal::require_within({}, 501 * kMegabyte, 2 * kMegabyte, "f"); });
  internal::require_within({.max_expansion = 1000}, 501 * kMegabyte, 2 * kMegabyte, "f");
  expect_error(ErrorCode::kResourceExhausted, {"f: ", "at most 10 bytes", "got 11", "max_bytes"},
               [] { internal::require_within({.max_bytes = 10}, 11, 11, "f"); });
}

TEST(InputLimits, ALineOfCsvEndsSomewhere) {
  const std::string number(18, '7');
  const std::string path = file_of("x\n" + number + "\n1\n");
  EXPECT_EQ(rows_of(csv_dataset({path}, {.columns = {{.name = "x", .dtype = DType::kFloat64}},
                                         .max_line_bytes = 19}))
                .size(),
            2u);
  expect_error(ErrorCode::kResourceExhausted,
               {path + ":2: ", "at most 18 bytes", "CsvOptions::max_line_bytes"},
               [&] { read_csv({path}, {.max_line_bytes = 18}); });
  expect_error(ErrorCode::kInvalidArgument, {"max_line_bytes of at least 1"},
               [&] { read_csv({path}, {.max_line_bytes = 0}); });
  // Empty fields and quoted line ends take memory, too.
  for (const std::string& record :
       {std::string(3 << 20, ','), std::string(3 << 20, 'x'), "\"" + std::string(3 << 20, '\n')}) {
    const std::string long_path = file_of(record + "\n1\n");
    expect_error(ErrorCode::kResourceExhausted, {long_path + ":1: "},
                 [&] { csv_dataset({long_path}, {.header = false}); });
  }
}

// A source without a known length or end.
TEST(InputLimits, NothingIsReadBehindALineWithoutEnd) {
  internal::CsvReader reader(internal::InputFile("/dev/zero"), {.max_line_bytes = 1000});
  internal::CsvRecord record;
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorCode::kResourceExhausted, {"/dev/zero:1: ", "at most 1000 bytes"},
                 [&] { reader.next(record); });
  }
}

TEST(InputLimits, AFileInATarFileIsAMember) {
  const std::string path = empty_folder("") + "/a.tar";
  TarWriter writer(path);
  writer.write("a.bin", "12345");
  writer.close();
  EXPECT_EQ(rows_of(tar_dataset({path}, {.max_bytes = 5})).size(), 1u);
  expect_error(ErrorCode::kResourceExhausted, {path, "at most 4 bytes, got 5", "max_bytes"},
               [&] { rows_of(tar_dataset({path}, {.max_bytes = 4})); });
}

// The members' headers and data stand as they should; two entries of the directory share them.
TEST(InputLimits, MembersOfNpzFilesDoNotOverlap) {
  std::string bytes = format_npz({{"x", Tensor::zeros({2})}, {"y", Tensor::zeros({2})}});
  ASSERT_EQ(parse_npz(bytes, "f").size(), 2u);
  const std::size_t first = bytes.find("PK\x01\x02");
  const std::size_t second = bytes.find("PK\x01\x02", first + 1);
  constexpr std::size_t kOffset = 42;
  bytes.replace(second + kOffset, 4, bytes, first + kOffset, 4);
  expect_error(ErrorCode::kDataLoss, {"f: member 'y.npy'", "members overlap", "'x.npy'"},
               [&] { parse_npz(bytes, "f"); });
}

TEST(InputLimits, NpzFilesSayHowLargeTheyBecome) {
  std::string bytes = format_npz({{"x", Tensor::zeros({2})}, {"y", Tensor::zeros({2})}});
  expect_error(ErrorCode::kResourceExhausted, {"f: member 'x.npy'", "max_bytes"},
               [&] { parse_npz(bytes, "f", {.limits = {.max_bytes = 100}}); });
  // Each of them may become 200 MiB, both may not.
  const std::string large("\0\0\x80\x0c", 4);
  constexpr std::size_t kSize = 24;
  for (std::size_t at = bytes.find("PK\x01\x02"); at != std::string::npos;
       at = bytes.find("PK\x01\x02", at + 1)) {
    bytes.replace(at + kSize, 4, large);
  }
  expect_error(ErrorCode::kResourceExhausted, {"f: ", "become 419430400", "max_expansion"},
               [&] { parse_npz(bytes, "f"); });
}

class Exhausting : public internal::FileElements {
 public:
  std::optional<Element> next() override { throw std::bad_alloc(); }
  std::int64_t skip(std::int64_t) override {
    fail(ErrorCode::kResourceExhausted, "allocator: no memory");
  }
};

TEST(InputLimits, MemoryThatRunsOutIsToldWithThePath) {
  const Dataset dataset = internal::dataset_of_files(
      {"some/path"}, [](const std::string&) { return std::make_unique<Exhausting>(); }, "test");
  expect_error(ErrorCode::kResourceExhausted, {"some/path: not enough memory"},
               [&] { rows_of(dataset); });
  expect_error(ErrorCode::kResourceExhausted, {"some/path", "allocator: no memory"},
               [&] { dataset.iterate()->skip(1); });
}

}  // namespace input_limits_test
}  // namespace tutti

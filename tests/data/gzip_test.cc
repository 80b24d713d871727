// Tests compressed files: read whatever their name, refused if damaged, limited in unpacked size.
// SPDX-License-Identifier: Apache-2.0

#include "core/file.h"
#include "data/csv_schema.h"
#include "data/input_file.h"
#include "tests/data/dataset_values.h"
#include "tests/data/fuzz_seeds.h"
#include "tutti/data/csv.h"
#include "tutti/data/input_limits.h"
#include "tutti/data/readers.h"
#include "tutti/data/records.h"
#include "tutti/data/tar.h"

namespace tutti::gzip_test {
using namespace data_test;
using testing::ElementsAre;

// Output of: printf '\0\0\x08\x01\0\0\0\x03\x05\x06\x07' | gzip -n9 | od -An -tx1
std::string packed_idx_file() {
  constexpr unsigned char kBytes[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
                                      0x02, 0x03, 0x63, 0x60, 0xe0, 0x60, 0x64, 0x60,
                                      0x60, 0x60, 0x66, 0x65, 0x63, 0x07, 0x00, 0x4a,
                                      0x4c, 0xb5, 0xc0, 0x0b, 0x00, 0x00, 0x00};
  return std::string(reinterpret_cast<const char*>(kBytes), sizeof kBytes);
}

TEST(Gzip, ReadsCompressedFilesWhateverTheirName) {
  const std::string path = empty_folder() + "/labels";
  write_bytes(path, packed_idx_file());
  EXPECT_THAT(read_idx(path).to_doubles(), ElementsAre(5, 6, 7));
}

TEST(Gzip, RefusesDamagedCompressedFiles) {
  const std::string path = empty_folder() + "/labels.gz";
  for (std::size_t length : {std::size_t{2}, std::size_t{12}, packed_idx_file().size() - 1}) {
    write_bytes(path, packed_idx_file().substr(0, length));
    EXPECT_ERROR(read_idx(path), kDataLoss, path, "offset", "ends early");
  }
  std::string wrong_sum = packed_idx_file();
  wrong_sum[wrong_sum.size() - 8] ^= 1;
  write_bytes(path, wrong_sum);
  EXPECT_ERROR(read_idx(path), kDataLoss, path, "offset", "incorrect data check");
  write_bytes(path, packed_idx_file() + "rest");
  EXPECT_ERROR(read_idx(path), kDataLoss, path, "offset", "expected gzip data");
}

std::string packed_file(const std::string& name, const std::string& bytes) {
  const std::string path = empty_folder(name) + "/" + name;
  data_test::write_bytes(path, internal::deflate_bytes(bytes, internal::DeflateFormat::kGzip));
  return path;
}

TEST(PackedInput, IsReadLikePlainFiles) {
  EXPECT_EQ(rows_of(csv_dataset({packed_file("a.csv.gz", "x\n1\n2\n")})), (Rows{{1}, {2}}));
  EXPECT_EQ(
      rows_of(fixed_length_record_dataset({packed_file("a.gz", "H\x01\x02\x03\x04")}, 2, {1})),
      (Rows{{1, 2}, {3, 4}}));
  const std::string tar = read_file(std::string(TUTTI_FUZZ_SEEDS) + "/tar/gnu.tar");
  EXPECT_EQ(rows_of(tar_dataset({packed_file("a.tar.gz", tar)})).size(), 4u);
}

TEST(PackedInput, ReadsCifar10ArchiveAsDownloaded) {
  const std::string tar = empty_folder() + "/plain.tar";
  TarWriter writer(tar);
  writer.write("cifar-10-batches-bin/test_batch.bin",
               std::string(1, '\x07') + std::string(3072, 'x'));
  writer.close();
  const std::string packed = packed_file("cifar-10-binary.tar.gz", read_file(tar));
  const std::string folder = std::filesystem::path(packed).parent_path().string();
  for (const std::string& place : {folder, packed}) {
    const ImageData data = read_cifar10(place, Split::kTest);
    EXPECT_EQ(data.labels.item_int(), 7);
    EXPECT_EQ(data.images.host_span<std::uint8_t>()[3071], 'x');
  }
  const std::string bytes = read_file(packed);
  data_test::write_bytes(packed, bytes.substr(0, bytes.size() / 2));
  EXPECT_ERROR(read_cifar10(folder, Split::kTest), kDataLoss, packed);
}

// The file exceeds one read buffer.
TEST(PackedInput, IsUnpackedWhole) {
  std::string csv = "x\n";
  for (int i = 0; i < 100000; ++i) csv += std::to_string(i * 7919 % 100003) + "\n";
  const std::string path = packed_file("a.csv.gz", csv);
  ASSERT_GT(std::filesystem::file_size(path), 100000u);
  const CsvTable table = read_csv({path});
  EXPECT_EQ(table.rows.rows(), 100000);
  EXPECT_EQ(table.rows[0].host_span<std::int64_t>()[99999], 99999LL * 7919 % 100003);
}

TEST(PackedInput, IsRefusedWhereItIsCut) {
  const std::string path = packed_file("a.csv.gz", "x\n1\n2\n");
  data_test::write_bytes(path, read_file(path).substr(0, 15));
  EXPECT_ERROR(csv_dataset({path}), kDataLoss, path, "ends early");
}

// 300 MB of zeros in a third of a megabyte.
TEST(PackedInput, BombsAreRefusedByEveryReader) {
  const std::string path = packed_file("bomb.gz", std::string(300 << 20, '\0'));
  ASSERT_LT(std::filesystem::file_size(path), 400000u);
  const std::vector<std::function<void()>> readers = {
      [&] { csv_dataset({path}); },
      [&] { read_csv({path}); },
      [&] { read_idx(path); },
      [&] { read_cifar10_file(path); },
      [&] { rows_of(tar_dataset({path})); },
      [&] { rows_of(tfrecord_dataset({path}, {Compression::kGzip})); },
      [&] { fixed_length_record_dataset({path}, 1024).iterate()->skip(1); },
  };
  for (const auto& read : readers) {
    expect_error(ErrorCode::kResourceExhausted,
                 {path, "compressed bytes become", "InputLimits::max_expansion"}, read);
  }
  const InputLimits raised{.max_expansion = 1100};
  EXPECT_EQ(rows_of(tar_dataset({path}, raised)).size(), 0u);
  EXPECT_ERROR(csv_dataset({path}, {.limits = raised}), kDataLoss,
               path + ":1: ", "bytes that are all 0");
  EXPECT_ERROR(read_idx(path, {.max_bytes = 1000}), kResourceExhausted, path, "at most 1000 bytes",
               "InputLimits::max_bytes");
}

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

TEST(PackedTFRecord, ReadsWhatItWroteAndNamesTheRemedyWhenReadAsPlain) {
  const std::vector<std::string> records = {"first", "", std::string(3000000, 'x'), "last"};
  const std::string path = empty_folder() + "/a.tfrecord";
  for (Compression how : {Compression::kGzip, Compression::kZlib}) {
    write_packed(path, how, records);
    EXPECT_LT(std::filesystem::file_size(path), 30000u);
    EXPECT_EQ(records_in(tfrecord_dataset({path}, {how})), records);
  }
  const std::string packed = empty_folder() + "/a.tfrecord";
  write_packed(packed, Compression::kGzip, {"abc"});
  EXPECT_ERROR(records_in(tfrecord_dataset({packed})), kDataLoss, packed, "record 0", "offset",
               "try Compression::kGzip");
}

TEST(PackedNpz, ReadsDeflatedFilesOfPython) { fuzz_seeds::expect_arrays_of_python("deflated.npz"); }

std::string file_of(const std::string& bytes) {
  const std::string path = empty_folder() + "/some";
  data_test::write_bytes(path, bytes);
  return path;
}

TEST(InputLimits, AreForWhatIsLargeAndUnlikely) {
  constexpr std::uint64_t kMegabyte = 1 << 20;
  internal::require_within({}, 256 * kMegabyte, 1, "f");
  internal::require_within({}, 249 * 2 * kMegabyte, 2 * kMegabyte, "f");
  EXPECT_ERROR(internal::require_within({}, 501 * kMegabyte, 2 * kMegabyte, "f"),
               kResourceExhausted, "f: ", "2097152 compressed bytes", "less than 250 times",
               "max_expansion");
  internal::require_within({.max_expansion = 1000}, 501 * kMegabyte, 2 * kMegabyte, "f");
  EXPECT_ERROR(internal::require_within({.max_bytes = 10}, 11, 11, "f"), kResourceExhausted,
               "f: ", "at most 10 bytes", "got 11", "max_bytes");
}

TEST(InputLimits, ALineOfCsvEndsSomewhere) {
  const std::string number(18, '7');
  const std::string path = file_of("x\n" + number + "\n1\n");
  EXPECT_EQ(rows_of(csv_dataset({path}, {.columns = {{.name = "x", .dtype = DType::kFloat64}},
                                         .max_line_bytes = 19}))
                .size(),
            2u);
  EXPECT_ERROR(read_csv({path}, {.max_line_bytes = 18}), kResourceExhausted,
               path + ":2: ", "at most 18 bytes", "CsvOptions::max_line_bytes");
  EXPECT_INVALID(read_csv({path}, {.max_line_bytes = 0}), "max_line_bytes of at least 1");
  // Empty fields and quoted line breaks take memory as well.
  for (const std::string& record :
       {std::string(3 << 20, ','), std::string(3 << 20, 'x'), "\"" + std::string(3 << 20, '\n')}) {
    const std::string long_path = file_of(record + "\n1\n");
    EXPECT_ERROR(csv_dataset({long_path}, {.header = false}), kResourceExhausted,
                 long_path + ":1: ");
  }
}

// Source without a known length or an end.
TEST(InputLimits, NothingIsReadBehindALineWithoutEnd) {
  internal::CsvReader reader(internal::InputFile("/dev/zero"), {.max_line_bytes = 1000});
  internal::CsvRecord record;
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR(reader.next(record), kResourceExhausted, "/dev/zero:1: ", "at most 1000 bytes");
  }
}

TEST(InputLimits, AFileInATarFileIsAMember) {
  const std::string path = empty_folder() + "/a.tar";
  TarWriter writer(path);
  writer.write("a.bin", "12345");
  writer.close();
  EXPECT_EQ(rows_of(tar_dataset({path}, {.max_bytes = 5})).size(), 1u);
  EXPECT_ERROR(rows_of(tar_dataset({path}, {.max_bytes = 4})), kResourceExhausted, path,
               "at most 4 bytes, got 5", "max_bytes");
}

// The members' headers and data are valid, but two directory entries share them.
TEST(InputLimits, MembersOfNpzFilesDoNotOverlap) {
  std::string bytes = format_npz({{"x", Tensor::zeros({2})}, {"y", Tensor::zeros({2})}});
  ASSERT_EQ(parse_npz(bytes, "f").size(), 2u);
  const std::size_t first = bytes.find("PK\x01\x02");
  const std::size_t second = bytes.find("PK\x01\x02", first + 1);
  constexpr std::size_t kOffset = 42;
  bytes.replace(second + kOffset, 4, bytes, first + kOffset, 4);
  EXPECT_ERROR(parse_npz(bytes, "f"), kDataLoss, "f: member 'y.npy'", "members overlap", "'x.npy'");
}

TEST(InputLimits, NpzFilesSayHowLargeTheyBecome) {
  std::string bytes = format_npz({{"x", Tensor::zeros({2})}, {"y", Tensor::zeros({2})}});
  EXPECT_ERROR(parse_npz(bytes, "f", {.limits = {.max_bytes = 100}}), kResourceExhausted,
               "f: member 'x.npy'", "max_bytes");
  // Each may expand to 200 MiB, but not both together.
  const std::string large("\0\0\x80\x0c", 4);
  constexpr std::size_t kSize = 24;
  for (std::size_t at = bytes.find("PK\x01\x02"); at != std::string::npos;
       at = bytes.find("PK\x01\x02", at + 1)) {
    bytes.replace(at + kSize, 4, large);
  }
  EXPECT_ERROR(parse_npz(bytes, "f"), kResourceExhausted, "f: ", "become 419430400",
               "max_expansion");
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
  EXPECT_ERROR(rows_of(dataset), kResourceExhausted, "some/path: not enough memory");
  EXPECT_ERROR(dataset.iterate()->skip(1), kResourceExhausted, "some/path", "allocator: no memory");
}

}  // namespace tutti::gzip_test

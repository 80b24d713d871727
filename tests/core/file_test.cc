// Tests reading whole files, replacing them atomically, and names of file kinds in errors.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/file_kind.h"
#include "tests/support/test_folder.h"
#include "tests/support/thrown.h"
#include "tutti/core/executor.h"

namespace tutti::file_test {
using internal::describe_file;
using internal::kind_note;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using namespace std::string_literals;

class FileTest : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return (folder_ / name).string(); }
  long num_files() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  const std::filesystem::path folder_ = thrown::empty_folder();
};

TEST_F(FileTest, ReadsBackWhatWasWrittenInNewFoldersAndWithoutAStatedSize) {
  for (std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{65536}, std::size_t{300'001}}) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7);
    write_file_atomically(path("a"), bytes);
    EXPECT_EQ(read_file(path("a")), bytes);
  }
  EXPECT_EQ(num_files(), 1);  // no temporary file is left
  write_file_atomically(path("x/y/z.txt"), "deep");
  EXPECT_EQ(read_file(path("x/y/z.txt")), "deep");
  EXPECT_NE(read_file("/proc/self/status").find("Name:"), std::string::npos);
}

TEST_F(FileTest, MissingFileAndFolderAreNamed) {
  EXPECT_ERROR(read_file(path("missing")), kNotFound, path("missing"), "No such file");
  EXPECT_ERROR(read_file(folder_.string()), kUnavailable, folder_.string());
}

TEST_F(FileTest, ListsTheNamesInAFolder) {
  EXPECT_THAT(names_in_folder(folder_.string()), IsEmpty());
  write_file_atomically(path("b"), "1");
  write_file_atomically(path(".a"), "2");
  write_file_atomically(path("folder/c"), "3");
  EXPECT_THAT(names_in_folder(folder_.string()), UnorderedElementsAre("b", ".a", "folder"));
  EXPECT_THAT(names_in_folder(path("missing")), IsEmpty());
  EXPECT_THAT(names_in_folder(path("b")), IsEmpty());
}

TEST_F(FileTest, AFailedWriteLeavesTheOldFile) {
  write_file_atomically(path("a"), "old");
  // With a file size limit of 1000 bytes, the write fails halfway, without the signal for that.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_file_atomically(path("a"), std::string(5000, 'n')), Error);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(read_file(path("a")), "old");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(FileTest, AFileInPlaceOfTheFolderIsReported) {
  write_file_atomically(path("a"), "file");
  EXPECT_ERROR(write_file_atomically(path("a/b"), "x"), kUnavailable, "Not a directory");
}

TEST_F(FileTest, AReaderSeesTheOldOrTheNewNeverHalf) {
  const std::string one(200'000, '1'), two(200'000, '2');
  write_file_atomically(path("a"), one);
  std::atomic<bool> done{false};
  auto writer = Executor::system().start("writer", [&] {
    for (int i = 0; i < 20; ++i) write_file_atomically(path("a"), i % 2 == 0 ? two : one);
    done = true;
  });
  int reads = 0;
  do {
    const std::string seen = read_file(path("a"));
    ASSERT_TRUE(seen == one || seen == two);
    ++reads;
  } while (!done);
  writer->join();
  EXPECT_GT(reads, 0);
}

TEST(FileKind, NamesKindsByTheirFirstBytes) {
  std::string tar(512, '\0');
  tar.replace(0, 5, "a.txt");
  tar.replace(257, 5, "ustar");
  // Magic bytes as documented by file(1) and the formats themselves.
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"", "an empty file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "Git LFS"},
      {"\x93NUMPY\x01\0v\0{'descr'"s, ".npy"},
      {"PK\x03\x04\x14\0\0\0"s, "zip archive"},
      {"\x1f\x8b\x08\0"s, "gzip"},
      {"BZh91AY&SY", "bzip2"},
      {"\xfd"
       "7zXZ\0\0"s,
       "xz"},
      {"\x28\xb5\x2f\xfd\x24", "Zstandard"},
      {tar, "tar archive"},
      {"\x89HDF\r\n\x1a\n", "HDF5"},
      {"\x89PNG\r\n\x1a\n", "PNG"},
      {"\xff\xd8\xff\xe0", "JPEG"},
      {"RIFF\x24\0\0\0WEBPVP8 "s, "WebP"},
      {"\0\0\x08\x03\0\0\xea\x60"s, "IDX"},
      {"\x80\x04\x95\x10\0\0"s, "pickle"},
      {"\xff\xfe"
       "a\0,\0"s,
       "UTF-16"},
      {"a\0,\0b\0\n\0"s, "UTF-16"},
      {"\x10\0\0\0\0\0\0\0{\"w\":{}}        "s, "safetensors"},
      {"<!DOCTYPE html>\n<html lang=\"en\">", "HTML page"},
      {"\n  <HTML><head><title>404", "HTML page"},
      {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>", "XML"},
      {"{\n  \"hidden_size\": 4096\n}", "JSON"},
      {"[[1, 2], [3, 4]]", "JSON"},
      {"a,b\n1,2\n", "text that begins with 'a,b'"},
      {"\x01\x02\x03", "bytes that begin with 01 02 03"},
      {std::string(600, '\0'), "all 0"},
  };
  for (const auto& [bytes, kind] : expected) {
    EXPECT_NE(describe_file(bytes).find(kind), std::string::npos)
        << "expected " << kind << ", got " << describe_file(bytes);
  }
}

// Record that tf.io.TFRecordWriter writes for b"abc": its length and their masked CRC-32C.
TEST(FileKind, KnowsTFRecordFilesByTheChecksumOfTheirFirstLength) {
  const std::string record("\x03\0\0\0\0\0\0\0\xb0\x99\x49\x0e", 12);
  std::string other = record;
  other[8] ^= 1;
  EXPECT_NE(describe_file(record), describe_file(other));
}

TEST(FileKind, NotesKnownKindsAloneAndShowsTextInOneLine) {
  EXPECT_EQ(kind_note("<html>"), "; the file is an HTML page (a download that failed?)");
  EXPECT_EQ(kind_note("a,b\n1,2\n"), "");
  EXPECT_EQ(kind_note("[1, 2]"), "");
  EXPECT_EQ(describe_file("Not Found\r\nsee below"), "text that begins with 'Not Found'");
  EXPECT_LT(describe_file(std::string(400, 'x')).size(), 80u);
}

}  // namespace tutti::file_test

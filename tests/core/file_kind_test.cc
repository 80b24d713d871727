// Names of kinds of files in errors.
// SPDX-License-Identifier: Apache-2.0
#include "core/file_kind.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tutti::internal {
namespace {

using namespace std::string_literals;

TEST(FileKind, NamesKindsByTheirFirstBytes) {
  std::string tar(512, '\0');
  tar.replace(0, 5, "a.txt");
  tar.replace(257, 5, "ustar");
  // Magic bytes as file(1) and the formats' own pages give them.
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

// The record that tf.io.TFRecordWriter writes for b"abc": its length and their masked CRC-32C.
TEST(FileKind, KnowsTFRecordFilesByTheChecksumOfTheirFirstLength) {
  const std::string record("\x03\0\0\0\0\0\0\0\xb0\x99\x49\x0e", 12);
  std::string other = record;
  other[8] ^= 1;
  EXPECT_NE(describe_file(record), describe_file(other));
}

TEST(FileKind, NotesKnownKindsAlone) {
  EXPECT_EQ(kind_note("<html>"), "; the file is an HTML page (a download that failed?)");
  EXPECT_EQ(kind_note("a,b\n1,2\n"), "");
  EXPECT_EQ(kind_note("[1, 2]"), "");
}

TEST(FileKind, ShowsTextOfNoKindInOneLine) {
  EXPECT_EQ(describe_file("Not Found\r\nsee below"), "text that begins with 'Not Found'");
  EXPECT_LT(describe_file(std::string(400, 'x')).size(), 80u);
}

}  // namespace
}  // namespace tutti::internal

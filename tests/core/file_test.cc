// Tests files: reading, atomic replacement, detection of formats, checksums (XXH3-128, CRC32C), and
// JSON.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file_kind.h"
#include "core/hash.h"
#include "core/names.h"
#include "tests/support/test_folder.h"
#include "tests/support/thrown.h"
#include "tutti/core/executor.h"
#include "tutti/core/json.h"
#include "tutti/core/random.h"

namespace tutti::testing::file_test {

using internal::describe_file;
using internal::kind_note;
using namespace std::string_literals;

class FileTest : public Test {
 protected:
  std::string path(const char* name) const { return (folder_ / name).string(); }
  long num_files() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  const std::filesystem::path folder_ = empty_folder();
};

TEST_F(FileTest, RoundTripsInNewFoldersAndReadsProcFiles) {
  for (std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{65536}, std::size_t{300'001}}) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7);
    write_file_atomically(path("a"), bytes);
    EXPECT_EQ(read_file(path("a")), bytes);
  }
  EXPECT_EQ(num_files(), 1);  // no temporary file remains
  write_file_atomically(path("x/y/z.txt"), "deep");
  EXPECT_EQ(read_file(path("x/y/z.txt")), "deep");
  EXPECT_NE(read_file("/proc/self/status").find("Name:"), std::string::npos);
}

TEST_F(FileTest, ErrorNamesMissingFileOrFolder) {
  EXPECT_ERROR(read_file(path("missing")), kNotFound, path("missing"), "No such file");
  EXPECT_ERROR(read_file(folder_.string()), kUnavailable, folder_.string());
}

TEST_F(FileTest, ListsFolderEntries) {
  EXPECT_THAT(names_in_folder(folder_.string()), IsEmpty());
  write_file_atomically(path("b"), "1");
  write_file_atomically(path(".a"), "2");
  write_file_atomically(path("folder/c"), "3");
  EXPECT_THAT(names_in_folder(folder_.string()), UnorderedElementsAre("b", ".a", "folder"));
  EXPECT_THAT(names_in_folder(path("missing")), IsEmpty());
  EXPECT_THAT(names_in_folder(path("b")), IsEmpty());
}

TEST_F(FileTest, FailedWriteKeepsOldFile) {
  write_file_atomically(path("a"), "old");
  // With a file size limit of 1000 bytes, the write fails partway. The library blocks SIGXFSZ.
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

TEST_F(FileTest, WritingToPathBelowRegularFileFails) {
  write_file_atomically(path("a"), "file");
  EXPECT_ERROR(write_file_atomically(path("a/b"), "x"), kUnavailable, "Not a directory");
}

TEST_F(FileTest, ReplacementIsAtomicForReaders) {
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

TEST(FileKind, IsDetectedFromFirstBytes) {
  std::string tar(512, '\0');
  tar.replace(0, 5, "a.txt");
  tar.replace(257, 5, "ustar");
  // Magic bytes from file(1) and from the specifications of the formats.
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

// The record was written by tf.io.TFRecordWriter for b"abc". It begins with its length and the
// masked CRC-32C of the length.
TEST(FileKind, TFRecordIsDetectedFromLengthChecksum) {
  const std::string record("\x03\0\0\0\0\0\0\0\xb0\x99\x49\x0e", 12);
  std::string other = record;
  other[8] ^= 1;
  EXPECT_NE(describe_file(record), describe_file(other));
}

TEST(FileKind, DescriptionNamesKnownKindsAndQuotesText) {
  EXPECT_EQ(kind_note("<html>"), "; the file is an HTML page (a download that failed?)");
  EXPECT_EQ(kind_note("a,b\n1,2\n"), "");
  EXPECT_EQ(kind_note("[1, 2]"), "");
  EXPECT_EQ(describe_file("Not Found\r\nsee below"), "text that begins with 'Not Found'");
  EXPECT_LT(describe_file(std::string(400, 'x')).size(), 80u);
}

std::string hash_of(std::string_view text) {
  Hasher hasher;
  hasher.update(text);
  return hasher.hex_digest();
}

TEST(Hash, MatchesPublishedVectors) {
  EXPECT_EQ(hash_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_of("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(hash_of("abc"), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(hash_of("The quick brown fox jumps over the lazy dog"),
            "ddd650205ca3e7fa24a1cc2e3a8a7651");
  std::string bytes;
  for (int i = 0; i < 1024; ++i) bytes += static_cast<char>(i % 256);
  EXPECT_EQ(hash_of(bytes), "83885e853bb6640ca870f92984398d22");
}

TEST(Hash, IsIndependentOfChunkBoundaries) {
  std::string text(5000, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  const std::string whole = hash_of(text);
  for (std::size_t piece : {1, 7, 64, 255, 256, 1024, 4999}) {
    Hasher hasher;
    for (std::size_t i = 0; i < text.size(); i += piece) {
      hasher.update(std::string_view(text).substr(i, piece));
    }
    EXPECT_EQ(hasher.hex_digest(), whole) << piece;
  }
}

TEST(Hash, ContinuesAfterDigest) {
  Hasher hasher;
  hasher.update("ab");
  EXPECT_EQ(hasher.hex_digest(), hash_of("ab"));
  hasher.update("c");
  EXPECT_EQ(hasher.hex_digest(), hash_of("abc"));
  Hasher moved = std::move(hasher);
  EXPECT_EQ(moved.hex_digest(), hash_of("abc"));
}

std::uint32_t crc32c_bit_by_bit(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

TEST(Crc32c, MatchesPublishedValues) {
  // Test vectors from RFC 3720, appendix B.4, and the standard check value of CRC-32C.
  const std::vector<std::byte> zeros(32, std::byte{0}), ones(32, std::byte{0xff});
  EXPECT_EQ(internal::crc32c_of(zeros), 0x8A9136AAu);
  EXPECT_EQ(internal::crc32c_of(ones), 0x62A8AB43u);
  EXPECT_EQ(internal::crc32c_of({}), 0u);
  std::vector<std::byte> increasing(32);
  for (std::size_t i = 0; i < increasing.size(); ++i) increasing[i] = static_cast<std::byte>(i);
  EXPECT_EQ(internal::crc32c_of(increasing), 0x46DD794Eu);
  constexpr std::string_view kDigits = "123456789";
  EXPECT_EQ(internal::crc32c_of(std::as_bytes(std::span(kDigits))), 0xE3069283u);
}

TEST(Crc32c, MatchesBitwiseReferenceAtAnyLengthAndOffset) {
  std::vector<std::byte> bytes(9000);
  std::uint32_t state = 12345;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  for (std::size_t count = 0; count < 8000; count += count < 1100 ? 1 : 97) {
    for (const std::size_t first : {0u, 1u, 13u}) {
      const auto part = std::span<const std::byte>(bytes).subspan(first, count);
      const auto before = static_cast<std::uint32_t>(count * 2654435761u);
      ASSERT_EQ(internal::crc32c_of(part, before), crc32c_bit_by_bit(part, before))
          << count << " bytes from " << first;
    }
  }
}

TEST(Crc32c, ExtendsChecksumOfPreviousChunk) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const auto all = std::span<const std::byte>(bytes);
  for (const std::size_t cut : {1u, 255u, 512u, 700u, 4096u}) {
    EXPECT_EQ(internal::crc32c_of(all.subspan(cut), internal::crc32c_of(all.first(cut))),
              internal::crc32c_of(all));
  }
}

std::string json_error(std::string_view text) {
  try {
    Json::parse(text, "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "accepted";
}

TEST(JsonParse, ReadsEveryKindOfValue) {
  const Json json = Json::parse(
      R"( {"z": null, "t": true, "i": -42, "d": 2.5e3, "s": "a\u00e9\n\ud83d\ude00", "a": [1, []], "o": {}} )");
  EXPECT_TRUE(json.at("z").is_null());
  EXPECT_TRUE(json.at("t").as_bool());
  EXPECT_EQ(json.at("i").as_int(), -42);
  EXPECT_EQ(json.at("d").as_double(), 2500.0);
  EXPECT_EQ(json.at("d").as_int(), 2500);
  EXPECT_EQ(json.at("i").as_double(), -42.0);
  EXPECT_EQ(json.at("s").as_string(), "a\xC3\xA9\n\xF0\x9F\x98\x80");
  EXPECT_EQ(json.at("a").as_array().size(), 2u);
  EXPECT_TRUE(json.at("o").as_object().empty());
  EXPECT_EQ(json.as_object().front().first, "z");  // members keep their order
  EXPECT_EQ(json.as_object().back().first, "o");
}

TEST(JsonParse, ErrorsNameSourceLineAndColumn) {
  EXPECT_NE(json_error("{\n  \"a\": 1,\n  \"b\" 2\n}")
                .find("config.json: not valid JSON at line 3, column 7"),
            std::string::npos)
      << json_error("{\n  \"a\": 1,\n  \"b\" 2\n}");
  EXPECT_NE(json_error("[1, 2").find("line 1, column 6"), std::string::npos) << json_error("[1, 2");
}

TEST(JsonParse, RefusesMalformedInput) {
  for (const std::string& text : split_text(
           R"(| |{|}|[|[1,]|{"a":}|{a:1}|{"a":1,}|nul|truee|01|1.|.5|+1|1e|-|'a'|"|"\x"|"\u12")"
           R"(|"\ud800"|[1] 2|1 1|NaN|Infinity|1e999|{"a":1,"a":2})",
           '|')) {
    EXPECT_NE(json_error(text), "accepted") << text;
  }
  for (const char* text : {"\"\n\"", "\"\x01\"", "\"\xFF\"", "\"\xC0\x80\"", "// c\n1"}) {
    EXPECT_NE(json_error(text), "accepted") << text;
  }
  EXPECT_NE(json_error("{\"a\":1,\"a\":2}").find("'a' appears twice"), std::string::npos);
  EXPECT_EQ(json_error(R"({"x": [0, {"b": {"a": 1, "a": 2}}]})"),
            "config.json.x[1].b: member 'a' appears twice in an object; expected each name once");
  EXPECT_EQ(
      json_error(R"({"x\ny": {"a\nb": 1, "a\nb": 2}})"),
      R"(config.json.x\ny: member 'a\nb' appears twice in an object; expected each name once)");
  // The error quotes text that ends in the middle of a character.
  EXPECT_NE(json_error("{\"a\"\xef\xbb\xbf:1}").find("last read: '\"a\"?'"), std::string::npos);
}

TEST(JsonParse, RejectsZeroBytesAnywhere) {
  using namespace std::string_view_literals;
  EXPECT_EQ(json_error("{}\0"sv), "config.json: not valid JSON at line 1, column 3: a zero byte");
  EXPECT_EQ(json_error("[1]\n\0[2]"sv),
            "config.json: not valid JSON at line 2, column 1: a zero byte");
  EXPECT_NE(json_error("\0"sv), "accepted");
  EXPECT_NE(json_error("[\"a\0b\"]"sv), "accepted");
}

TEST(JsonParse, LimitsErrorLengthAndNestingDepth) {
  const std::string error = json_error(concat("{\"", std::string(100'000, 'a'), "\n"));
  EXPECT_LT(error.size(), 500u);
  EXPECT_NE(error.find("control character"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos);
  const std::string open(256, '['), close(256, ']');
  EXPECT_EQ(Json::parse(open + close).as_array().size(), 1u);
  const std::string message = json_error("[\"[[\\\"\", \n" + open + close + "]");
  EXPECT_NE(message.find("line 2, column 256: nested more than 256"), std::string::npos) << message;
  EXPECT_NE(json_error(std::string(1'000'000, '[')).find("nested more"), std::string::npos);
}

TEST(JsonParse, IntegersBeyondInt64BecomeDoubles) {
  EXPECT_EQ(Json::parse("9223372036854775807").as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(Json::parse("-9223372036854775808").as_int(), std::numeric_limits<std::int64_t>::min());
  const Json beyond = Json::parse("9223372036854775808");
  EXPECT_EQ(beyond.as_double(), 0x1p63);
  EXPECT_THROW(beyond.as_int(), Error);
  EXPECT_THROW(Json(std::uint64_t{1} << 63), Error);
  EXPECT_EQ(Json(std::uint64_t{1} << 62).as_int(), std::int64_t{1} << 62);
}

TEST(JsonValue, ErrorNamesExpectedAndActualKind) {
  EXPECT_EQ(error_of([] { (void)Json("text").as_int(); }),
            "Json: wrong kind of value; expected a whole number, got a string");
  EXPECT_THROW(Json(1.5).as_int(), Error);
  EXPECT_THROW(Json(1).as_bool(), Error);
  EXPECT_THROW(Json(1).find("a"), Error);
  EXPECT_THROW(Json::object().at("a"), Error);
  EXPECT_THROW(Json::array().set("a", 1), Error);
  EXPECT_THROW(Json::object().push_back(1), Error);
  EXPECT_EQ(Json::object().find("a"), nullptr);
}

TEST(JsonDump, WritesCompactOrIndentedText) {
  Json json = Json::object();
  json.set("b", 1)
      .set("a", Json::Array{1.0, "x", nullptr, false})
      .set("b", 2)
      .set("e", Json::object());
  EXPECT_EQ(json.dump(), R"({"b":2,"a":[1.0,"x",null,false],"e":{}})");
  EXPECT_EQ(json.dump(2),
            "{\n  \"b\": 2,\n  \"a\": [\n    1.0,\n    \"x\",\n    null,\n    false\n  ],\n  "
            "\"e\": {}\n}");
}

TEST(JsonDump, EscapesForbiddenCharacters) {
  EXPECT_EQ(Json("\"\\\n\t\x01/").dump(), R"("\"\\\n\t\u0001/")");
  EXPECT_EQ(Json("\xC3\xA9").dump(), "\"\xC3\xA9\"");
  EXPECT_EQ(Json("a\xFF\xC3").dump(), "\"a\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_EQ(Json("\xED\xA0\x80").dump(),
            "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // a UTF-16 surrogate, invalid in UTF-8
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(-std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(JsonDump, DoublesRoundTripExactly) {
  const RandomStream stream({.seed = 1, .purpose = kUserPurpose});
  int finite = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t bits = stream.bits64(i);
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    ++finite;
    const Json json(value);
    const double back = Json::parse(json.dump()).as_double();
    ASSERT_EQ(std::memcmp(&back, &value, sizeof(value)), 0) << json.dump();
    ASSERT_EQ(Json::parse(json.dump()), json);  // still a double
  }
  EXPECT_GT(finite, 19'000);
  EXPECT_EQ(Json(-0.0).dump(), "-0.0");
  EXPECT_EQ(Json(0.1).dump(), "0.1");
}

TEST(JsonDump, ParsedTextRoundTrips) {
  const std::string text =
      R"({"a":[1,-2,3.5,1e-09,"\u0000",{"b":[[],{}]}],"c":null,"d":[true,false]})";
  EXPECT_EQ(Json::parse(text).dump(), text);
  EXPECT_EQ(Json::parse(Json::parse(text).dump(3)), Json::parse(text));
}

}  // namespace tutti::testing::file_test

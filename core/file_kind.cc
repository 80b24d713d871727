// File types, recognised by their first bytes.
// SPDX-License-Identifier: Apache-2.0
#include "core/file_kind.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "core/byte_codec.h"
#include "core/hash.h"
#include "core/names.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

using namespace std::string_view_literals;

struct FileKind {
  std::string_view magic;
  std::string_view name;
  std::size_t offset = 0;  // offset of the magic bytes in the file
};

/// The first match wins, so longer magic bytes precede their prefixes.
constexpr std::array kKinds = {
    FileKind{"version https://git-lfs"sv, "a Git LFS pointer (run 'git lfs pull')"sv},
    FileKind{"\x93NUMPY"sv, "a .npy file (NumPy)"sv},
    FileKind{"PK\x03\x04"sv, "a zip archive (such as a .npz file or a file of torch.save())"sv},
    FileKind{"PK\x05\x06"sv, "an empty zip archive"sv},
    FileKind{"\x1f\x8b"sv, "a gzip file (run gunzip)"sv},
    FileKind{"BZh"sv, "a bzip2 file (run bunzip2)"sv},
    FileKind{"\xfd\x37zXZ\0"sv, "an xz file (run unxz)"sv},
    FileKind{"\x28\xb5\x2f\xfd"sv, "a Zstandard file (run unzstd)"sv},
    FileKind{"7z\xbc\xaf\x27\x1c"sv, "a 7-Zip archive"sv},
    FileKind{"Rar!\x1a\x07"sv, "a RAR archive"sv},
    FileKind{"ustar"sv, "a tar archive"sv, 257},
    FileKind{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"sv},
    FileKind{"CDF\x01"sv, "a NetCDF file"sv},
    FileKind{"CDF\x02"sv, "a NetCDF file"sv},
    FileKind{"PAR1"sv, "a Parquet file"sv},
    FileKind{"ARROW1"sv, "an Arrow file"sv},
    FileKind{"SQLite format 3\0"sv, "an SQLite database"sv},
    FileKind{"MATLAB 5.0"sv, "a MATLAB file"sv},
    FileKind{"\x89PNG\r\n\x1a\n"sv, "a PNG image"sv},
    FileKind{"\xff\xd8\xff"sv, "a JPEG image"sv},
    FileKind{"GIF8"sv, "a GIF image"sv},
    FileKind{"II*\0"sv, "a TIFF image"sv},
    FileKind{"MM\0*"sv, "a TIFF image"sv},
    FileKind{"WEBP"sv, "a WebP image"sv, 8},
    FileKind{"%PDF"sv, "a PDF file"sv},
    FileKind{"\x7f\x45LF"sv, "a program or library (ELF)"sv},
    FileKind{"\0\0\x08\x01"sv, "an IDX file (MNIST's format)"sv},
    FileKind{"\0\0\x08\x03"sv, "an IDX file (MNIST's format)"sv},
    FileKind{"\x80\x02"sv, "a Python pickle"sv},
    FileKind{"\x80\x03"sv, "a Python pickle"sv},
    FileKind{"\x80\x04\x95"sv, "a Python pickle"sv},
    FileKind{"\x80\x05\x95"sv, "a Python pickle"sv},
    FileKind{"\xff\xfe\0\0"sv, "UTF-32 text (expected UTF-8)"sv},
    FileKind{"\xff\xfe"sv, "UTF-16 text (expected UTF-8)"sv},
    FileKind{"\xfe\xff"sv, "UTF-16 text (expected UTF-8)"sv},
};

/// Returns true if the bytes begin like a safetensors file: 8 bytes with the length of the header,
/// then '{'.
bool is_safetensors(std::string_view bytes) {
  constexpr std::uint64_t kLargestHeader = 100'000'000;
  return bytes.size() > 8 && bytes[8] == '{' &&
         get_little_endian<std::uint64_t>(bytes, 0) < kLargestHeader;
}

/// Detects a TFRecord file, whose records begin with an 8-byte length and the masked checksum of
/// that length.
bool is_tfrecord(std::string_view bytes) {
  if (bytes.size() < 12) return false;
  const std::uint32_t crc = crc32c_of(std::as_bytes(std::span(bytes.substr(0, 8))));
  const std::uint32_t masked = (crc >> 15 | crc << 17) + 0xa282ead8u;
  return masked == get_little_endian<std::uint32_t>(bytes, 8);
}

/// Returns a description of what the text seems to be, such as "a JSON file"; "" if unknown.
std::string_view kind_of_text(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (text.empty()) return kOnlyWhiteSpace;
  for (const std::string_view word : {"<!doctype html"sv, "<html"sv, "<head"sv, "<body"sv}) {
    if (lower_case(text.substr(0, word.size())) == word)
      return "an HTML page (a download that failed?)";
  }
  if (text.starts_with("<?xml") || text.starts_with("<Error>")) {
    return "an XML file (a download that failed?)";
  }
  const std::size_t inside = text.find_first_not_of(" \t\r\n", 1);
  const char second = inside == std::string_view::npos ? '\0' : text[inside];
  if (text[0] == '{' && (second == '"' || second == '}')) return "a JSON file";
  if (text[0] == '[' && (second == '[' || second == '{' || second == '"')) return "a JSON file";
  return "";
}

bool is_text(std::string_view bytes) {
  return std::none_of(bytes.begin(), bytes.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == 0x7f || (byte < 0x20 && "\t\r\n\f"sv.find(c) == std::string_view::npos);
  });
}

/// Returns true for UTF-16 without a byte order mark: ASCII characters and zero bytes alternate.
bool is_utf16(std::string_view bytes) {
  constexpr std::size_t kLooked = 8;
  if (bytes.size() < kLooked) return false;
  for (const std::size_t zero : {0, 1}) {
    bool fits = true;
    for (std::size_t i = 0; i < kLooked; ++i) {
      fits = fits && (i % 2 == zero ? bytes[i] == 0 : is_text(bytes.substr(i, 1)));
    }
    if (fits) return true;
  }
  return false;
}

}  // namespace

std::string kind_of_file(std::string_view first_bytes) {
  const std::string_view bytes = first_bytes.substr(0, 512);
  if (bytes.empty()) return "an empty file";
  for (const FileKind& kind : kKinds) {
    if (bytes.size() >= kind.offset && bytes.substr(kind.offset).starts_with(kind.magic)) {
      return std::string(kind.name);
    }
  }
  if (bytes.find_first_not_of('\0') == std::string_view::npos) {
    return "bytes that are all 0 (a download that was cut short?)";
  }
  if (is_safetensors(bytes)) return "a safetensors file";
  if (is_tfrecord(bytes)) return "a TFRecord file";
  if (is_utf16(bytes)) return "UTF-16 text (expected UTF-8)";
  return is_text(bytes) ? std::string(kind_of_text(bytes)) : "";
}

std::string describe_file(std::string_view first_bytes) {
  constexpr std::size_t kShownBytes = 8;
  const std::string kind = kind_of_file(first_bytes);
  if (!kind.empty()) return kind;
  const std::string_view bytes = first_bytes.substr(0, 512);
  if (!is_text(bytes)) {
    std::string shown;
    for (const char& byte : bytes.substr(0, kShownBytes)) {
      shown += " " + hex_of(std::as_bytes(std::span(&byte, 1)));
    }
    return concat("bytes that begin with", shown);
  }
  const std::string_view line = bytes.substr(0, bytes.find_first_of("\r\n"));
  return concat("text that begins with '", one_line(line, 40), "'");
}

std::string kind_note(std::string_view first_bytes) {
  const std::string kind = kind_of_file(first_bytes);
  return kind.empty() ? "" : concat("; the file is ", kind);
}

}  // namespace tutti::internal

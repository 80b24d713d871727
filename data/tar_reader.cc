// The files in a tar file.
// SPDX-License-Identifier: Apache-2.0
#include "data/tar_reader.h"

#include <algorithm>
#include <charconv>

#include "core/file_kind.h"
#include "tutti/core/error.h"

// A tar file: per file a header of one block and its content, filled up to whole blocks; at the end
// a block of zeros (two, but one is enough to tell the end from a cut). A header is preceded by
// records, which look like files, where it has no place for a long name or a large size. Archives
// that were concatenated continue behind the zeros.

namespace tutti::internal {
namespace {

constexpr std::uint64_t kLargestExtra = std::uint64_t{1} << 20;

std::string_view text_at(std::string_view block, std::size_t offset, std::size_t length) {
  const std::string_view field = block.substr(offset, length);
  return field.substr(0, field.find('\0'));
}

bool is_zero(std::string_view block) {
  return block.find_first_not_of('\0') == std::string_view::npos;
}

std::string name_of(std::string_view block) {
  const std::string name(text_at(block, 0, 100));
  const std::string_view prefix = text_at(block, 345, 155);
  const bool is_posix = block.substr(257, 6) == std::string_view("ustar\0", 6);
  return is_posix && !prefix.empty() ? concat(prefix, "/", name) : name;
}

}  // namespace

template <class... Parts>
void TarReader::fail_at(std::uint64_t offset, const Parts&... parts) const {
  fail(ErrorCode::kDataLoss, source(), ": offset ", offset, ": ", parts...);
}

std::uint64_t TarReader::octal_at(std::string_view block, std::size_t offset,
                                  std::size_t length) const {
  std::string_view digits = text_at(block, offset, length);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  digits = digits.substr(0, digits.find(' '));
  std::uint64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, number, 8);
  if (!digits.empty() && (result.ptr != end || result.ec != std::errc())) {
    fail_at(header_ + offset, "expected an octal number in a tar header, got other bytes");
  }
  return number;
}

// GNU writes what does not fit in octal digits as bytes, after one with the highest bit.
std::uint64_t TarReader::number_at(std::string_view block, std::size_t offset,
                                   std::size_t length) const {
  const auto first = static_cast<unsigned char>(block[offset]);
  if (first < 0x80) return octal_at(block, offset, length);
  std::uint64_t number = first & 0x7f;
  for (std::size_t i = 1; i < length; ++i) {
    if (number >> 54 != 0) {
      fail_at(header_ + offset, "expected a size of less than 2^62 bytes, got more");
    }
    number = number << 8 | static_cast<unsigned char>(block[offset + i]);
  }
  return number;
}

// "" where the header has the checksum of its bytes, else both.
std::string TarReader::wrong_checksum(std::string_view block) const {
  constexpr std::size_t kPlace = 148, kLength = 8;
  const std::uint64_t expected = octal_at(block, kPlace, kLength);
  std::int64_t sum = 0, signed_sum = 0;  // some old programs added signed bytes
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool blank = i >= kPlace && i < kPlace + kLength;
    sum += blank ? ' ' : static_cast<unsigned char>(block[i]);
    signed_sum += blank ? ' ' : static_cast<signed char>(block[i]);
  }
  const auto wanted = static_cast<std::int64_t>(expected);
  if (wanted == sum || wanted == signed_sum) return "";
  return concat("expected ", sum, ", got ", expected);
}

// Returns true if another archive begins behind the zeros; `block` is then its first header.
bool TarReader::find_next_archive(std::string& block) {
  do {
    header_ = file_.offset();
    block.clear();
    if (file_.read(block, kTarBlock) < kTarBlock) return false;
  } while (is_zero(block));
  return block.substr(257, 5) == "ustar" && wrong_checksum(block).empty();
}

// A file of another kind is named instead of its first bytes.
void TarReader::require_tar(std::string_view block) const {
  if (header_ != 0) return;
  const std::string kind = kind_of_file(block);
  if (kind.empty() || block.substr(std::min<std::size_t>(block.size(), 257), 5) == "ustar") return;
  fail_at(0, "expected a tar file, got ", kind);
}

// False at the end of the tar file.
bool TarReader::read_header(std::string& block) {
  if (ended_) return false;
  skip_content();
  header_ = file_.offset();
  block.clear();
  if (const std::uint64_t got = file_.read(block, kTarBlock); got < kTarBlock) {
    require_tar(block);
    fail_at(header_, "the tar file ends early; expected a header or a block of zeros of ",
            kTarBlock, " bytes, got ", got);
  }
  if (is_zero(block)) {
    ended_ = !find_next_archive(block);
    return !ended_;
  }
  require_tar(block);
  if (const std::string wrong = wrong_checksum(block); !wrong.empty()) {
    fail_at(header_ + 148, "the checksum of a tar header is wrong; ", wrong,
            header_ == 0 ? "; is this a tar file?" : "");
  }
  return true;
}

std::string TarReader::read_content(std::uint64_t size, const char* what) {
  const std::uint64_t begin = file_.offset();
  std::string content;
  const std::uint64_t got = file_.read(content, size);
  const std::uint64_t filled = file_.skip(padding_);
  if (got < size || filled < padding_) {
    fail_at(begin, "the tar file ends within ", what, "; expected ", size + padding_,
            " bytes, got ", got + filled);
  }
  content_ = padding_ = 0;
  return content;
}

void TarReader::skip_content() {
  const std::uint64_t begin = file_.offset();
  const std::uint64_t whole = content_ + padding_;
  if (const std::uint64_t got = file_.skip(whole); got < whole) {
    fail_at(begin, "the tar file ends within a file; expected ", whole, " bytes, got ", got);
  }
  content_ = padding_ = 0;
}

std::string TarReader::read() {
  require_within(limits_, content_, 0, source());
  return read_content(content_, "a file");
}

// Records "<length> <key>=<value>\n", whose length counts all of it.
void TarReader::parse_pax(std::string_view records, Extra& extra) {
  while (!records.empty() && records.front() != '\0') {
    std::size_t length = 0;
    const char* end = records.data() + records.size();
    const auto result = std::from_chars(records.data(), end, length);
    const auto digits = static_cast<std::size_t>(result.ptr - records.data());
    if (result.ec != std::errc() || length > records.size() || length < digits + 3 ||
        *result.ptr != ' ' || records[length - 1] != '\n') {
      fail_at(header_, "expected records '<length> <key>=<value>' of pax, got other bytes");
    }
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    const std::size_t equals = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(std::min(equals + 1, record.size()));
    if (key.starts_with("GNU.sparse.")) {
      fail(ErrorCode::kUnimplemented, source(), ": offset ", header_,
           ": expected plain files, got a sparse one; try tar without --sparse");
    }
    if (key == "path") extra.name = value;
    if (key == "size") {
      std::uint64_t size = 0;
      const char* value_end = value.data() + value.size();
      const auto number = std::from_chars(value.data(), value_end, size);
      if (number.ec != std::errc() || number.ptr != value_end || size >> 62 != 0) {
        fail_at(header_, "expected a number as size in a record of pax, got other bytes");
      }
      extra.size = size;
    }
    records.remove_prefix(length);
  }
}

// Whether the header was one of records about the next.
bool TarReader::read_extra(char type, std::uint64_t size, Extra& extra) {
  constexpr std::string_view kRecords = "xgLK";
  if (kRecords.find(type) == std::string_view::npos) return false;
  if (size > kLargestExtra) {
    fail_at(header_, "expected at most ", kLargestExtra, " bytes of names and records, got ", size);
  }
  const std::string records = read_content(size, "a record of names");
  if (type == 'L') extra.name = records.substr(0, records.find('\0'));
  if (type == 'x') parse_pax(records, extra);
  Extra global;
  if (type == 'g') parse_pax(records, global);
  if (global.name || global.size) {
    fail(ErrorCode::kUnimplemented, source(), ": offset ", header_,
         ": expected names and sizes per file, got a global pax record of them");
  }
  return true;
}

std::optional<TarEntry> TarReader::next() {
  Extra extra;
  for (std::string block; read_header(block);) {
    const char type = block[156];
    const std::uint64_t stated = number_at(block, 124, 12);
    const auto set_content = [&](std::uint64_t size) {
      content_ = size;
      padding_ = (kTarBlock - size % kTarBlock) % kTarBlock;
    };
    set_content(stated);
    if (read_extra(type, stated, extra)) continue;
    if (type == 'S' || type == 'M') {
      fail(ErrorCode::kUnimplemented, source(), ": offset ", header_,
           ": expected whole, plain files, got ", type == 'S' ? "a sparse one" : "part of one");
    }
    TarEntry entry{extra.name.value_or(name_of(block)), header_, extra.size.value_or(stated)};
    extra = {};
    const bool is_file = type == '0' || type == '\0' || type == '7';
    // Links and devices have no content, whatever size they state.
    const bool has_none = type >= '1' && type <= '6';
    set_content(has_none ? 0 : entry.size);
    // Old programs wrote folders as files.
    if (is_file && !entry.name.ends_with('/')) return entry;
  }
  if (extra.name || extra.size) {
    fail_at(header_, "expected a file behind its name, got the end of the tar file");
  }
  return std::nullopt;
}

}  // namespace tutti::internal

// Files in blocks: checksums run over everything before them, so that no block can be exchanged.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/checked_blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/core/byte_codec.h"
#include "tutti/core/crc32c.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMagic = 8;
constexpr std::uint32_t kLongestFileHead = std::uint32_t{1} << 20;

/// For messages: what is no character stands as a dot.
std::string shown(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    const char c = static_cast<char>(each);
    text += c >= ' ' && c <= '~' ? c : '.';
  }
  return text;
}

}  // namespace

CheckedWriter::CheckedWriter(const FileKind& kind, std::span<const std::byte> head, Sink sink)
    : sink_(std::move(sink)) {
  TUTTI_CHECK(kind.magic.size() == kMagic && head.size() <= kLongestFileHead,
              "CheckedWriter: a magic of ", kind.magic.size(), " and a head of ", head.size(),
              " bytes");
  put_checked(std::as_bytes(std::span(kind.magic)));
  put_number(kind.format);
  put_number(static_cast<std::uint32_t>(head.size()));
  put_checked(head);
  put_checksum();
  block_.reserve(kLongestBlock);
}

void CheckedWriter::put_checked(std::span<const std::byte> bytes) {
  checksum_ = crc32c_of(bytes, checksum_);
  sink_(bytes);
}

void CheckedWriter::put_number(std::uint32_t value) {
  ByteWriter bytes;
  bytes.number(value);
  put_checked(bytes.bytes());
}

void CheckedWriter::put_checksum() {
  ByteWriter bytes;
  bytes.number(checksum_);
  sink_(bytes.bytes());
}

void CheckedWriter::end_block() {
  put_number(static_cast<std::uint32_t>(block_.size()));
  put_checked(block_);
  put_checksum();
  block_.clear();
}

void CheckedWriter::put(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto now = bytes.first(std::min(bytes.size(), kLongestBlock - block_.size()));
    block_.insert(block_.end(), now.begin(), now.end());
    if (block_.size() == kLongestBlock) end_block();
    bytes = bytes.subspan(now.size());
  }
}

void CheckedWriter::finish() {
  if (!block_.empty()) end_block();
  end_block();
}

CheckedReader::CheckedReader(const FileKind& kind, std::string path, std::uint64_t size,
                             Source source)
    : path_(std::move(path)), size_(size), source_(std::move(source)) {
  std::vector<std::byte> magic(kMagic);
  read(magic, "the beginning");
  if (std::memcmp(magic.data(), kind.magic.data(), kMagic) != 0) {
    refuse(0, "expected a file that begins with '", kind.magic, "', found '", shown(magic), "'");
  }
  const std::uint32_t format = number("the format");
  const std::uint32_t length = number("the length of the head");
  if (length > kLongestFileHead) {
    refuse(offset_ - 4, "expected a head of at most ", kLongestFileHead, " bytes, found ", length);
  }
  head_.resize(length);
  read(head_, "the head");
  compare_checksum(0);
  if (format != kind.format) {
    fail(ErrorCode::kUnimplemented, path_, ": offset ", kMagic, ": expected format ", kind.format,
         ", found ", format, "; try the version of tutti that wrote it");
  }
}

void CheckedReader::read(std::span<std::byte> out, const char* what) {
  if (out.size() > size_ - offset_) {
    refuse(offset_, "expected ", out.size(), " bytes of ", what, ", found ", size_ - offset_,
           ": the file was cut off");
  }
  if (!out.empty()) source_(offset_, out);
  offset_ += out.size();
  checksum_ = crc32c_of(out, checksum_);
}

std::uint32_t CheckedReader::number(const char* what) {
  std::byte bytes[sizeof(std::uint32_t)];
  read(bytes, what);
  return ByteReader(bytes).number<std::uint32_t>();
}

void CheckedReader::compare_checksum(std::uint64_t first) {
  const std::uint32_t expected = checksum_;
  const std::uint32_t found = number("a checksum");
  checksum_ = expected;
  if (found == expected) return;
  refuse(first, "expected checksum ", expected, " up to offset ", offset_ - 4, ", found ", found,
         ": the file was changed");
}

void CheckedReader::next_block() {
  if (is_over_) refuse(offset_, "expected more blocks, found the last one");
  const std::uint64_t first = offset_;
  const std::uint32_t length = number("the length of a block");
  if (length > CheckedWriter::kLongestBlock) {
    refuse(first, "expected a block of at most ", CheckedWriter::kLongestBlock, " bytes, found ",
           length);
  }
  if (length > 0 && !is_full_) {
    refuse(first, "expected the last block behind one of ", block_.size(), " bytes, found ", length,
           " bytes more");
  }
  is_full_ = length == CheckedWriter::kLongestBlock;
  block_.resize(length);
  read(block_, "a block");
  compare_checksum(first);
  place_ = 0;
  is_over_ = length == 0;
}

void CheckedReader::get(std::span<std::byte> out) {
  while (!out.empty()) {
    if (place_ == block_.size()) next_block();
    const std::size_t now = std::min(out.size(), block_.size() - place_);
    if (now > 0) std::memcpy(out.data(), block_.data() + place_, now);
    place_ += now;
    out = out.subspan(now);
  }
}

std::vector<std::byte> CheckedReader::get(std::uint64_t count) {
  const std::uint64_t left = size_ - offset();
  if (count > left) {
    refuse(offset(), "expected at most ", left, " more bytes, found a length of ", count);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  get(std::span<std::byte>(bytes));
  return bytes;
}

std::uint64_t CheckedReader::finish_part() {
  if (place_ == block_.size() && !is_over_) next_block();
  if (!is_over_) {
    refuse(offset(), "expected the last block, found ", block_.size() - place_, " bytes more");
  }
  return offset_;
}

void CheckedReader::finish() {
  const std::uint64_t end = finish_part();
  if (end == size_) return;
  refuse(end, "expected the end of the file, found ", size_ - end, " bytes more");
}

}  // namespace tutti::internal

// Writing tar files.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <utility>

#include "tutti/core/file.h"
#include "tutti/data/tar_reader.h"

namespace tutti {
namespace {

using internal::kTarBlock;

constexpr std::size_t kNameBytes = 100;
constexpr std::uint64_t kLargestOctal = (std::uint64_t{1} << 33) - 1;  // 8 GiB, 11 digits

void put_text(std::string& block, std::size_t offset, std::string_view text) {
  block.replace(offset, text.size(), text);
}

void put_octal(std::string& block, std::size_t offset, int digits, std::uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "%0*llo", digits, static_cast<unsigned long long>(number));
  put_text(block, offset, text);
}

// By POSIX.1-1988 (ustar).
std::string header_of(std::string_view name, std::uint64_t size, char type) {
  std::string block(kTarBlock, '\0');
  put_text(block, 0, name.substr(0, kNameBytes));
  put_text(block, 100, "0000644");
  put_text(block, 108, "0000000");
  put_text(block, 116, "0000000");
  put_octal(block, 124, 11, size);
  put_text(block, 136, "00000000000");
  put_text(block, 148, "        ");
  block[156] = type;
  put_text(block, 257,
           std::string_view("ustar\0"
                            "00",
                            8));
  std::uint64_t sum = 0;
  for (char byte : block) sum += static_cast<unsigned char>(byte);
  put_octal(block, 148, 6, sum);
  block[154] = '\0';
  return block;
}

void append_padded(std::string& bytes, std::string_view content) {
  bytes += content;
  bytes.append((kTarBlock - content.size() % kTarBlock) % kTarBlock, '\0');
}

// "<length> <key>=<value>\n"; the length counts its own digits.
std::string pax_record(std::string_view key, const std::string& value) {
  const std::size_t rest = 1 + key.size() + 1 + value.size() + 1;
  std::size_t length = rest;
  while (length != rest + std::to_string(length).size()) {
    length = rest + std::to_string(length).size();
  }
  return concat(length, " ", key, "=", value, "\n");
}

}  // namespace

void TarWriter::write(const std::string& name, std::string_view bytes) {
  if (closed_) {
    fail(ErrorCode::kFailedPrecondition, "TarWriter::write: '", path_,
         "' is closed; expected write() before close()");
  }
  if (name.empty() || name.ends_with('/') || name.find('\0') != std::string::npos) {
    fail(ErrorCode::kInvalidArgument, "TarWriter::write: expected the name of a file, got '", name,
         "'");
  }
  std::string records;
  if (name.size() > kNameBytes) records += pax_record("path", name);
  if (bytes.size() > kLargestOctal) records += pax_record("size", std::to_string(bytes.size()));
  if (!records.empty()) {
    bytes_ += header_of("@PaxHeader", records.size(), 'x');
    append_padded(bytes_, records);
  }
  bytes_ += header_of(name, std::min<std::uint64_t>(bytes.size(), kLargestOctal), '0');
  append_padded(bytes_, bytes);
}

void TarWriter::write(const TarSample& sample) {
  if (sample.files.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "TarWriter::write: expected a sample with files, got none in '", sample.key, "'");
  }
  for (const auto& [extension, bytes] : sample.files) {
    const std::string name = concat(sample.key, ".", extension);
    const auto read = internal::split_tar_name(name);
    if (!read || read->first != sample.key || read->second != extension) {
      fail(ErrorCode::kInvalidArgument, "TarWriter::write: the file '", name,
           "' would not be read as '", extension, "' of '", sample.key,
           "'; expected a key without a dot in its name and an extension of small letters");
    }
  }
  for (const auto& [extension, bytes] : sample.files) {
    write(concat(sample.key, ".", extension), bytes);
  }
}

void TarWriter::close() {
  if (closed_) return;
  // Whole records of 20 blocks, with at least two blocks of zeros, as tar writes them.
  constexpr std::size_t kRecord = 20 * kTarBlock;
  bytes_.append(2 * kTarBlock, '\0');
  bytes_.append((kRecord - bytes_.size() % kRecord) % kRecord, '\0');
  write_file_atomically(path_, bytes_);
  closed_ = true;
  bytes_.clear();
}

}  // namespace tutti

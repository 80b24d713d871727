// Incremental reading of files, for formats that can be larger than memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/byte_codec.h"
#include "tutti/data/dataset.h"
#include "tutti/data/input_limits.h"

namespace tutti::internal {

// Decompression with zlib.

/// Returns true if the bytes begin with the magic number of a .gz file.
bool is_gzip(std::string_view bytes);

/// Returns the contents of a .gz file (all its members). `source` names the file in errors. Throws
/// kDataLoss with the offset if the bytes are damaged or end early; kResourceExhausted beyond
/// `limits`.
std::string gunzip(std::string_view bytes, const std::string& source,
                   const InputLimits& limits = {});

/// Format of the header and trailer around compressed data.
enum class DeflateFormat { kGzip, kZlib, kRaw };

/// Decompresses `bytes` to at most `stated_bytes` bytes. Throws the errors of gunzip(), and
/// kDataLoss for larger content.
std::string inflate_bytes(std::string_view bytes, DeflateFormat format, const std::string& source,
                          const InputLimits& limits = {}, std::size_t stated_bytes = SIZE_MAX);

std::string deflate_bytes(std::string_view bytes, DeflateFormat format);

/// Returns the CRC-32 (ISO 3309), as in zip files.
std::uint32_t crc32(std::string_view bytes);

/// Returns the result of `action`. Errors about a missing or unreadable file get the prefix `who`,
/// the function that the user called.
template <class Action>
auto naming(const char* who, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound && error.code() != ErrorCode::kUnavailable) throw;
    if (error.message().starts_with(who)) throw;
    throw error.with_context(who);
  }
}

/// Same as read_file(), but errors name `who`.
std::string read_file_for(const char* who, const std::string& path);
/// Same as read_file_for(), but unpacks a .gz file.
std::string read_plain_or_gzip(const char* who, const std::string& path,
                               const InputLimits& limits = {});

/// File that is read from beginning to end. A .gz file is decompressed in full when it is opened;
/// offsets refer to the decompressed content. Not thread-safe.
class InputFile {
 public:
  /// Opens a file. Throws kNotFound or kUnavailable with the path and the system's reason, and the
  /// errors of gunzip().
  explicit InputFile(const std::string& path, const InputLimits& limits = {});
  /// Returns a file with this content, which `source` names in errors.
  static InputFile of_bytes(std::string bytes, std::string source);

  const std::string& source() const { return source_; }
  std::uint64_t offset() const { return offset_; }
  /// Returns the bytes that were read ahead. Before the first read, these are the first bytes of
  /// the file, or "" if it is empty.
  std::string_view bytes_ahead() const { return std::string_view(buffer_).substr(place_); }
  /// Returns the size of the whole file in bytes; nullopt for pipes and devices.
  std::optional<std::uint64_t> size() const { return size_; }

  /// Returns the next byte, 0 to 255, or -1 at the end.
  int get() {
    if (place_ == buffer_.size() && !refill()) return -1;
    ++offset_;
    return static_cast<unsigned char>(buffer_[place_++]);
  }
  /// Same as get(), but does not consume the byte.
  int peek() {
    if (place_ == buffer_.size() && !refill()) return -1;
    return static_cast<unsigned char>(buffer_[place_]);
  }
  /// Appends `count` bytes, or fewer at the end of the file, and returns the number of bytes
  /// appended. Memory use depends on the data, not on `count`.
  std::uint64_t read(std::string& to, std::uint64_t count);
  /// Skips up to `count` bytes, by seeking if possible; returns the number of bytes skipped.
  std::uint64_t skip(std::uint64_t count);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  InputFile() = default;
  bool refill();

  std::string source_;
  std::unique_ptr<std::FILE, Close> file_;  // null: all bytes are in the buffer
  std::optional<std::uint64_t> size_;
  std::uint64_t offset_ = 0;
  std::string buffer_;
  std::size_t place_ = 0;  // index of the next byte in buffer_
};

// Datasets that read several files in sequence.

/// Elements of one open file. Not thread-safe.
class FileElements {
 public:
  virtual ~FileElements() = default;
  /// Returns the next element, or nullopt at the end.
  virtual std::optional<Element> next() = 0;
  /// Skips up to `count` elements; returns the number of skipped elements.
  virtual std::int64_t skip(std::int64_t count) = 0;
};

/// Returns a uint8 tensor of shape [bytes.size()]. Inverse of bytes_of() (records.h).
Tensor tensor_of_bytes(std::string_view bytes);

using OpenFile = std::function<std::unique_ptr<FileElements>(const std::string& path)>;

/// Returns the elements of the files in sequence. Each pass calls `open` when it reaches a file.
/// Throws kInvalidArgument naming `who` if there are no paths; next() throws if a file cannot be
/// opened.
Dataset dataset_of_files(std::vector<std::string> paths, OpenFile open, const char* who);

// Byte order, and records of TFRecord files.

/// Reverses the bytes within each element of `size` bytes, to convert big-endian numbers.
void reverse_each(std::byte* data, std::size_t bytes, std::size_t size);

// TFRecord files. A record consists of the data's length (8 bytes), the masked checksum of the
// length, the data, and the masked checksum of the data.

/// Returns TFRecord's masked CRC-32C (core/hash.h). The mask makes it suitable for data that
/// contains CRCs.
std::uint32_t masked_crc32c(std::string_view bytes);
/// Appends a record of a TFRecord file.
void put_record(std::string& bytes, std::string_view record);

}  // namespace tutti::internal

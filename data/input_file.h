// Files read piece by piece, for formats that can be larger than memory.
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

// Compressed files, on zlib.

/// Whether the bytes begin like those of a .gz file.
bool is_gzip(std::string_view bytes);

/// The content of a .gz file (of all its members). `source` names it in errors. Throws kDataLoss
/// naming source and offset where the bytes are damaged or end early; kResourceExhausted beyond
/// `limits`.
std::string gunzip(std::string_view bytes, const std::string& source,
                   const InputLimits& limits = {});

/// How zlib frames what it packs.
enum class DeflateFormat { kGzip, kZlib, kRaw };

/// Unpacks `bytes` to at most `stated_bytes`; errors as gunzip(), and kDataLoss for a larger
/// content.
std::string inflate_bytes(std::string_view bytes, DeflateFormat format, const std::string& source,
                          const InputLimits& limits = {}, std::size_t stated_bytes = SIZE_MAX);

/// Packs `bytes`.
std::string deflate_bytes(std::string_view bytes, DeflateFormat format);

/// CRC-32 (ISO 3309), as zip files have it.
std::uint32_t crc32(std::string_view bytes);

/// Calls `action`. What it throws of a file that does not exist or cannot be read gets the name of
/// the function that the user called in front.
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

/// read_file(), whose errors name `who`.
std::string read_file_for(const char* who, const std::string& path);
/// The same, unpacked when it is a .gz file.
std::string read_plain_or_gzip(const char* who, const std::string& path,
                               const InputLimits& limits = {});

/// A file that is read from its begin to its end. A .gz file is unpacked when it is opened, whole:
/// offsets are those of its content. Used by one thread.
class InputFile {
 public:
  /// Throws kNotFound or kUnavailable naming the path and the system's reason; as gunzip() for a
  /// damaged .gz file, or one beyond `limits`.
  explicit InputFile(const std::string& path, const InputLimits& limits = {});
  /// Reads `bytes`, which `source` names in errors.
  static InputFile of_bytes(std::string bytes, std::string source);

  const std::string& source() const { return source_; }
  std::uint64_t offset() const { return offset_; }
  /// The bytes that were read ahead; at the begin the first ones of the file, "" for an empty one.
  std::string_view bytes_ahead() const { return std::string_view(buffer_).substr(place_); }
  /// Bytes of the whole file; nothing for pipes and devices.
  std::optional<std::uint64_t> size() const { return size_; }

  /// The next byte, 0 to 255; -1 at the end.
  int get() {
    if (place_ == buffer_.size() && !refill()) return -1;
    ++offset_;
    return static_cast<unsigned char>(buffer_[place_++]);
  }
  /// As get(), but the byte stays.
  int peek() {
    if (place_ == buffer_.size() && !refill()) return -1;
    return static_cast<unsigned char>(buffer_[place_]);
  }
  /// Appends up to `count` bytes; gives how many: fewer only at the end. Memory grows with what is
  /// there, not with `count`.
  std::uint64_t read(std::string& to, std::uint64_t count);
  /// Leaves out up to `count` bytes, by seeking where the file can; gives how many.
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
  std::size_t place_ = 0;  // of the next byte in the buffer
};

// Datasets over several files that are read one after the other.

/// The elements of one open file. Used by one thread.
class FileElements {
 public:
  virtual ~FileElements() = default;
  /// The next element; nothing at the end.
  virtual std::optional<Element> next() = 0;
  /// Leaves out up to `count` elements; gives how many there were.
  virtual std::int64_t skip(std::int64_t count) = 0;
};

/// What a file or a record holds: uint8 [bytes]. The opposite of bytes_of() (records.h).
Tensor tensor_of_bytes(std::string_view bytes);

using OpenFile = std::function<std::unique_ptr<FileElements>(const std::string& path)>;

/// The elements of the files, one file after the other; `open` is called when a file is reached,
/// once per pass. Throws kInvalidArgument naming `who` for no path, and from next() for a file that
/// cannot be opened.
Dataset dataset_of_files(std::vector<std::string> paths, OpenFile open, const char* who);

// Bytes of file formats: big-endian numbers, records of TFRecord files.

/// Turns the bytes of each element of `size` bytes round: big-endian numbers.
void reverse_each(std::byte* data, std::size_t bytes, std::size_t size);

// TFRecord files. A record is its length (8 bytes), the masked sum of these, the data and its
// masked sum.

/// TFRecord's masked form of CRC-32C (core/hash.h), which keeps checksums of checksums apart.
std::uint32_t masked_crc32c(std::string_view bytes);
/// Appends a record of a TFRecord file.
void put_record(std::string& bytes, std::string_view record);

}  // namespace tutti::internal

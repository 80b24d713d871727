// A file in blocks whose checksums show every changed, missing or moved byte, with its place.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::internal {

/// What a file of this kind begins with.
struct FileKind {
  std::string_view magic = {};  // 8 characters
  std::uint32_t format = 1;
};

/// The file: magic, u32 format, u32 length of the head, the head, u32 checksum; then blocks: u32
/// length (kLongestBlock, of the last one less, and then one of 0), the bytes, u32 checksum. Each
/// checksum is the CRC32C of all bytes before it but the checksums (a CRC that runs over itself
/// forgets what was before). Little-endian.
class CheckedWriter {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;
  CheckedWriter(const FileKind& kind, std::span<const std::byte> head, Sink sink);
  void put(std::span<const std::byte> bytes);
  void finish();

  static constexpr std::size_t kLongestBlock = std::size_t{64} << 10;

 private:
  void put_checked(std::span<const std::byte> bytes);
  void put_number(std::uint32_t value);
  void put_checksum();
  void end_block();

  Sink sink_;
  std::uint32_t checksum_ = 0;
  std::vector<std::byte> block_;
};

/// Reads what CheckedWriter wrote. Nothing is given out before its checksum was compared. Throws
/// kDataLoss naming the path, the offset, what was expected and what was found; kUnimplemented for
/// another format of the same kind.
class CheckedReader {
 public:
  /// Reads bytes at an offset; all of them are within `size`.
  using Source = std::function<void(std::uint64_t offset, std::span<std::byte> bytes)>;
  CheckedReader(const FileKind& kind, std::string path, std::uint64_t size, Source source);

  std::span<const std::byte> head() const { return head_; }
  void get(std::span<std::byte> out);
  /// Takes memory only for what the file is long enough to hold.
  std::vector<std::byte> get(std::uint64_t count);
  /// After all was read: the file has nothing more.
  void finish();
  /// The same for a file that other things follow in: where they begin.
  std::uint64_t finish_part();
  /// In the file, of what comes next.
  std::uint64_t offset() const { return offset_ - (block_.size() - place_); }
  template <class... Parts>
  [[noreturn]] void refuse(std::uint64_t offset, const Parts&... parts) const {
    fail(ErrorCode::kDataLoss, path_, ": offset ", offset, ": ", parts...);
  }

 private:
  void read(std::span<std::byte> out, const char* what);
  std::uint32_t number(const char* what);
  void compare_checksum(std::uint64_t first);
  void next_block();

  const std::string path_;
  const std::uint64_t size_;
  const Source source_;
  std::uint64_t offset_ = 0;  // of what was not read yet
  std::uint32_t checksum_ = 0;
  std::vector<std::byte> head_;
  std::vector<std::byte> block_;
  std::size_t place_ = 0;  // in the block
  bool is_full_ = true;    // the block, so that there may be another one
  bool is_over_ = false;   // the empty block was read
};

}  // namespace tutti::internal

// The few parts of protobuf's wire format that small files need.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::internal {

enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct WireTag {
  std::uint32_t field = 0;
  WireType type = WireType::kVarint;
};

/// Reads one message. Views its bytes. Errors are kDataLoss naming `source` and the offset in the
/// outermost message.
class WireReader {
 public:
  WireReader(std::string_view bytes, const std::string& source, std::size_t first_offset = 0)
      : bytes_(bytes), source_(&source), first_offset_(first_offset) {}

  bool at_end() const { return place_ == bytes_.size(); }
  WireTag tag();
  std::uint64_t varint();
  std::uint32_t fixed32();
  /// A length and as many bytes.
  std::string_view bytes();
  /// bytes() as a message of its own.
  WireReader message();
  /// Leaves out the value after `tag`.
  void skip(const WireTag& tag);

 private:
  template <class... Parts>
  [[noreturn]] void fail_at(std::size_t place, const Parts&... parts) const;
  void require(std::uint64_t count, const char* what) const;

  std::string_view bytes_;
  const std::string* source_;
  std::size_t first_offset_;
  std::size_t place_ = 0;
};

/// Append to a message.
void put_varint(std::string& message, std::uint64_t value);
void put_bytes(std::string& message, std::uint32_t field, std::string_view bytes);

}  // namespace tutti::internal

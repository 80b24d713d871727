// The few parts of protobuf's wire format that small files need.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/protobuf_wire.h"

#include "tutti/core/error.h"
#include "tutti/data/format_bytes.h"

namespace tutti::internal {

template <class... Parts>
void WireReader::fail_at(std::size_t place, const Parts&... parts) const {
  fail(ErrorCode::kDataLoss, *source_, ": offset ", first_offset_ + place, ": ", parts...);
}

void WireReader::require(std::uint64_t count, const char* what) const {
  if (count > bytes_.size() - place_) {
    fail_at(place_, "the message ends within ", what, "; expected ", count, " bytes, got ",
            bytes_.size() - place_);
  }
}

WireTag WireReader::tag() {
  const std::size_t start = place_;
  const std::uint64_t key = varint();
  const auto type = static_cast<int>(key & 7);
  const std::uint64_t field = key >> 3;
  constexpr std::uint64_t kMaxField = (std::uint64_t{1} << 29) - 1;
  if (field == 0 || field > kMaxField || type == 3 || type == 4 || type > 5) {
    fail_at(start, "expected a protobuf field number and wire type, got field ", field, ", type ",
            type);
  }
  return {static_cast<std::uint32_t>(field), static_cast<WireType>(type)};
}

std::uint64_t WireReader::varint() {
  const std::size_t start = place_;
  std::uint64_t value = 0;
  constexpr int kMaxBytes = 10;
  for (int i = 0; i < kMaxBytes; ++i) {
    require(1, "a variable-length number");
    const auto byte = static_cast<unsigned char>(bytes_[place_++]);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) return value;
  }
  fail_at(start, "expected a variable-length number of at most ", kMaxBytes, " bytes, got more");
}

std::uint32_t WireReader::fixed32() {
  require(4, "a 4-byte number");
  place_ += 4;
  return get_little_endian<std::uint32_t>(bytes_, place_ - 4);
}

std::string_view WireReader::bytes() {
  const std::uint64_t length = varint();
  require(length, "a field");
  const std::string_view found = bytes_.substr(place_, static_cast<std::size_t>(length));
  place_ += static_cast<std::size_t>(length);
  return found;
}

WireReader WireReader::message() {
  const std::string_view inner = bytes();
  return WireReader(inner, *source_, first_offset_ + place_ - inner.size());
}

void WireReader::skip(const WireTag& tag) {
  switch (tag.type) {
    case WireType::kVarint:
      varint();
      return;
    case WireType::kFixed64:
      require(8, "an 8-byte number");
      place_ += 8;
      return;
    case WireType::kBytes:
      bytes();
      return;
    case WireType::kFixed32:
      fixed32();
      return;
  }
}

void put_varint(std::string& message, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) message.push_back(static_cast<char>(value | 0x80));
  message.push_back(static_cast<char>(value));
}

void put_bytes(std::string& message, std::uint32_t field, std::string_view bytes) {
  put_varint(message, std::uint64_t{field} << 3 | static_cast<unsigned>(WireType::kBytes));
  put_varint(message, bytes.size());
  message += bytes;
}

}  // namespace tutti::internal

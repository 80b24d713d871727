// Encoding and decoding: fixed places, little-endian, every field checked.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/mailbox.h"

#include <bit>
#include <cstring>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::uint32_t kFrameMagic = 0x46747554;  // "TutF"
constexpr std::size_t kCheckedBytes = kFrameHeaderBytes - sizeof(std::uint32_t);

static_assert(std::endian::native == std::endian::little, "frames are copies of numbers");

template <class T>
void put(std::byte* place, T value) {
  std::memcpy(place, &value, sizeof(value));
}

template <class T>
T get(const std::byte* place) {
  T value{};
  std::memcpy(&value, place, sizeof(value));
  return value;
}

template <class... Parts>
[[noreturn]] void refuse_frame(const Parts&... parts) {
  fail(ErrorCode::kUnavailable,
       "the bytes in front of a message were damaged on the way, or are none of this protocol: ",
       parts...);
}

}  // namespace

// Bytes 0 magic, 4 kind, 5 nothing, 6 head, 8 tag, 16 body, 24 checksum.
std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  put(&bytes[0], kFrameMagic);
  put(&bytes[4], static_cast<std::uint8_t>(header.kind));
  put(&bytes[6], header.head_bytes);
  put(&bytes[8], header.tag);
  put(&bytes[16], header.body_bytes);
  put(&bytes[kCheckedBytes], crc32c_of(std::span(bytes).first(kCheckedBytes)));
  return bytes;
}

FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  if (const auto magic = get<std::uint32_t>(&bytes[0]); magic != kFrameMagic) {
    refuse_frame("expected the magic ", kFrameMagic, ", got ", magic);
  }
  const std::uint32_t expected = crc32c_of(bytes.first(kCheckedBytes));
  if (const auto crc = get<std::uint32_t>(&bytes[kCheckedBytes]); crc != expected) {
    refuse_frame("expected the checksum ", expected, ", got ", crc);
  }
  FrameHeader header;
  const auto kind = get<std::uint8_t>(&bytes[4]);
  const auto reserved = get<std::uint8_t>(&bytes[5]);
  header.kind = static_cast<FrameHeader::Kind>(kind);
  header.head_bytes = get<std::uint16_t>(&bytes[6]);
  header.tag = get<std::uint64_t>(&bytes[8]);
  header.body_bytes = get<std::uint64_t>(&bytes[16]);
  const bool is_abort = header.kind == FrameHeader::Kind::kAbort;
  if ((header.kind != FrameHeader::Kind::kMessage && !is_abort) || reserved != 0) {
    refuse_frame("expected kind 1 or 2 and 0, got ", int{kind}, " and ", int{reserved});
  }
  const std::size_t longest_head = is_abort ? 0 : kLongestHead;
  const std::uint64_t longest_body = is_abort ? kLongestAbortText : kLongestBody;
  if (header.head_bytes > longest_head || header.body_bytes > longest_body) {
    refuse_frame("expected head and body of at most ", longest_head, " and ", longest_body,
                 " bytes, got ", header.head_bytes, " and ", header.body_bytes);
  }
  return header;
}

std::array<std::byte, kFrameChecksumBytes> encode_checksum(std::uint32_t crc) {
  std::array<std::byte, kFrameChecksumBytes> bytes{};
  put(bytes.data(), crc);
  return bytes;
}

std::uint32_t decode_checksum(std::span<const std::byte, kFrameChecksumBytes> bytes) {
  return get<std::uint32_t>(bytes.data());
}

}  // namespace tutti::internal

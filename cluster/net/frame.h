// What stands in front of a message between ranks, and its check.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::internal {

/// In front of every message. Behind it come the head and the body; over TCP then the CRC32C of
/// both (4 bytes). Numbers are little-endian on the wire.
struct FrameHeader {
  enum class Kind : std::uint8_t {
    kMessage = 1,
    kAbort = 2,  // no head; the body is the reason's text
  };
  Kind kind = Kind::kMessage;
  std::uint16_t head_bytes = 0;
  std::uint64_t tag = 0;
  std::uint64_t body_bytes = 0;
  bool operator==(const FrameHeader&) const = default;
};
inline constexpr std::size_t kFrameHeaderBytes = 28;
inline constexpr std::size_t kFrameChecksumBytes = 4;
inline constexpr std::size_t kLongestHead = 256;
inline constexpr std::uint64_t kLongestBody = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kLongestAbortText = 1 << 16;
/// With a checksum of its own, so that no length is believed that was damaged on the way.
std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header);
/// Throws kUnavailable for bytes that are no header: magic, checksum, kind, lengths beyond the
/// limits. The connection cannot be used any more.
FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

std::array<std::byte, kFrameChecksumBytes> encode_checksum(std::uint32_t crc);
std::uint32_t decode_checksum(std::span<const std::byte, kFrameChecksumBytes> bytes);

}  // namespace tutti::internal

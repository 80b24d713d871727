// The bytes that TCP transports exchange besides heads and bodies, and their checks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tutti/core/error.h"

namespace tutti::internal {

/// In front of every message. Numbers are little-endian on the wire.
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
inline constexpr std::size_t kFrameHeaderBytes = 24;
inline constexpr std::size_t kLongestHead = 256;
inline constexpr std::uint64_t kLongestBody = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kLongestAbortText = 1 << 16;
std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header);
/// Throws kDataLoss for bytes that are no header: magic, kind, lengths beyond the limits.
FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

/// What a rank says first on a connection that it opened.
struct Hello {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t size = 0;
  std::uint64_t from_nonce = 0;  // of the run of `from`
  std::uint64_t to_nonce = 0;    // of `to`, as the store had it
  bool operator==(const Hello&) const = default;
};
inline constexpr std::size_t kHelloBytes = 40;
std::array<std::byte, kHelloBytes> encode(const Hello& hello);
/// Throws kInvalidArgument for what is no hello, or one of another version of this protocol.
Hello decode_hello(std::span<const std::byte, kHelloBytes> bytes);

/// The answer.
struct Welcome {
  enum class Verdict : std::uint8_t {
    kYes = 1,
    kStale = 2,  // the store has changed meanwhile: look again
    kNo = 3,     // it never will
  };
  Verdict verdict = Verdict::kYes;
  std::string reason;  // cut at 200 bytes
  bool operator==(const Welcome&) const = default;
};
inline constexpr std::size_t kWelcomeBytes = 216;
std::array<std::byte, kWelcomeBytes> encode(const Welcome& welcome);
/// Throws kInvalidArgument as decode_hello().
Welcome decode_welcome(std::span<const std::byte, kWelcomeBytes> bytes);

}  // namespace tutti::internal

// The pieces in which a session sends its bytes, and what is said when it goes on after a break.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/cluster/tcp/frame.h"

namespace tutti::internal {

/// In front of every piece. Numbers are little-endian on the wire; the last four bytes are the
/// CRC32C of those before them.
struct ChunkHeader {
  enum class Kind : std::uint8_t {
    kData = 1,
    kAck = 2,  // no payload
    kBye = 3,  // the same: nothing more will come
  };
  Kind kind = Kind::kData;
  std::uint32_t length = 0;       // of the payload
  std::uint32_t payload_crc = 0;  // CRC32C
  std::uint64_t offset = 0;       // of the payload's first byte in the stream
  std::uint64_t ack = 0;          // all bytes of the other direction before this one have arrived
  bool operator==(const ChunkHeader&) const = default;
};
inline constexpr std::size_t kChunkHeaderBytes = 36;
/// A message of 64 KiB and what stands before it are one chunk.
inline constexpr std::uint32_t kLongestChunk = (64 << 10) + 1024;
std::array<std::byte, kChunkHeaderBytes> encode(const ChunkHeader& header);
/// Throws kDataLoss for bytes that are no header, or were one before a bit was changed.
ChunkHeader decode_chunk_header(std::span<const std::byte, kChunkHeaderBytes> bytes);

/// What the opener of a new connection says, after the handshake.
struct Resume {
  Hello hello;
  std::uint64_t received = 0;         // bytes of the other direction that have arrived
  bool is_first = false;              // a session begins: the answer is a Welcome, else a Resumed
  std::uint16_t connection = 0;       // which one of the session's
  std::uint16_t num_connections = 1;  // that the session has, when all are there
  bool operator==(const Resume&) const = default;
};
inline constexpr std::size_t kResumeBytes = kHelloBytes + 16;
std::array<std::byte, kResumeBytes> encode(const Resume& resume);
/// Throws kInvalidArgument as decode_hello(), kDataLoss for a wrong checksum.
Resume decode_resume(std::span<const std::byte, kResumeBytes> bytes);

/// The answer in a session that goes on.
struct Resumed {
  std::uint64_t received = 0;
  bool operator==(const Resumed&) const = default;
};
inline constexpr std::size_t kResumedBytes = 20;
std::array<std::byte, kResumedBytes> encode(const Resumed& resumed);
/// Throws kDataLoss.
Resumed decode_resumed(std::span<const std::byte, kResumedBytes> bytes);

}  // namespace tutti::internal

// Encoding and decoding of chunks and resumptions: fixed places, checksums.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/chunk.h"

#include <concepts>
#include <cstring>

#include "tutti/core/crc32c.h"

namespace tutti::internal {
namespace {

constexpr std::uint32_t kChunkMagic = 0x43747554;            // "TutC"
constexpr std::uint64_t kResumeMagic = 0x6E69616741727554;   // "TurAgain"
constexpr std::uint64_t kResumedMagic = 0x656D757365527554;  // "TuResume"

template <std::unsigned_integral T>
void put(std::byte* place, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    place[i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
}

template <std::unsigned_integral T>
T get(const std::byte* place) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<std::uint64_t>(place[i]) << (8 * i);
  }
  return static_cast<T>(value);
}

template <std::size_t n>
void seal(std::array<std::byte, n>& bytes) {
  put(bytes.data() + n - 4, crc32c_of(std::span(bytes).first(n - 4)));
}

template <std::size_t n>
void check_seal(std::span<const std::byte, n> bytes, const char* what) {
  const auto expected = crc32c_of(bytes.first(n - 4));
  const auto got = get<std::uint32_t>(bytes.data() + n - 4);
  if (expected == got) return;
  fail(ErrorCode::kDataLoss, "tcp: ", what, " was damaged; expected the checksum ", expected,
       ", got ", got);
}

}  // namespace

std::array<std::byte, kChunkHeaderBytes> encode(const ChunkHeader& header) {
  std::array<std::byte, kChunkHeaderBytes> bytes{};
  put(bytes.data(), kChunkMagic);
  put(bytes.data() + 4, static_cast<std::uint32_t>(header.kind));
  put(bytes.data() + 8, header.length);
  put(bytes.data() + 12, header.payload_crc);
  put(bytes.data() + 16, header.offset);
  put(bytes.data() + 24, header.ack);
  seal(bytes);
  return bytes;
}

ChunkHeader decode_chunk_header(std::span<const std::byte, kChunkHeaderBytes> bytes) {
  check_seal(bytes, "the header of a chunk");
  const auto magic = get<std::uint32_t>(bytes.data());
  const auto kind = get<std::uint32_t>(bytes.data() + 4);
  ChunkHeader header;
  header.length = get<std::uint32_t>(bytes.data() + 8);
  header.payload_crc = get<std::uint32_t>(bytes.data() + 12);
  header.offset = get<std::uint64_t>(bytes.data() + 16);
  header.ack = get<std::uint64_t>(bytes.data() + 24);
  const std::uint32_t longest = kind == 1 ? kLongestChunk : 0;
  if (magic != kChunkMagic || kind < 1 || kind > 3 || header.length > longest) {
    fail(ErrorCode::kDataLoss, "tcp: no header of a chunk; expected the magic ", kChunkMagic,
         ", a kind from 1 to 3 and at most ", longest, " bytes, got ", magic, ", ", kind, " and ",
         header.length);
  }
  header.kind = static_cast<ChunkHeader::Kind>(kind);
  return header;
}

std::array<std::byte, kResumeBytes> encode(const Resume& resume) {
  std::array<std::byte, kResumeBytes> bytes{};
  const auto hello = encode(resume.hello);
  std::memcpy(bytes.data(), hello.data(), hello.size());
  if (!resume.is_first) put(bytes.data(), kResumeMagic);  // instead of the hello's
  put(bytes.data() + kHelloBytes, resume.received);
  put(bytes.data() + kHelloBytes + 8, resume.connection);
  put(bytes.data() + kHelloBytes + 10, resume.num_connections);
  seal(bytes);
  return bytes;
}

Resume decode_resume(std::span<const std::byte, kResumeBytes> bytes) {
  check_seal(bytes, "what a rank says that connects");
  const bool is_first = get<std::uint64_t>(bytes.data()) != kResumeMagic;
  std::array<std::byte, kHelloBytes> hello = encode(Hello{.size = 1});  // for its magic
  const std::size_t begin = is_first ? 0 : sizeof(kResumeMagic);
  std::memcpy(hello.data() + begin, bytes.data() + begin, kHelloBytes - begin);
  return {decode_hello(hello), get<std::uint64_t>(bytes.data() + kHelloBytes), is_first,
          get<std::uint16_t>(bytes.data() + kHelloBytes + 8),
          get<std::uint16_t>(bytes.data() + kHelloBytes + 10)};
}

std::array<std::byte, kResumedBytes> encode(const Resumed& resumed) {
  std::array<std::byte, kResumedBytes> bytes{};
  put(bytes.data(), kResumedMagic);
  put(bytes.data() + 8, resumed.received);
  seal(bytes);
  return bytes;
}

Resumed decode_resumed(std::span<const std::byte, kResumedBytes> bytes) {
  check_seal(bytes, "the answer to a rank that connects again");
  if (get<std::uint64_t>(bytes.data()) != kResumedMagic) {
    fail(ErrorCode::kDataLoss, "tcp: no answer to a rank that connects again");
  }
  return {get<std::uint64_t>(bytes.data() + 8)};
}

}  // namespace tutti::internal

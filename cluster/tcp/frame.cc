// Encoding and decoding: fixed places, little-endian, every field checked.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/frame.h"

#include <algorithm>
#include <concepts>
#include <cstring>

namespace tutti::internal {
namespace {

constexpr std::uint32_t kFrameMagic = 0x46747554;              // "TutF"
constexpr std::uint64_t kHandshakeMagic = 0x5043546974747554;  // "TuttiTCP"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kLongestReason = 200;

class Writer {
 public:
  explicit Writer(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <std::unsigned_integral T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_[at_++] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
    }
  }
  void text(std::string_view text) {
    std::memcpy(&bytes_[at_], text.data(), text.size());
    at_ += text.size();
  }

 private:
  std::span<std::byte> bytes_;
  std::size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <std::unsigned_integral T>
  T number() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= std::to_integer<std::uint64_t>(bytes_[at_++]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  std::string text(std::size_t length) const {
    return std::string(reinterpret_cast<const char*>(&bytes_[at_]), length);
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

template <class... Parts>
[[noreturn]] void refuse_frame(const Parts&... parts) {
  fail(ErrorCode::kDataLoss,
       "tcp: the bytes in front of a message are none of this protocol: ", parts...);
}

void check_handshake(Reader& reader) {
  if (const auto magic = reader.number<std::uint64_t>(); magic != kHandshakeMagic) {
    fail(ErrorCode::kInvalidArgument, "tcp: no rank of tutti speaks here; expected the magic ",
         kHandshakeMagic, ", got ", magic);
  }
  if (const auto version = reader.number<std::uint32_t>(); version != kVersion) {
    fail(ErrorCode::kInvalidArgument, "tcp: another version of the protocol; expected ", kVersion,
         ", got ", version, "; try the same tutti on all ranks");
  }
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  Writer writer(bytes);
  writer.number(kFrameMagic);
  writer.number(static_cast<std::uint8_t>(header.kind));
  writer.number(std::uint8_t{0});
  writer.number(header.head_bytes);
  writer.number(header.tag);
  writer.number(header.body_bytes);
  return bytes;
}

FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  Reader reader(bytes);
  if (const auto magic = reader.number<std::uint32_t>(); magic != kFrameMagic) {
    refuse_frame("expected the magic ", kFrameMagic, ", got ", magic);
  }
  FrameHeader header;
  const auto kind = reader.number<std::uint8_t>();
  const auto reserved = reader.number<std::uint8_t>();
  header.kind = static_cast<FrameHeader::Kind>(kind);
  header.head_bytes = reader.number<std::uint16_t>();
  header.tag = reader.number<std::uint64_t>();
  header.body_bytes = reader.number<std::uint64_t>();
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

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes{};
  Writer writer(bytes);
  writer.number(kHandshakeMagic);
  writer.number(kVersion);
  writer.number(static_cast<std::uint32_t>(hello.from));
  writer.number(static_cast<std::uint32_t>(hello.to));
  writer.number(static_cast<std::uint32_t>(hello.size));
  writer.number(hello.from_nonce);
  writer.number(hello.to_nonce);
  return bytes;
}

Hello decode_hello(std::span<const std::byte, kHelloBytes> bytes) {
  Reader reader(bytes);
  check_handshake(reader);
  Hello hello;
  hello.from = static_cast<std::int32_t>(reader.number<std::uint32_t>());
  hello.to = static_cast<std::int32_t>(reader.number<std::uint32_t>());
  hello.size = static_cast<std::int32_t>(reader.number<std::uint32_t>());
  hello.from_nonce = reader.number<std::uint64_t>();
  hello.to_nonce = reader.number<std::uint64_t>();
  if (hello.size < 1 || hello.from < 0 || hello.from >= hello.size || hello.to < 0 ||
      hello.to >= hello.size) {
    fail(ErrorCode::kInvalidArgument, "tcp: a hello from rank ", hello.from, " to rank ", hello.to,
         " of ", hello.size, "; expected ranks below the size");
  }
  return hello;
}

std::array<std::byte, kWelcomeBytes> encode(const Welcome& welcome) {
  std::array<std::byte, kWelcomeBytes> bytes{};
  Writer writer(bytes);
  const auto length = std::min(welcome.reason.size(), kLongestReason);
  writer.number(kHandshakeMagic);
  writer.number(kVersion);
  writer.number(static_cast<std::uint8_t>(welcome.verdict));
  writer.number(std::uint8_t{0});
  writer.number(static_cast<std::uint16_t>(length));
  writer.text(std::string_view(welcome.reason).substr(0, length));
  return bytes;
}

Welcome decode_welcome(std::span<const std::byte, kWelcomeBytes> bytes) {
  Reader reader(bytes);
  check_handshake(reader);
  const auto verdict = reader.number<std::uint8_t>();
  (void)reader.number<std::uint8_t>();
  const auto length = reader.number<std::uint16_t>();
  if (verdict < 1 || verdict > 3 || length > kLongestReason) {
    fail(ErrorCode::kInvalidArgument,
         "tcp: an answer to a hello; expected a verdict from 1 to 3 "
         "and a reason of at most ",
         kLongestReason, " bytes, got ", int{verdict}, " and ", length);
  }
  return {static_cast<Welcome::Verdict>(verdict), reader.text(length)};
}

}  // namespace tutti::internal

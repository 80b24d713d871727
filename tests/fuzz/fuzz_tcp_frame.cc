// Fuzzes data that ranks read from other ranks and from the store: every input must yield a value,
// a message or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "cluster/net/connection.h"
#include "cluster/net/handshake.h"
#include "cluster/net/socket.h"

namespace {

using namespace tutti::internal;
using Bytes = std::vector<std::byte>;

template <std::size_t kBytes, class Decode>
void check(std::span<const std::byte> data, const Decode& decode) {
  std::array<std::byte, kBytes> bytes{};
  std::ranges::copy(data.first(std::min(data.size(), kBytes)), bytes.begin());
  try {
    const auto value = decode(bytes);
    // Accepted data must survive encoding and decoding.
    if (decode(encode(value)) != value) std::abort();
  } catch (const tutti::Error&) {
  }
}

/// Connection whose peer is assumed to be on another host, and the other end of its socket.
struct Wire {
  explicit Wire(std::size_t bytes_kept) : kept(bytes_kept) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) std::abort();
    far = FileDescriptor(ends[1]);
    connection.emplace(FileDescriptor(ends[0]), "tcp: rank 1 (fuzz)", false, kept);
  }
  /// Sends the bytes in chunks of at most `most` bytes until all are sent or the connection closes
  /// on a parse error.
  void read(std::span<const std::byte> bytes, std::size_t most) {
    while (!bytes.empty() && connection->is_open()) {
      const auto piece = bytes.first(std::min(most, bytes.size()));
      if (!send_whole(far, piece)) std::abort();
      bytes = bytes.subspan(piece.size());
      const Connection::IoResult news = connection->move();
      if (news.failure) connection->fail(*news.failure);
      if (news.abort) connection->fail(*news.abort);
    }
  }
  /// Returns the bytes that the connection has sent.
  Bytes sent() {
    Bytes bytes(std::size_t{1} << 17);
    std::size_t count = 0;
    if (read_now(far, bytes, count) != ByteFlow::kOpen) std::abort();
    bytes.resize(count);
    return bytes;
  }

  KeptBytes kept;
  FileDescriptor far;
  std::optional<Connection> connection;
};

struct Receiver {
  Receiver(std::uint64_t tag, std::size_t head_bytes, std::size_t body_bytes)
      : head(head_bytes), body(body_bytes) {
    incoming->tag = tag;
    incoming->body_bytes = body_bytes;
    incoming->head = head;
    incoming->body = body;
  }
  bool is_good() const { return incoming->has_ended() && !incoming->error(); }
  Bytes head, body;
  std::shared_ptr<Incoming> incoming = std::make_shared<Incoming>();
};

/// Passes arbitrary bytes to a connection. Messages without a receiver are buffered up to a limit.
void read_stream(std::span<const std::byte> bytes, std::size_t most) {
  Wire wire(std::size_t{1} << 16);
  std::array<Receiver, 3> receivers{Receiver(0, 0, 0), Receiver(7, 0, 16), Receiver(7, 8, 100)};
  for (const Receiver& each : receivers) wire.connection->receive(each.incoming);
  wire.read(bytes, most);
  Receiver late(1, 0, 16);
  wire.connection->receive(late.incoming);
  wire.connection->cancel(late.incoming);
  wire.connection->fail(tutti::Error(tutti::ErrorCode::kAborted, "the end"));
  for (const Receiver& each : receivers) {
    if (!each.incoming->has_ended()) std::abort();
  }
  if (wire.kept.now != 0) std::abort();  // the end of the connection releases all buffered messages
}

/// Sends two messages and flips at most one bit in transit. Messages that precede the flipped bit
/// must arrive intact; the damaged message and later ones must not arrive.
void change_a_bit(std::span<const std::byte> bytes, std::size_t most) {
  if (bytes.size() < 5) return;
  const auto number = [&](std::size_t i) { return std::to_integer<std::size_t>(bytes[i]); };
  const bool is_changed = number(0) % 2 == 1;
  const std::size_t place = number(1) << 8 | number(2);
  const auto words = bytes.subspan(3);
  const std::size_t head_bytes = std::min(words.size(), number(3));
  const auto head = words.first(head_bytes), body = words.subspan(head_bytes);
  Wire sending(0);
  for (const std::uint64_t tag : {std::uint64_t{1}, std::uint64_t{2}}) {
    const FrameHeader header{FrameHeader::Kind::kMessage, static_cast<std::uint16_t>(head_bytes),
                             tag, body.size()};
    if (!sending.connection->send(std::make_shared<Outgoing>(header, head, body))) std::abort();
  }
  Bytes on_the_wire = sending.sent();
  const std::size_t changed = place % on_the_wire.size();
  if (is_changed) on_the_wire[changed] ^= std::byte{1} << (number(4) % 8);
  Wire arriving(std::size_t{1} << 20);
  std::array<Receiver, 2> receivers{Receiver(1, head.size(), body.size()),
                                    Receiver(2, head.size(), body.size())};
  // the second message has no receiver yet, so it is buffered
  arriving.connection->receive(receivers[0].incoming);
  arriving.read(on_the_wire, most);
  arriving.connection->receive(receivers[1].incoming);
  const std::size_t hit = changed < on_the_wire.size() / 2 ? 0 : 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const bool has_to_arrive = !is_changed || i < hit;
    if (receivers[i].is_good() != has_to_arrive) std::abort();
    if (!has_to_arrive) continue;
    if (!std::ranges::equal(receivers[i].head, head)) std::abort();
    if (!std::ranges::equal(receivers[i].body, body)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, std::min<std::size_t>(size, 20000)));
  check<kFrameHeaderBytes>(bytes, [](const auto& b) { return decode_frame_header(b); });
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto announced = parse_announcement(text)) {
    if (!parse_announcement(to_text(*announced))) std::abort();
  }
  const std::size_t cut = bytes.empty() ? 1 : std::to_integer<std::size_t>(bytes[0]) % 64 + 1;
  for (const std::size_t most : {cut, std::size_t{20000}}) {
    read_stream(bytes, most);
    change_a_bit(bytes, most);
  }
  return 0;
}

// Fuzzes what connections between ranks read: handshakes, what opens a session, chunks in a stream
// that is cut anywhere, segments' layouts.
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tutti/cluster/net/segment.h"
#include "tutti/cluster/net/chunk.h"
#include "tutti/cluster/net/hello.h"
#include "tutti/cluster/net/session_receiver.h"
#include "tutti/core/crc32c.h"

namespace {

using namespace tutti::internal;

template <std::size_t kBytes, class Decode>
void check(std::span<const std::byte> data, const Decode& decode) {
  std::array<std::byte, kBytes> bytes{};
  std::ranges::copy(data.first(std::min(data.size(), kBytes)), bytes.begin());
  try {
    const auto value = decode(bytes);
    // What was accepted is what encoding gives back.
    if (decode(encode(value)) != value) std::abort();
  } catch (const tutti::Error&) {
  }
}

/// Damaged input seldom passes a checksum, so some of it gets the right one: the first byte says
/// which of the two.
void seal(std::span<std::byte> bytes) {
  if (bytes.size() < kChunkHeaderBytes) return;
  const auto payload = bytes.subspan(kChunkHeaderBytes);
  const auto length = static_cast<std::uint32_t>(payload.size());
  const auto crc = crc32c_of(payload);
  std::memcpy(bytes.data() + 8, &length, 4);
  std::memcpy(bytes.data() + 12, &crc, 4);
  const auto header = crc32c_of(bytes.first(kChunkHeaderBytes - 4));
  std::memcpy(bytes.data() + kChunkHeaderBytes - 4, &header, 4);
}

/// The receiver gives at most what was sent, whatever was sent, and stays at its error; as the one
/// connection of a session, and as one of two.
void read_stream(std::span<const std::byte> bytes, std::size_t num_connections) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
  FileDescriptor reader(ends[0]), writer(ends[1]);
  SessionReceiver receiver(num_connections);
  // Long chunks land in the place for what is given, if there is room for them.
  std::array<std::byte, 20000> given{};
  std::size_t total = 0;
  bool failed = false;
  const auto read_all = [&] {
    for (bool came = true; came;) {
      receiver.aim(given);
      came = receiver.fill(0, reader);
      for (std::size_t count = 1; count > 0;) {
        const iovec place{given.data(), given.size()};
        count = receiver.give(std::span(&place, 1));
        if (count > given.size() || (failed && count > 0)) std::abort();
        total += count;
      }
      failed = failed || receiver.failure(0) != nullptr;
      if (total % 3 == 1) receiver.leave();
      came = receiver.set_aside() || came;
    }
  };
  const std::size_t cut = bytes.empty() ? 0 : std::to_integer<std::size_t>(bytes[0]) % 64 + 1;
  for (std::size_t at = 0; at < bytes.size() && !failed; at += cut) {
    const std::size_t count = std::min(cut, bytes.size() - at);
    if (::send(writer.get(), bytes.data() + at, count, MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(count)) {
      std::abort();
    }
    read_all();
  }
  if (total > bytes.size() || total > receiver.received()) std::abort();
}

tutti::Handshake end_of(tutti::Handshake::Side side, const tutti::JobSecret& secret) {
  tutti::PeerHello hello;
  hello.purpose = tutti::ConnectionPurpose::kData;
  hello.job = "rank";
  hello.index = side == tutti::Handshake::Side::kClient ? 1 : 0;
  return {side, hello, secret};
}

/// These bytes as the words of a client, then of a server: nobody is taken for a peer.
void knock(std::span<const std::byte> bytes, const tutti::JobSecret& secret) {
  using tutti::Handshake;
  for (const auto side : {Handshake::Side::kServer, Handshake::Side::kClient}) {
    Handshake end = end_of(side, secret);
    (void)end.bytes_to_send();
    if (end.take(bytes) > tutti::kLongestHandshake) std::abort();
    if (end.is_proven() || end.state() == Handshake::State::kDone) std::abort();
    if (end.bytes_to_send().size() > tutti::kLongestHandshake) std::abort();
  }
}

/// Two that know the secret, but for one changed byte of what they say: the client is let in only
/// if none was. Whatever it says then is sealed, or refused.
void open_session(std::span<const std::byte> bytes, const tutti::JobSecret& secret) {
  using tutti::Handshake;
  if (bytes.size() < 4) return;
  Handshake client = end_of(Handshake::Side::kClient, secret);
  Handshake server = end_of(Handshake::Side::kServer, secret);
  // A little more than all that is said.
  std::size_t at =
      (std::to_integer<std::size_t>(bytes[0]) << 8 | std::to_integer<std::size_t>(bytes[1])) % 600;
  bool is_changed = false;
  const auto carry = [&](std::vector<std::byte> words, Handshake& to) {
    if (at < words.size() && bytes[2] != std::byte{0}) is_changed = true;
    if (at < words.size()) words[at] ^= bytes[2];
    at -= at < words.size() ? 0 : words.size();
    if (is_changed) at = words.size() + (1 << 20);
    (void)to.take(words);
  };
  carry(client.bytes_to_send(), server);
  carry(server.bytes_to_send(), client);
  carry(client.bytes_to_send(), server);
  if (server.is_proven() == is_changed) std::abort();
  if (is_changed) return;
  const tutti::Digest256 key = server.session_key(Handshake::Side::kClient);
  if (key != client.session_key(Handshake::Side::kClient)) std::abort();
  const auto words = bytes.subspan(3);
  std::array<std::byte, kSealedResumeBytes> opening{};
  std::memcpy(opening.data(), words.data(), std::min(words.size(), opening.size()));
  try {
    (void)unsealed(opening, key);
    std::abort();
  } catch (const tutti::Error&) {
  }
  std::array<std::byte, kResumeBytes> resume{};
  std::memcpy(resume.data(), opening.data(), resume.size());
  try {
    const Resume read = decode_resume(unsealed(sealed(resume, key), key));
    if (decode_resume(encode(read)) != read) std::abort();
  } catch (const tutti::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(std::min<std::size_t>(size, 20000));
  if (!bytes.empty()) std::memcpy(bytes.data(), data, bytes.size());
  check<kChunkHeaderBytes>(bytes, [](const auto& b) { return decode_chunk_header(b); });
  check<kResumeBytes>(bytes, [](const auto& b) { return decode_resume(b); });
  check<kResumedBytes>(bytes, [](const auto& b) { return decode_resumed(b); });
  check<kLayoutBytes>(bytes, [](const auto& b) { return decode_layout(b); });
  for (const std::size_t num_connections : {1, 2}) read_stream(bytes, num_connections);
  const std::vector<std::byte> secret_bytes(32, std::byte{7});
  static const tutti::JobSecret secret{std::span<const std::byte>(secret_bytes)};
  knock(bytes, secret);
  open_session(bytes, secret);
  seal(bytes);
  check<kChunkHeaderBytes>(bytes, [](const auto& b) { return decode_chunk_header(b); });
  for (const std::size_t num_connections : {1, 2}) read_stream(bytes, num_connections);
  return 0;
}

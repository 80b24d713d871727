// Fuzzes handshakes, the first bytes on a connection.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "cluster/net/handshake.h"

namespace {

using namespace tutti;

using internal::Handshake;
using internal::kLongestHandshake;
using Side = Handshake::Side;

Handshake end_of(Side side, const JobSecret& secret) {
  return {side, {side == Side::kClient ? 1 : 0, 7}, secret};
}

/// Passes the bytes, split at `cut`, to a server and to a client. Neither may accept the peer or
/// buffer many bytes.
void meet(std::span<const std::byte> bytes, std::size_t cut, const JobSecret& secret) {
  for (const Side side : {Side::kServer, Side::kClient}) {
    Handshake end = end_of(side, secret);
    (void)end.bytes_to_send();
    const std::size_t first = end.take(bytes.first(cut));
    if (first + end.take(bytes.subspan(first)) > kLongestHandshake) std::abort();
    if (end.state() == Handshake::State::kDone || end.is_proven()) std::abort();
    if (end.bytes_to_send().size() > kLongestHandshake) std::abort();
  }
}

/// Runs a handshake between two sides that know the secret, with at most one byte changed before
/// the proof. The client must be accepted if and only if nothing changed.
void change_a_byte(std::span<const std::byte> bytes, const JobSecret& secret) {
  if (bytes.size() < 3) return;
  Handshake client = end_of(Side::kClient, secret), server = end_of(Side::kServer, secret);
  // 150 exceeds the total length of all messages, so some inputs change no byte.
  std::size_t at =
      (std::to_integer<std::size_t>(bytes[0]) << 8 | std::to_integer<std::size_t>(bytes[1])) % 150;
  bool is_changed = false;
  const auto carry = [&](std::vector<std::byte> words, Handshake& to) {
    if (!is_changed && at < words.size() && bytes[2] != std::byte{0}) {
      words[at] ^= bytes[2];
      is_changed = true;
    }
    at -= std::min(at, words.size());
    (void)to.take(words);
  };
  carry(client.bytes_to_send(), server);
  carry(server.bytes_to_send(), client);
  carry(client.bytes_to_send(), server);
  if (server.is_proven() == is_changed) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::size_t cut = size == 0 ? 0 : data[0] % (size + 1);
  const std::vector<std::byte> words(32, std::byte{7});
  static const JobSecret secret{std::span<const std::byte>(words)};
  meet(bytes, cut, JobSecret());
  meet(bytes, cut, secret);
  change_a_byte(bytes, secret);
  return 0;
}

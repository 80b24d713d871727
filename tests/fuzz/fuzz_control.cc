// Fuzzes what is read from a connection first: handshakes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "tutti/cluster/net/handshake.h"
#include "tutti/core/error.h"

namespace {

using namespace tutti;

/// A server meets these bytes, cut in two: it never lets them in, and keeps little of them.
void knock(std::span<const std::byte> bytes, std::size_t cut) {
  PeerHello own;
  own.job = "chief";
  Handshake server(Handshake::Side::kServer, own, JobSecret());
  const std::size_t first = server.take(bytes.first(cut));
  (void)server.take(bytes.subspan(first));
  if (server.state() == Handshake::State::kDone || server.is_proven()) std::abort();
  if (server.bytes_to_send().size() > kLongestHandshake) std::abort();
}

void read_hello(std::span<const std::byte> bytes) {
  if (bytes.size() < kPeerHelloBytes) return;
  const auto hello = decode_peer_hello(bytes.first<kPeerHelloBytes>());
  if (hello && decode_peer_hello(encode(*hello)) != hello) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::size_t cut = size == 0 ? 0 : data[0] % (size + 1);
  knock(bytes, cut);
  read_hello(bytes);
  return 0;
}

// Fuzzes what the control plane reads from connections: handshakes, messages, frames.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "tutti/cluster/control/control_frame.h"
#include "tutti/cluster/control/message.h"
#include "tutti/cluster/handshake/handshake.h"
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

void read_message(std::span<const std::byte> bytes) {
  const auto message = internal::decode_message(bytes);
  // What was accepted is what encoding gives back, byte by byte.
  if (message && !std::ranges::equal(internal::encode(*message), bytes)) std::abort();
}

void read_frames(std::span<const std::byte> bytes, std::size_t cut) {
  internal::FrameReader reader{FrameSeals(Digest256{})};
  try {
    reader.take(bytes.first(cut));
    while (reader.next()) {
    }
    reader.take(bytes.subspan(cut));
    while (reader.next()) {
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::size_t cut = size == 0 ? 0 : data[0] % (size + 1);
  knock(bytes, cut);
  read_hello(bytes);
  read_message(bytes);
  read_frames(bytes, cut);
  return 0;
}

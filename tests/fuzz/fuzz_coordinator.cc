// Fuzzes messages between coordinators and workers: arguments, requests and results of closures.
// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "strategy/parameter_server/coordinator/worker_message.h"
#include "tests/fuzz/fuzz_target.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace {

using namespace tutti;

/// Parses two bytes that contain the length of the head, then the head and the payload.
Packet packet_of(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) return {};
  const std::size_t wanted =
      std::to_integer<std::size_t>(bytes[0]) * 256 + std::to_integer<std::size_t>(bytes[1]);
  bytes = bytes.subspan(2);
  const auto head = bytes.first(std::min(wanted, bytes.size()));
  return {{head.begin(), head.end()}, {{bytes.subspan(head.size()), nullptr}}};
}

/// Decodes a packet. If it is accepted, expects it to survive encoding and decoding.
template <class Decode, class Encode>
void read_and_send_on(const Packet& packet, const Decode& decode, const Encode& encode) {
  const Packet again = encode(decode(packet));
  const Packet once_more = encode(decode(again));
  if (once_more.head != again.head) std::abort();
  if (once_more.payload_bytes() != again.payload_bytes()) std::abort();
}

void read(int kind, std::span<const std::byte> bytes) {
  const Packet packet = packet_of(bytes);
  const auto encode = [](const auto& each) { return internal::encode(each); };
  if (kind == 0) return read_and_send_on(packet, internal::decode_nest, internal::encode_nest);
  if (kind == 1) return read_and_send_on(packet, internal::decode_worker_request, encode);
  read_and_send_on(packet, internal::decode_outcome, encode);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto read_kind = [&](std::string_view bytes) {
    read(data[0] % 3, std::as_bytes(std::span(bytes)).subspan(1));
  };
  return fuzz(data, size, read_kind, {ErrorCode::kDataLoss});
}

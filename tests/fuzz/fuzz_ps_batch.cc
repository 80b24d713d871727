// Fuzzes messages between parameter servers and clients: batches of operations, and replies.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "strategy/parameter_server/protocol/operation.h"
#include "strategy/parameter_server/server/server_store.h"
#include "tutti/core/error.h"

namespace {

using namespace tutti;
using namespace tutti::internal;

/// Parses two bytes with the length of the head, then the head and the payload.
Packet packet_of(std::span<const std::byte> bytes) {
  Packet packet;
  if (bytes.size() < 2) return packet;
  const std::size_t wanted =
      std::to_integer<std::size_t>(bytes[0]) | std::to_integer<std::size_t>(bytes[1]) << 8;
  bytes = bytes.subspan(2);
  const std::size_t length = std::min(wanted, bytes.size());
  packet.head.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
  if (length < bytes.size()) packet.payload.push_back({bytes.subspan(length), nullptr});
  return packet;
}

bool is_small(const Operation& operation) {
  const auto* create = std::get_if<CreateShard>(&operation);
  return !create || create->spec.whole_shape.num_elements() < 100'000;
}

void serve(const OperationBatch& batch) {
  if (!std::ranges::all_of(batch.operations, is_small)) return;
  VariableStore store("ps 0");
  const auto answers = store.start(batch);
  if (!answers->is_ready()) return;  // the synchronous step is not complete yet
  try {
    (void)answers->wait(TimePoint::max());
  } catch (const Error&) {  // the batch was refused
  }
}

std::vector<std::byte> payload_of(const Packet& packet) {
  std::vector<std::byte> bytes;
  for (const SharedBytes& piece : packet.payload) {
    bytes.insert(bytes.end(), piece.bytes.begin(), piece.bytes.end());
  }
  return bytes;
}

bool are_same(const Packet& a, const Packet& b) {
  return a.head == b.head && payload_of(a) == payload_of(b);
}

template <class Decode>
void read(const Packet& packet, const Decode& decode) {
  try {
    const auto decoded = decode(packet);
    // Accepted data must survive encoding and decoding.
    const Packet again = encode(decoded);
    if (!are_same(encode(decode(again)), again)) std::abort();
    if constexpr (std::is_same_v<std::decay_t<decltype(decoded)>, OperationBatch>) serve(decoded);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Packet packet = packet_of(std::as_bytes(std::span(data, size)));
  read(packet, [](const Packet& each) { return decode_batch(each); });
  read(packet, [](const Packet& each) { return decode_answers(each); });
  return 0;
}

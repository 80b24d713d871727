// Fuzzes what a coordinator reads: arguments and results of steps, and its journal.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "tutti/strategy/parameter_server/coordinator/closure_ledger.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace {

using namespace tutti;

/// The head's length (two bytes), the head, the payload. What was accepted is what encoding gives
/// back, byte by byte.
void read_nest(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) return;
  const std::size_t wanted = std::to_integer<std::size_t>(bytes[0]) * 256 +
                             std::to_integer<std::size_t>(bytes[1]);
  bytes = bytes.subspan(2);
  const auto head = bytes.first(std::min(wanted, bytes.size()));
  const auto payload = bytes.subspan(head.size());
  const Packet packet{{head.begin(), head.end()}, {{payload, nullptr}}};
  std::size_t place = 0, payload_place = 0;
  try {
    const Nest nest = internal::decode_nest(packet, place, payload_place);
    Packet again;
    internal::encode_nest(nest, again);
    if (!std::ranges::equal(again.head, head.first(place))) std::abort();
    if (again.payload_bytes() != payload_place) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) std::abort();
  }
}

void read_journal(std::span<const std::byte> bytes) {
  try {
    const auto ledger = internal::ClosureLedger::replay(bytes, {4, 2, true});
    if (ledger.num_running() + ledger.num_queued() > ledger.next_number()) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  data[0] % 2 == 0 ? read_nest(bytes) : read_journal(bytes);
  return 0;
}

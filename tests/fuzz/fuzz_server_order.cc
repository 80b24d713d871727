// Fuzzes what a server process reads beside batches: orders of a coordinator.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "strategy/parameter_server/server/server_order.h"
#include "tutti/core/error.h"

namespace {

using namespace tutti;
using namespace tutti::internal;

/// Runs `read`; bytes that nobody wrote are kDataLoss.
template <class Read>
void refuse_or(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) std::abort();
  }
}

}  // namespace

/// All bytes are a head: what is accepted can be sent on, and is the same then.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const Packet packet{{bytes.begin(), bytes.end()}, {}};
  refuse_or([&] {
    const ServerOrder order = decode_order(packet);
    if (decode_order(encode(order)) != order) std::abort();
  });
  refuse_or([&] {
    const std::uint64_t life = decode_life(packet);
    if (decode_life(encode_life(life)) != life) std::abort();
  });
  return 0;
}

// Fuzzes what TCP ranks read from each other and from the store: a value or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tutti/cluster/net/frame.h"
#include "tutti/cluster/net/rendezvous.h"

namespace {

template <std::size_t kBytes, class Decode>
void check(const std::uint8_t* data, std::size_t size, const Decode& decode) {
  std::array<std::byte, kBytes> bytes{};
  std::transform(data, data + std::min(size, kBytes), bytes.begin(),
                 [](std::uint8_t byte) { return std::byte{byte}; });
  try {
    const auto value = decode(bytes);
    // What was accepted is what encoding gives back.
    if (decode(tutti::internal::encode(value)) != value) std::abort();
  } catch (const tutti::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tutti::internal;
  check<kFrameHeaderBytes>(data, size, [](const auto& b) { return decode_frame_header(b); });
  check<kHelloBytes>(data, size, [](const auto& b) { return decode_hello(b); });
  check<kWelcomeBytes>(data, size, [](const auto& b) { return decode_welcome(b); });
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto announced = parse_announcement(text)) {
    if (!parse_announcement(to_text(*announced))) std::abort();
  }
  return 0;
}

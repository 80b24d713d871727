// CRC32C, by ISA-L.
// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.h"

#include <algorithm>

#include <isa-l/crc.h>

namespace tutti::internal {

std::uint32_t crc32c_of(std::span<const std::byte> bytes, std::uint32_t crc) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // ISA-L's lengths are ints
  crc = ~crc;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kMostAtOnce));
    auto* data = reinterpret_cast<const unsigned char*>(part.data());
    crc = crc32_iscsi(const_cast<unsigned char*>(data), static_cast<int>(part.size()), crc);
    bytes = bytes.subspan(part.size());
  }
  return ~crc;
}

}  // namespace tutti::internal

// CRC32C at the speed of memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::internal {

/// Castagnoli's checksum of `bytes` after those of which `crc` is the checksum (0: none). With the
/// processor's instruction where it has one.
std::uint32_t crc32c_of(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tutti::internal

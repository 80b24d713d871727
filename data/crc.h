// Checksums of file formats: CRC-32C (TFRecord) and CRC-32 (zip).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti::internal {

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);
/// TFRecord's masked form of it, which keeps checksums of checksums apart.
std::uint32_t masked_crc32c(std::string_view bytes);
/// CRC-32 (ISO 3309) of zip files.
std::uint32_t crc32(std::string_view bytes);

}  // namespace tutti::internal

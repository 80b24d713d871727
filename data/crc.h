// Checksums of file formats: masked CRC-32C (TFRecord) and CRC-32 (zip).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti::internal {

/// TFRecord's masked form of CRC-32C (core/crc32c.h), which keeps checksums of checksums apart.
std::uint32_t masked_crc32c(std::string_view bytes);
/// CRC-32 (ISO 3309) of zip files.
std::uint32_t crc32(std::string_view bytes);

}  // namespace tutti::internal

// Checksums of file formats.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/format_bytes.h"

#include <array>
#include <cstddef>
#include <span>

#include "tutti/core/crc32c.h"

namespace tutti::internal {

// Checksums of file formats; that of zip eight bytes a step ("slicing by 8").

namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// Table k gives the remainder of a byte that k more bytes follow.
constexpr Tables make_tables() {
  constexpr std::uint32_t kPolynomial = 0xedb88320u;  // reflected
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kZip = make_tables();

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c_of(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::uint32_t crc32(std::string_view bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t left = bytes.size();
  std::uint32_t crc = 0xffffffffu;
  for (; left >= 8; left -= 8, data += 8) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      next ^= kZip[7 - i][(data[i] ^ (crc >> (8 * i))) & 0xff];
      next ^= kZip[3 - i][data[4 + i]];
    }
    crc = next;
  }
  for (; left > 0; --left, ++data) crc = (crc >> 8) ^ kZip[0][(crc ^ *data) & 0xff];
  return ~crc;
}

}  // namespace tutti::internal

// CRC32C against a computation bit by bit.
// SPDX-License-Identifier: Apache-2.0
#include "core/hash.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace tutti {
namespace {

std::uint32_t crc32c_bit_by_bit(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

TEST(Crc32c, HasThePublishedValues) {
  // RFC 3720, B.4, and the customary check value.
  const std::vector<std::byte> zeros(32, std::byte{0}), ones(32, std::byte{0xff});
  EXPECT_EQ(internal::crc32c_of(zeros), 0x8A9136AAu);
  EXPECT_EQ(internal::crc32c_of(ones), 0x62A8AB43u);
  EXPECT_EQ(internal::crc32c_of({}), 0u);
  std::vector<std::byte> increasing(32);
  for (std::size_t i = 0; i < increasing.size(); ++i) increasing[i] = static_cast<std::byte>(i);
  EXPECT_EQ(internal::crc32c_of(increasing), 0x46DD794Eu);
  constexpr std::string_view kDigits = "123456789";
  EXPECT_EQ(internal::crc32c_of(std::as_bytes(std::span(kDigits))), 0xE3069283u);
}

TEST(Crc32c, IsThatBitByBitForEveryLengthAndPlace) {
  std::vector<std::byte> bytes(9000);
  std::uint32_t state = 12345;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  for (std::size_t count = 0; count < 8000; count += count < 1100 ? 1 : 97) {
    for (const std::size_t first : {0u, 1u, 13u}) {
      const auto part = std::span<const std::byte>(bytes).subspan(first, count);
      const auto before = static_cast<std::uint32_t>(count * 2654435761u);
      ASSERT_EQ(internal::crc32c_of(part, before), crc32c_bit_by_bit(part, before))
          << count << " bytes from " << first;
    }
  }
}

TEST(Crc32c, PartsGoOnWhereTheOneBeforeEnded) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const auto all = std::span<const std::byte>(bytes);
  for (const std::size_t cut : {1u, 255u, 512u, 700u, 4096u}) {
    EXPECT_EQ(internal::crc32c_of(all.subspan(cut), internal::crc32c_of(all.first(cut))),
              internal::crc32c_of(all));
  }
}

}  // namespace
}  // namespace tutti

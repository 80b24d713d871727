// Tests XXH3-128 against vectors of its own command-line program (xxh128sum), and CRC32C bit by
// bit.
// SPDX-License-Identifier: Apache-2.0
#include "core/hash.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace tutti::hash_test {

std::string hash_of(std::string_view text) {
  Hasher hasher;
  hasher.update(text);
  return hasher.hex_digest();
}

TEST(Hash, MatchesPublishedVectors) {
  EXPECT_EQ(hash_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_of("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(hash_of("abc"), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(hash_of("The quick brown fox jumps over the lazy dog"),
            "ddd650205ca3e7fa24a1cc2e3a8a7651");
  std::string bytes;
  for (int i = 0; i < 1024; ++i) bytes += static_cast<char>(i % 256);
  EXPECT_EQ(hash_of(bytes), "83885e853bb6640ca870f92984398d22");
}

TEST(Hash, DoesNotDependOnHowTheBytesWereCut) {
  std::string text(5000, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  const std::string whole = hash_of(text);
  for (std::size_t piece : {1, 7, 64, 255, 256, 1024, 4999}) {
    Hasher hasher;
    for (std::size_t i = 0; i < text.size(); i += piece) {
      hasher.update(std::string_view(text).substr(i, piece));
    }
    EXPECT_EQ(hasher.hex_digest(), whole) << piece;
  }
}

TEST(Hash, GoesOnAfterADigest) {
  Hasher hasher;
  hasher.update("ab");
  EXPECT_EQ(hasher.hex_digest(), hash_of("ab"));
  hasher.update("c");
  EXPECT_EQ(hasher.hex_digest(), hash_of("abc"));
  Hasher moved = std::move(hasher);
  EXPECT_EQ(moved.hex_digest(), hash_of("abc"));
}

std::uint32_t crc32c_bit_by_bit(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

TEST(Crc32c, HasThePublishedValues) {
  // Vectors of RFC 3720, B.4, and the customary check value.
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

}  // namespace tutti::hash_test

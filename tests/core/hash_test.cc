// XXH3-128 against vectors of its own command-line program (xxh128sum).
// SPDX-License-Identifier: Apache-2.0
#include "core/hash.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

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

}  // namespace
}  // namespace tutti

// SHA-256 as FIPS 180-4 writes it, and HMAC over it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/handshake/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tutti {
namespace {

constexpr std::array<std::uint32_t, 64> kRoundConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::array<std::uint32_t, 8> kStart{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t big_endian_word(const std::byte* bytes) {
  return std::to_integer<std::uint32_t>(bytes[0]) << 24 |
         std::to_integer<std::uint32_t>(bytes[1]) << 16 |
         std::to_integer<std::uint32_t>(bytes[2]) << 8 | std::to_integer<std::uint32_t>(bytes[3]);
}

constexpr std::size_t kBlock = 64;

}  // namespace

Sha256::Sha256() : state_(kStart) {}

void Sha256::update(std::span<const std::byte> bytes) {
  std::size_t filled = num_bytes_ % kBlock;
  num_bytes_ += bytes.size();
  if (filled > 0) {
    const std::size_t n = std::min(kBlock - filled, bytes.size());
    std::copy_n(bytes.begin(), n, block_.begin() + static_cast<std::ptrdiff_t>(filled));
    bytes = bytes.subspan(n);
    filled += n;
    if (filled < kBlock) return;
    take_block(block_.data());
  }
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) take_block(bytes.data());
  std::ranges::copy(bytes, block_.begin());
}

void Sha256::take_block(const std::byte* block) {
  std::array<std::uint32_t, 64> words{};
  for (std::size_t i = 0; i < 16; ++i) words[i] = big_endian_word(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = words[i - 15], b = words[i - 2];
    const std::uint32_t s0 = std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3);
    const std::uint32_t s1 = std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10);
    words[i] = words[i - 16] + s0 + words[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRoundConstants[i] + words[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> change{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += change[i];
}

Digest256 Sha256::digest() {
  const std::uint64_t num_bits = num_bytes_ * 8;
  std::array<std::byte, kBlock + 8> padding{std::byte{0x80}};
  const std::size_t zeros = (kBlock + 56 - num_bytes_ % kBlock - 1) % kBlock;
  for (std::size_t i = 0; i < 8; ++i) {
    padding[1 + zeros + i] = static_cast<std::byte>(num_bits >> (56 - 8 * i));
  }
  update(std::span(padding).first(1 + zeros + 8));
  Digest256 result{};
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return result;
}

HmacSha256::HmacSha256(std::span<const std::byte> key) {
  std::array<std::byte, kBlock> padded{};
  if (key.size() > kBlock) {
    Sha256 hash;
    hash.update(key);
    std::ranges::copy(hash.digest(), padded.begin());
  } else {
    std::ranges::copy(key, padded.begin());
  }
  std::array<std::byte, kBlock> inner{}, outer{};
  std::ranges::transform(padded, inner.begin(), [](std::byte b) { return b ^ std::byte{0x36}; });
  std::ranges::transform(padded, outer.begin(), [](std::byte b) { return b ^ std::byte{0x5c}; });
  inner_.update(inner);
  outer_.update(outer);
}

Digest256 HmacSha256::digest() {
  outer_.update(inner_.digest());
  return outer_.digest();
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  volatile unsigned differences = 0;  // volatile: no early end
  for (std::size_t i = 0; i < a.size(); ++i) {
    differences = differences | std::to_integer<unsigned>(a[i] ^ b[i]);
  }
  return differences == 0;
}

}  // namespace tutti

// Computes MD5 digests, because the CIFAR-10 home page publishes the MD5 digest of its archive.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/published_archive.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <istream>

#include "tutti/core/text.h"

namespace tutti::examples::cifar10 {
namespace {

constexpr std::size_t kBlock = 64;
using Md5State = std::array<std::uint32_t, 4>;

/// Returns the combination of b, c and d in step i of the four rounds, and the index of the word
/// that the step adds.
std::pair<std::uint32_t, unsigned> md5_mix(unsigned i, std::uint32_t b, std::uint32_t c,
                                           std::uint32_t d) {
  switch (i / 16) {
    case 0:
      return {(b & c) | (~b & d), i};
    case 1:
      return {(d & b) | (~d & c), (5 * i + 1) % 16};
    case 2:
      return {b ^ c ^ d, (3 * i + 5) % 16};
    default:
      return {c ^ (b | ~d), 7 * i % 16};
  }
}

void md5_block(const char* block, Md5State& state) {
  static constexpr unsigned kShifts[4][4] = {
      {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  std::array<std::uint32_t, 16> words;
  std::memcpy(words.data(), block, kBlock);  // tutti supports only little-endian machines
  auto [a, b, c, d] = state;
  for (unsigned i = 0; i < kBlock; ++i) {
    const auto [mixed, word] = md5_mix(i, b, c, d);
    const auto sine = static_cast<std::uint32_t>(0x1p32 * std::abs(std::sin(i + 1.0)));
    const std::uint32_t turned =
        std::rotl(a + mixed + sine + words[word], static_cast<int>(kShifts[i / 16][i % 4]));
    a = d;
    d = c;
    c = b;
    b += turned;
  }
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d};
}

std::string md5_text(const Md5State& state) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint32_t word : state) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      text += kDigits[word >> (shift + 4) & 15U];
      text += kDigits[word >> shift & 15U];
    }
  }
  return text;
}

}  // namespace

ArchiveIdentity identity_of(std::istream& in) {
  Md5State state{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  std::int64_t bytes = 0;
  std::array<char, kBlock> block{};
  std::size_t filled = kBlock;
  while (filled == kBlock) {
    in.read(block.data(), kBlock);
    filled = static_cast<std::size_t>(in.gcount());
    bytes += in.gcount();
    if (filled == kBlock) md5_block(block.data(), state);
  }
  // MD5 pads the text with a 1 bit and zeros, and puts the number of bits at the end of the last
  // block.
  std::array<char, 2 * kBlock> tail{};
  std::memcpy(tail.data(), block.data(), filled);
  tail[filled] = static_cast<char>(0x80);
  const std::size_t length = filled < kBlock - 8 ? kBlock : 2 * kBlock;
  const std::uint64_t bits = 8 * static_cast<std::uint64_t>(bytes);
  std::memcpy(tail.data() + length - 8, &bits, 8);
  for (std::size_t at = 0; at < length; at += kBlock) md5_block(tail.data() + at, state);
  return {bytes, md5_text(state)};
}

std::string describe(const ArchiveIdentity& archive) {
  const auto named = [](const ArchiveIdentity& each) {
    return concat(each.bytes, " bytes, MD5 ", each.md5);
  };
  if (archive == kPublishedArchive) return named(archive) + ": the published archive";
  return concat(named(archive), ": not the published archive; expected ", named(kPublishedArchive));
}

}  // namespace tutti::examples::cifar10

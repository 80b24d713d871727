// CRC32C: products of polynomials in wide vectors, three streams of the processor's instruction, or
// tables.
// SPDX-License-Identifier: Apache-2.0
//
// The instruction takes three cycles and can be started in each, so three parts of a block are
// summed at once. A part's sum is then moved past the parts behind it, that is multiplied by a
// power of x, which is linear in its bits: four table look-ups.
//
// Long blocks are folded: 128 bits times x^D are congruent to the product of each half with a
// constant of 33 bits, so they can be added to the data D bits further on (Gopal et al., "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009). The last 16 bytes are a short
// block with the same sum.
#include "tutti/core/crc32c.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tutti::internal {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;

using Table = std::array<std::array<std::uint32_t, 256>, 4>;

/// Four bytes at a time ("slicing").
constexpr Table make_slicing_table() {
  Table table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    table[0][i] = crc;
  }
  for (std::size_t k = 1; k < 4; ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xff];
    }
  }
  return table;
}
constexpr Table kSlicing = make_slicing_table();

std::uint32_t with_tables(std::uint32_t crc, const std::byte* bytes, std::size_t count) {
  for (; count >= 4; bytes += 4, count -= 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes, 4);
    word ^= crc;
    crc = kSlicing[3][word & 0xff] ^ kSlicing[2][word >> 8 & 0xff] ^
          kSlicing[1][word >> 16 & 0xff] ^ kSlicing[0][word >> 24];
  }
  for (; count > 0; ++bytes, --count) {
    crc = crc >> 8 ^ kSlicing[0][(crc ^ std::to_integer<std::uint32_t>(*bytes)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)
constexpr std::size_t kPart = 1024;

/// What a sum becomes when kPart zeros follow it.
struct MovePast {
  Table table{};
  MovePast() {
    constexpr std::array<std::byte, kPart> zeros{};
    std::array<std::uint32_t, 32> of_bit{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
      of_bit[bit] = with_tables(std::uint32_t{1} << bit, zeros.data(), zeros.size());
    }
    for (std::size_t k = 0; k < 4; ++k) {
      for (std::size_t value = 0; value < 256; ++value) {
        for (std::size_t bit = 0; bit < 8; ++bit) {
          if (value >> bit & 1) table[k][value] ^= of_bit[8 * k + bit];
        }
      }
    }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
           table[3][crc >> 24];
  }
};

std::uint64_t word_at(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, 8);
  return word;
}

[[gnu::target("sse4.2")]] std::uint32_t with_instruction(std::uint32_t crc, const std::byte* bytes,
                                                         std::size_t count) {
  static const MovePast move_past;
  for (; count >= 3 * kPart; bytes += 3 * kPart, count -= 3 * kPart) {
    std::uint64_t a = crc, b = 0, c = 0;
    for (std::size_t i = 0; i < kPart; i += 8) {
      a = __builtin_ia32_crc32di(a, word_at(bytes + i));
      b = __builtin_ia32_crc32di(b, word_at(bytes + kPart + i));
      c = __builtin_ia32_crc32di(c, word_at(bytes + 2 * kPart + i));
    }
    crc = move_past(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    crc = move_past(crc) ^ static_cast<std::uint32_t>(c);
  }
  std::uint64_t sum = crc;
  for (; count >= 8; bytes += 8, count -= 8) sum = __builtin_ia32_crc32di(sum, word_at(bytes));
  crc = static_cast<std::uint32_t>(sum);
  for (; count > 0; ++bytes, --count) {
    crc = __builtin_ia32_crc32qi(crc, std::to_integer<unsigned char>(*bytes));
  }
  return crc;
}

/// x^n modulo the polynomial, its bits in the order of sums, one place up as products want them.
constexpr std::uint64_t power_of_x(int n) {
  std::uint32_t power = 0x80000000;
  for (int i = 0; i < n; ++i) power = power >> 1 ^ (power & 1 ? kPolynomial : 0);
  return std::uint64_t{power} << 1;
}

#define TUTTI_FOLDING gnu::target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")

template <int bits>
[[TUTTI_FOLDING]] inline __m512i folded(__m512i sum, __m512i data) {
  constexpr auto kLow = static_cast<long long>(power_of_x(bits + 32));
  constexpr auto kHigh = static_cast<long long>(power_of_x(bits - 32));
  const __m512i by = _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
  const __m512i low = _mm512_clmulepi64_epi128(sum, by, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(sum, by, 0x11);
  return _mm512_xor_si512(_mm512_xor_si512(low, high), data);
}

template <int bits>
[[TUTTI_FOLDING]] inline __m128i folded(__m128i sum, __m128i data) {
  constexpr auto kLow = static_cast<long long>(power_of_x(bits + 32));
  constexpr auto kHigh = static_cast<long long>(power_of_x(bits - 32));
  const __m128i by = _mm_set_epi64x(kHigh, kLow);
  const __m128i low = _mm_clmulepi64_si128(sum, by, 0x00);
  const __m128i high = _mm_clmulepi64_si128(sum, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

[[TUTTI_FOLDING]] inline __m512i vector_at(const std::byte* bytes) {
  return _mm512_loadu_si512(bytes);
}

constexpr std::size_t kFolded = 256;  // bytes: four vectors

[[TUTTI_FOLDING]] std::uint32_t with_products(std::uint32_t crc, const std::byte* bytes,
                                              std::size_t count) {
  const __m512i before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc)));
  __m512i a = _mm512_xor_si512(vector_at(bytes), before), b = vector_at(bytes + 64),
          c = vector_at(bytes + 2 * 64), d = vector_at(bytes + 3 * 64);
  for (bytes += kFolded, count -= kFolded; count >= kFolded; bytes += kFolded, count -= kFolded) {
    a = folded<8 * kFolded>(a, vector_at(bytes));
    b = folded<8 * kFolded>(b, vector_at(bytes + 64));
    c = folded<8 * kFolded>(c, vector_at(bytes + 2 * 64));
    d = folded<8 * kFolded>(d, vector_at(bytes + 3 * 64));
  }
  d = folded<512>(folded<512>(folded<512>(a, b), c), d);
  alignas(64) __m128i parts[4];
  _mm512_store_si512(parts, d);
  __m128i sum = parts[0];
  for (int i = 1; i < 4; ++i) sum = folded<128>(sum, parts[i]);
  const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(sum));
  const auto high = static_cast<std::uint64_t>(_mm_extract_epi64(sum, 1));
  crc = static_cast<std::uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, low), high));
  return with_instruction(crc, bytes, count);
}
#endif

}  // namespace

std::uint32_t crc32c_of(std::span<const std::byte> bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  static const bool has_products =
      has_instruction && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq");
  if (has_products && bytes.size() >= 2 * kFolded) {
    return ~with_products(~crc, bytes.data(), bytes.size());
  }
  if (has_instruction) return ~with_instruction(~crc, bytes.data(), bytes.size());
#endif
  return ~with_tables(~crc, bytes.data(), bytes.size());
}

}  // namespace tutti::internal

// 16-bit numbers: all 65,536 of each kind, and every border between two of them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tutti {
namespace half_test {

/// The value of `bits` by the definition of the format.
double defined_value(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1u));
  const double fraction = std::ldexp(bits & ((1u << fraction_bits) - 1u), -fraction_bits);
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, exponent - bias);
}

template <class Half>
void check_every_value(int exponent_bits, int fraction_bits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    Half half;
    half.bits = static_cast<std::uint16_t>(bits);
    const double expected = defined_value(bits, exponent_bits, fraction_bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(half))) << bits;
      const std::uint32_t quiet = bits | 1u << (fraction_bits - 1);
      ASSERT_EQ(Half(static_cast<double>(half)).bits, quiet) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(half), expected) << bits;
    ASSERT_EQ(std::signbit(static_cast<float>(half)), (bits & 0x8000u) != 0) << bits;
    ASSERT_EQ(Half(expected).bits, bits);
  }
}

/// Around the middle of each pair of neighbours: just below, at, and just above.
template <class Half>
void check_every_border(int exponent_bits, int fraction_bits) {
  const std::uint32_t infinity = ((1u << exponent_bits) - 1u) << fraction_bits;
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = defined_value(bits, exponent_bits, fraction_bits);
    const double before = bits > 0 ? defined_value(bits - 1, exponent_bits, fraction_bits) : 0.0;
    // The neighbour of the largest number is where the next would stand.
    const double high = bits + 1 < infinity ? defined_value(bits + 1, exponent_bits, fraction_bits)
                                            : low + (low - before);
    const double middle = (low + high) / 2;
    ASSERT_EQ(Half(std::nextafter(middle, low)).bits, bits);
    ASSERT_EQ(Half(middle).bits, bits + (bits & 1u)) << bits;
    ASSERT_EQ(Half(std::nextafter(middle, high)).bits, bits + 1);
    ASSERT_EQ(Half(-middle).bits, (bits + (bits & 1u)) | 0x8000u) << bits;
  }
}

TEST(Half, EveryBFloat16IsItsDefinitionAndComesBack) { check_every_value<BFloat16>(8, 7); }
TEST(Half, EveryFloat16IsItsDefinitionAndComesBack) { check_every_value<Float16>(5, 10); }
TEST(Half, EveryBorderOfBFloat16RoundsToEven) { check_every_border<BFloat16>(8, 7); }
TEST(Half, EveryBorderOfFloat16RoundsToEven) { check_every_border<Float16>(5, 10); }

TEST(Half, ExtremesBecomeInfinityOrZero) {
  EXPECT_EQ(Float16(65519.99).bits, 0x7bffu);
  EXPECT_EQ(Float16(65520.0).bits, 0x7c00u);
  EXPECT_EQ(Float16(1e300).bits, 0x7c00u);
  EXPECT_EQ(Float16(-1e300).bits, 0xfc00u);
  EXPECT_EQ(Float16(5e-324).bits, 0u);
  EXPECT_EQ(Float16(-1e-30).bits, 0x8000u);
  EXPECT_EQ(BFloat16(std::numeric_limits<double>::max()).bits, 0x7f80u);
  EXPECT_EQ(BFloat16(1e-60).bits, 0u);
}

}  // namespace half_test
}  // namespace tutti

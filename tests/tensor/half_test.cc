// Tests 16-bit numbers: every value, every midpoint, arrays of them, operations rounded once.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/half_conversion.h"
#include "tensor/kernel_table.h"
#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::half_test {

using testing::expect_same_bits;
using testing::expect_tensor;
using testing::random_values;

constexpr DType kHalves[] = {DType::kBFloat16, DType::kFloat16};

/// Returns the value of `bits` by the format's definition.
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

/// Tests values just below, at, and just above the midpoint of each pair of neighbours.
template <class Half>
void check_every_border(int exponent_bits, int fraction_bits) {
  const std::uint32_t infinity = ((1u << exponent_bits) - 1u) << fraction_bits;
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = defined_value(bits, exponent_bits, fraction_bits);
    const double before = bits > 0 ? defined_value(bits - 1, exponent_bits, fraction_bits) : 0.0;
    // The largest number's neighbour is the next value that the format would have.
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

template <class T>
std::uint16_t rounded_bits(float value) {
  return T(static_cast<double>(value)).bits;
}

std::vector<float> interesting_floats() {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               65504.0f,
                               65519.9f,
                               65520.0f,
                               65536.0f,
                               1e30f,
                               0x1p-24f,
                               0x1p-25f,
                               0x1.8p-25f,
                               0x1p-14f,
                               0x1.ffcp-15f,
                               0x1.ffep-15f,
                               0x1p-149f,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::quiet_NaN()};
  const RandomStream stream(RandomKey{3, kUserPurpose});
  for (std::uint64_t i = 0; i < 200'000; ++i) {  // arbitrary bits: all exponents, NaNs, denormals
    values.push_back(std::bit_cast<float>(stream.bits(i)));
    // Adds values in float16's range, in which most of the others are not.
    values.push_back(
        static_cast<float>(std::ldexp(stream.uniform64(i), -26 + static_cast<int>(i % 44))));
  }
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

template <class T>
void check_conversions() {
  std::vector<T> all(65536);
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    all[bits].bits = static_cast<std::uint16_t>(bits);
  std::vector<float> wide(all.size());
  widen(dtype_of<T>(), reinterpret_cast<const std::byte*>(all.data()), wide.data(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Compared as bits, so that NaNs count.
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]),
              std::bit_cast<std::uint32_t>(static_cast<float>(all[i])))
        << i;
  }
  // Contains every number, and the midpoint to the next, where float16 and bfloat16 can tie.
  std::vector<float> values = interesting_floats();
  for (std::size_t i = 0; i + 1 < wide.size(); ++i) {
    values.push_back(wide[i]);
    values.push_back(static_cast<float>((static_cast<double>(wide[i]) + wide[i + 1]) / 2));
  }
  std::vector<T> narrow_values(values.size());
  narrow(values.data(), dtype_of<T>(), reinterpret_cast<std::byte*>(narrow_values.data()),
         values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(narrow_values[i].bits, rounded_bits<T>(values[i])) << std::hexfloat << values[i];
}

TEST(HalfTensor, WholeArraysAreConvertedAsSingleNumbers) {
  check_conversions<BFloat16>();
  check_conversions<Float16>();
}

TEST(HalfTensor, HoldsAndShowsItsNumbers) {
  for (const DType dtype : kHalves) {
    const Tensor x = Tensor::full({2}, 1.5, dtype);
    EXPECT_EQ(x.num_bytes(), 4u);
    EXPECT_EQ(x.to_doubles(), (std::vector<double>{1.5, 1.5}));
    EXPECT_EQ(x.detached_rows(0, 1).item(), 1.5f);
    EXPECT_EQ(x.detached_rows(1, 1).item_int(), 1);
    EXPECT_NE(x.to_string().find("[1.5, 1.5]"), std::string::npos) << x;
    EXPECT_NE(x.to_string().find(to_string(dtype)), std::string::npos) << x;
  }
  EXPECT_EQ(Tensor::full({}, 1.0 / 3, DType::kBFloat16).item(), 0x1.56p-2f);
  EXPECT_EQ(Tensor::full({}, 1.0 / 3, DType::kFloat16).item(), 0x1.554p-2f);
  const Tensor made = Tensor::from<Float16>({1}, {Float16(0.5)});
  EXPECT_EQ(made.dtype(), DType::kFloat16);
  EXPECT_INVALID((void)made.host_span<BFloat16>(), "float16");
}

TEST(HalfTensor, OneOperationRoundsOnce) {
  for (const DType dtype : kHalves) {
    const Tensor a = random_values({7, 9}, dtype, -2, 2, 1),
                 b = random_values({9, 5}, dtype, -2, 2, 2);
    const Tensor wide_a = cast(a, DType::kFloat32), wide_b = cast(b, DType::kFloat32);
    expect_same_bits(matmul(a, b), cast(matmul(wide_a, wide_b), dtype));
    expect_same_bits(exp(a), cast(exp(wide_a), dtype));
    expect_same_bits(a * 3.0 + a,
                     cast(cast(cast(wide_a * 3.0, dtype), DType::kFloat32) + wide_a, dtype));
    expect_same_bits(softmax(a), cast(softmax(wide_a), dtype));
    expect_same_bits(reduce_mean(a, {.axes = {1}}),
                     cast(reduce_mean(wide_a, {.axes = {1}}), dtype));
    expect_same_bits(greater(a, 0.0), greater(wide_a, 0.0));
    const Tensor image = random_values({2, 5, 5, 3}, dtype, -1, 1, 3);
    const Tensor filter = random_values({3, 3, 3, 4}, dtype, -1, 1, 4);
    expect_same_bits(
        conv2d(image, filter),
        cast(conv2d(cast(image, DType::kFloat32), cast(filter, DType::kFloat32)), dtype));
  }
}

TEST(HalfTensor, SumsAreKeptInFloat32) {
  for (const DType dtype : kHalves) {
    // A sequential sum would stall at 256 in bfloat16, and at 2048 in float16.
    EXPECT_EQ(reduce_sum(Tensor::ones({5000}, dtype)).item(),
              dtype == DType::kFloat16 ? 5000 : 4992);
    EXPECT_EQ(reduce_mean(Tensor::full({5000}, 60000, dtype)).item(),
              Tensor::full({}, 60000, dtype).item());
  }
}

TEST(HalfTensor, OperationsThatMoveKeepTheBits) {
  for (const DType dtype : kHalves) {
    const Tensor x = random_values({4, 6}, dtype, -3, 3);
    const Tensor wide = cast(x, DType::kFloat32);
    expect_same_bits(transpose(x), cast(transpose(wide), dtype));
    expect_same_bits(slice(x, {1, 2}, {2, 3}), cast(slice(wide, {1, 2}, {2, 3}), dtype));
    expect_same_bits(concat({x, x}, 1), cast(concat({wide, wide}, 1), dtype));
    const Tensor rows = Tensor::from<std::int64_t>({3}, {3, 0, 3});
    expect_same_bits(gather(x, rows), cast(gather(wide, rows), dtype));
    const Tensor positive = greater(x, 0.0);
    expect_same_bits(where(positive, x, x * 0.5), cast(where(positive, wide, wide * 0.5), dtype));
    expect_same_bits(where(positive, x, 0.0), cast(where(positive, wide, 0.0), dtype));
    expect_tensor(one_hot(Tensor::from<std::int64_t>({2}, {1, 0}), 2, dtype), {2, 2}, {0, 1, 1, 0});
  }
}

TEST(HalfTensor, LabelsInFrontOfHalfLogitsAndMixedTypesRefused) {
  for (const DType dtype : kHalves) {
    const Tensor logits = random_values({5, 3}, dtype, -3, 3);
    const Tensor labels = Tensor::from<std::int64_t>({5}, {0, 2, 1, 1, 0});
    expect_same_bits(
        sparse_softmax_cross_entropy(labels, logits),
        cast(sparse_softmax_cross_entropy(labels, cast(logits, DType::kFloat32)), dtype));
  }
  EXPECT_INVALID((void)(Tensor::ones({2}, DType::kFloat16) + Tensor::ones({2}, DType::kBFloat16)),
                 "float16", "bfloat16", "cast()");
}

}  // namespace tutti::half_test

// Combining two runs of elements.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/canonical_tree.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/cross_device_ops/engine_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {
namespace combine_test {

using engine_tests::TypedBytes;
using internal::combine;
using testing::expect_error;

constexpr ReduceOp kEveryOp[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                 ReduceOp::kProduct};

TEST(Combine, HasTheBitsOfTheTreeInEveryAliasingAndAlignment) {
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kEveryOp) {
      if (dtype == DType::kBool && (op == ReduceOp::kSum || op == ReduceOp::kProduct)) continue;
      for (const std::size_t offset : {0, 1}) {
        for (const std::size_t count : {0, 1, 7, 5000}) {
          TypedBytes a(dtype, count, offset), b(dtype, count, 0), expected(dtype, count);
          TypedBytes out(dtype, count, offset);
          for (std::size_t i = 0; i < count; ++i) {
            a.set(i, dtype == DType::kBool ? i % 2 : static_cast<double>(i % 100) - 0.25);
            b.set(i, dtype == DType::kBool ? i % 3 == 0 : static_cast<double>(i % 7) + 0.5);
          }
          const std::byte* const inputs[] = {a.data(), b.data()};
          reduce_along_tree(op, dtype, inputs, expected.data(), count);
          combine(op, dtype, a.data(), b.data(), out.data(), count);
          EXPECT_TRUE(out.same_bytes(expected)) << op << " " << dtype << " " << count;
          TypedBytes left = a, right = b;
          combine(op, dtype, left.data(), b.data(), left.data(), count);
          combine(op, dtype, a.data(), right.data(), right.data(), count);
          EXPECT_TRUE(left.same_bytes(expected)) << op << " " << dtype << " into the left";
          EXPECT_TRUE(right.same_bytes(expected)) << op << " " << dtype << " into the right";
        }
      }
    }
  }
}

TEST(Combine, KeepsTheSidesOfSignedZerosAndLetsNaNWin) {
  const float zero = 0.0f, minus = -0.0f, nan = std::numeric_limits<float>::quiet_NaN();
  const auto result = [](ReduceOp op, float a, float b) {
    float out = 0.0f;
    combine(op, DType::kFloat32, reinterpret_cast<const std::byte*>(&a),
            reinterpret_cast<const std::byte*>(&b), reinterpret_cast<std::byte*>(&out), 1);
    return out;
  };
  EXPECT_FALSE(std::signbit(result(ReduceOp::kMin, zero, minus)));  // equal: the left one
  EXPECT_TRUE(std::signbit(result(ReduceOp::kMax, minus, zero)));
  for (const ReduceOp op : kEveryOp) {
    EXPECT_TRUE(std::isnan(result(op, nan, 1.0f))) << op;
    EXPECT_TRUE(std::isnan(result(op, 1.0f, nan))) << op;
  }
}

TEST(Combine, IntegersWrapAround) {
  TypedBytes a(DType::kInt32, 1), b(DType::kInt32, 1);
  a.set(0, std::numeric_limits<std::int32_t>::max());
  b.set(0, 1);
  combine(ReduceOp::kSum, DType::kInt32, a.data(), b.data(), a.data(), 1);
  EXPECT_EQ(a.get(0), std::numeric_limits<std::int32_t>::min());
}

TEST(Combine, RefusesWhatHasNoMeaning) {
  bool value = true;
  auto* const data = reinterpret_cast<std::byte*>(&value);
  expect_error(ErrorCode::kInvalidArgument, {"bool", "MIN and MAX", "SUM"},
               [&] { combine(ReduceOp::kSum, DType::kBool, data, data, data, 1); });
  float number = 1.0f;
  auto* const bytes = reinterpret_cast<std::byte*>(&number);
  expect_error(ErrorCode::kInternal, {"MEAN"},
               [&] { combine(ReduceOp::kMean, DType::kFloat32, bytes, bytes, bytes, 1); });
}

TEST(Combine, TheTreeTakesMemoryOfAnyAlignment) {
  for (const DType dtype : kAllDTypes) {
    TypedBytes a(dtype, 9000, 1), b(dtype, 9000, 0), c(dtype, 9000, 3), out(dtype, 9000, 1);
    for (std::size_t i = 0; i < 9000; ++i) {
      a.set(i, static_cast<double>(i % 2));
      b.set(i, static_cast<double>(i % 3 == 0));
      c.set(i, static_cast<double>(i % 5 == 0));
    }
    const std::byte* const inputs[] = {a.data(), b.data(), c.data()};
    reduce_along_tree(ReduceOp::kMax, dtype, inputs, out.data(), 9000);
    reduce_along_tree(ReduceOp::kMax, dtype, inputs, a.data(), 9000);
    for (std::size_t i = 0; i < 9000; ++i) {
      ASSERT_EQ(out.get(i), i % 2 || i % 3 == 0 || i % 5 == 0) << dtype << " " << i;
    }
    EXPECT_TRUE(a.same_bytes(out)) << dtype;
  }
}

}  // namespace combine_test
}  // namespace tutti

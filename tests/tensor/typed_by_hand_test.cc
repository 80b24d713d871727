// The short forms: indices, sums by members, ranges, random tensors without a key; and their
// errors.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace typed_by_hand_test {

using testing::expect_error;
using testing::expect_same_bits;
using testing::expect_tensor;
using testing::random_values;
using testing::tensor_of;

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

TEST(ShortForms, ATensorIsMadeOfNumbers) {
  const Tensor t = {1.f, 2.f, 3.5f};
  EXPECT_EQ(t.dtype(), DType::kFloat32);
  expect_tensor(t, {3}, {1, 2, 3.5});
  const Tensor nothing = {};
  EXPECT_FALSE(nothing.defined());
}

TEST(ShortForms, IndicesTakeAxesAwayAndRangesKeepThem) {
  const Tensor x = cast(arange(24), DType::kFloat32).reshape({2, 3, 4});
  expect_tensor(x[1], {3, 4}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
  expect_tensor(x[-1][0], {4}, {12, 13, 14, 15});
  expect_tensor(x[{0, 2, 3}], {}, {11});
  expect_tensor(x[Range{0, 1}], {1, 3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  expect_tensor(x[{Range{}, 1, Range{-2}}], {2, 2}, {6, 7, 18, 19});
  expect_tensor(x[{1, Range{2, 9}}], {1, 4}, {20, 21, 22, 23});
  EXPECT_EQ((x[{Range{2, 1}}].shape()), (Shape{0, 3, 4}));
  expect_error(kInvalid,
               {concat("operator[] at typed_by_hand_test.cc:", __LINE__ + 1), "axis 0", "got 2"},
               [&] { x[2]; });
  EXPECT_INVALID((x[{0, 0, 0, 0}]), "operator[] at typed_by_hand_test.cc:", "[2, 3, 4]",
                 "at most 3");
  EXPECT_INVALID((x[{0, -4}]), "-3 .. 2", "axis 1");
}

TEST(ShortForms, MembersAndAxesAreTheReductions) {
  const Tensor x = random_values({3, 4}, DType::kFloat64, -2, 2);
  expect_same_bits(x.sum(), reduce_sum(x));
  expect_same_bits(x.mean(1, true), reduce_mean(x, {.axes = {1}, .keep_dims = true}));
  expect_same_bits(reduce_sum(x, 1), reduce_sum(x, {.axes = {1}}));
  expect_same_bits(reduce_max(x, -1, true), x.max(1, true));
  expect_same_bits(x.min(0), reduce_min(x, 0));
  expect_same_bits(x.reshape({2, -1}), reshape(x, {2, 6}));
  expect_error(kInvalid, {concat("reduce_sum at typed_by_hand_test.cc:", __LINE__ + 1)},
               [&] { x.sum(2); });
}

TEST(ShortForms, ComparisonsAndAssignmentsAreOperations) {
  const Tensor a = {1.f, 2.f, 3.f};
  expect_tensor(a < 2, {3}, {1, 0, 0});
  expect_tensor(2 <= a, {3}, {0, 1, 1});
  expect_tensor(a == a, {3}, {1, 1, 1});
  expect_tensor(a != Tensor{1.f, 0.f, 3.f}, {3}, {0, 1, 0});
  expect_tensor(a > 2.5, {3}, {0, 0, 1});
  expect_tensor(a >= 3, {3}, {0, 0, 1});
  Tensor b = a;
  b += 1;
  b *= b;
  b -= a;
  b /= 2.0;
  expect_tensor(b, {3}, {1.5, 3.5, 6.5});
  expect_tensor(a, {3}, {1, 2, 3});  // a copy keeps its value
}

TEST(IntegerArithmetic, QuotientsGoDownAndRestsHaveTheDivisorsSign) {
  const Tensor a = Tensor::from<std::int32_t>({8}, {7, -7, 7, -7, 6, -6, 5, 0});
  const Tensor b = Tensor::from<std::int32_t>({8}, {2, 2, -2, -2, 3, 3, 0, 5});
  expect_tensor(floor_divide(a, b), {8}, {3, -4, -4, 3, 2, -2, 0, 0});
  expect_tensor(a % b, {8}, {1, 1, -1, -1, 0, 0, 0, 0});
  const auto lowest = std::numeric_limits<std::int64_t>::min();
  const Tensor edge = Tensor::from<std::int64_t>({2}, {lowest, lowest + 1});
  expect_same_bits(floor_divide(edge, -1),
                   Tensor::from<std::int64_t>({2}, {lowest, -(lowest + 1)}));
  expect_tensor(edge % -1, {2}, {0, 0});
  const Tensor large = Tensor::from<std::int64_t>({1}, {(std::int64_t{1} << 62) + 1});
  EXPECT_EQ((large % 10).item_int(), 5);  // beyond what a double holds
  expect_tensor(Tensor::from<std::uint8_t>({2}, {200, 7}) % 64, {2}, {8, 7});
}

TEST(IntegerArithmetic, PowersWrapAround) {
  const Tensor base = Tensor::from<std::int32_t>({6}, {3, -2, 0, 7, 10, 1});
  const Tensor exponent = Tensor::from<std::int32_t>({6}, {4, 5, 0, 1, 10, 1000});
  expect_tensor(tutti::pow(base, exponent), {6}, {81, -32, 1, 7, 1410065408, 1});
  const Tensor down = Tensor::from<std::int32_t>({4}, {1, -1, -1, 2});
  expect_tensor(tutti::pow(down, Tensor::from<std::int32_t>({4}, {-3, -3, -2, -1})), {4},
                {1, -1, 1, 0});
}

TEST(Creation, RangesEndBeforeTheirStop) {
  EXPECT_EQ(arange(5).dtype(), DType::kInt64);
  expect_tensor(arange(5), {5}, {0, 1, 2, 3, 4});
  expect_tensor(arange(2, 9, 3), {3}, {2, 5, 8});
  expect_tensor(arange(5, 0, -2), {3}, {5, 3, 1});
  expect_tensor(arange(3, 3), {0}, {});
  EXPECT_EQ(arange(0.0, 1.0, 0.25).dtype(), DType::kFloat32);
  expect_tensor(arange(0.0, 1.0, 0.25), {4}, {0, 0.25, 0.5, 0.75});
  expect_tensor(arange(0, 3, 1, DType::kFloat64), {3}, {0, 1, 2});
  EXPECT_INVALID(arange(0, 3, 0), "arange", "step");
  EXPECT_INVALID(arange(0.0, std::nan("")), "arange", "finite");
}

TEST(Creation, LinspaceEndsAtItsStop) {
  expect_tensor(linspace(0, 1, 5), {5}, {0, 0.25, 0.5, 0.75, 1});
  expect_tensor(linspace(3, -3, 3, DType::kInt32), {3}, {3, 0, -3});
  expect_tensor(linspace(2, 9, 1), {1}, {2});
  const Tensor thirds = linspace(0, 0.1, 4, DType::kFloat64);
  EXPECT_EQ(thirds.to_doubles()[3], 0.1);
  EXPECT_INVALID(linspace(0, 1, -1), "linspace", "-1");
}

TEST(Creation, EyeAndItsLikes) {
  expect_tensor(eye(2), {2, 2}, {1, 0, 0, 1});
  expect_tensor(eye(2, 3, DType::kInt32), {2, 3}, {1, 0, 0, 0, 1, 0});
  expect_tensor(eye(3, 2), {3, 2}, {1, 0, 0, 1, 0, 0});
  EXPECT_EQ(eye(0).shape(), (Shape{0, 0}));
  const Tensor x = Tensor::full({2, 1}, 7, DType::kInt32);
  expect_same_bits(zeros_like(x), Tensor::zeros({2, 1}, DType::kInt32));
  expect_same_bits(ones_like(x), Tensor::ones({2, 1}, DType::kInt32));
}

TEST(Creation, TriangularPartsHaveADiagonalOfTheirOwn) {
  const Tensor x = arange(1, 10).reshape({3, 3});
  expect_tensor(tril(x, 1), {3, 3}, {1, 2, 0, 4, 5, 6, 7, 8, 9});
  expect_tensor(tril(x, -1), {3, 3}, {0, 0, 0, 4, 0, 0, 7, 8, 0});
  expect_tensor(triu(x, 1), {3, 3}, {0, 2, 3, 0, 0, 6, 0, 0, 0});
  EXPECT_INVALID(tril(Tensor::zeros({3})), "tril at typed_by_hand_test.cc", "[3]");
}

TEST(Sorting, NanIsTheLargestAndEqualOnesKeepTheirOrder) {
  const double nan = std::nan("");
  const Tensor x = tensor_of({6}, {2, nan, -1, 2, 0, -1}, DType::kFloat32);
  expect_tensor(sort(x), {6}, {-1, -1, 0, 2, 2, nan});
  expect_tensor(argsort(x), {6}, {2, 5, 4, 0, 3, 1});
  expect_tensor(argsort(x, {.descending = true}), {6}, {1, 0, 3, 4, 2, 5});
  const Tensor lowest = Tensor::from<std::int32_t>({3}, {5, std::numeric_limits<int>::min(), -5});
  expect_tensor(sort(lowest), {3}, {-2147483648.0, -5, 5});
  expect_tensor(sort(Tensor::from<std::uint8_t>({3}, {200, 0, 7})), {3}, {0, 7, 200});
  EXPECT_EQ(sort(Tensor::zeros({2, 0})).shape(), (Shape{2, 0}));
  EXPECT_INVALID(sort(Tensor::zeros({2}), {.axis = 1}), "sort at typed_by_hand_test.cc");
}

TEST(Scattering, AddsWhereIndicesRepeatAndNamesThoseOutOfRange) {
  const Tensor at = Tensor::from<std::int64_t>({3, 1}, {0, 2, 0});
  expect_tensor(scatter(at, Tensor{1.f, 2.f, 3.f}, {3}), {3}, {4, 0, 2});
  expect_tensor(scatter(Tensor::from<std::int64_t>({2, 0}, {}), Tensor{1.f, 2.f}, {}), {}, {3});
  EXPECT_INVALID(scatter(Tensor::from<std::int64_t>({1, 1}, {3}), Tensor{1.f}, {3}),
                 "scatter at typed_by_hand_test.cc", "axis 0", "got 3");
  // In range only once the coordinates are one number.
  EXPECT_INVALID(scatter(Tensor::from<std::int64_t>({1, 2}, {0, 4}), Tensor{1.f}, {2, 3}), "axis 1",
                 "got 4");
  EXPECT_INVALID(scatter(at, Tensor{1.f, 2.f}, {3}), "values [2]");
}

TEST(BooleanMask, TakesNothingOrAll) {
  const Tensor x = random_values({3, 2}, DType::kFloat32, -1, 1);
  EXPECT_EQ(boolean_mask(x, Tensor::zeros({3}, DType::kBool)).shape(), (Shape{0, 2}));
  expect_same_bits(boolean_mask(x, Tensor::ones({3, 2}, DType::kBool)), x.reshape({6}));
  EXPECT_INVALID(boolean_mask(x, Tensor::ones({2}, DType::kBool)),
                 "boolean_mask at typed_by_hand_test.cc", "[2]", "[3, 2]");
}

TEST(Nonzero, GivesCoordinatesInRowMajorOrder) {
  expect_tensor(nonzero(Tensor::from<float>({2, 3}, {0, 2, 0, NAN, 0, -1})), {3, 2},
                {0, 1, 1, 0, 1, 2});
  expect_tensor(nonzero(Tensor::from<bool>({3}, {true, false, true})), {2, 1}, {0, 2});
  EXPECT_EQ(nonzero(Tensor::zeros({2, 2})).shape(), (Shape{0, 2}));
  EXPECT_EQ(nonzero(Tensor(5.f)).shape(), (Shape{1, 0}));
}

TEST(Unique, KeepsTheOrderOfFirstAppearance) {
  const UniqueResult found = unique(Tensor::from<std::int32_t>({6}, {4, 1, 4, 7, 1, 4}));
  expect_tensor(found.values, {3}, {4, 1, 7});
  expect_tensor(found.indices, {6}, {0, 1, 0, 2, 1, 0});
  expect_tensor(unique(Tensor{0.f, -0.f, 2.f}).values, {2}, {0, 2});
  EXPECT_EQ(unique(Tensor{NAN, NAN}).values.shape(), (Shape{2}));
  EXPECT_EQ(unique(Tensor::zeros({0})).values.shape(), (Shape{0}));
  EXPECT_INVALID(unique(Tensor::zeros({2, 1})), "unique at typed_by_hand_test.cc", "[n]", "[2, 1]",
                 "reshape");
}

TEST(Logsumexp, IsExactWhereTheSumOverflows) {
  const double inf = std::numeric_limits<double>::infinity();
  expect_tensor(reduce_logsumexp(tensor_of({2}, {1000, 1000}, DType::kFloat64)), {},
                {1000 + std::log(2.0)}, 1e-15);
  expect_tensor(reduce_logsumexp(tensor_of({2}, {-inf, -inf}, DType::kFloat32)), {}, {-inf});
  expect_tensor(reduce_logsumexp(tensor_of({2}, {inf, 1}, DType::kFloat32)), {}, {inf});
  expect_tensor(reduce_logsumexp(Tensor::zeros({0}, DType::kFloat64)), {}, {-inf});
}

TEST(Einsum, ErrorsQuoteTheEquation) {
  const Tensor a = Tensor::zeros({2, 3});
  EXPECT_INVALID(einsum("ij,jk->ik", {a, a}), "einsum at typed_by_hand_test.cc", "\"ij,jk->ik\"",
                 "'j'", "expected 3", "got 2");
  EXPECT_INVALID(einsum("ij,jk", {a}), "as many operands", "2", "got 1");
  EXPECT_INVALID(einsum("ijk", {a}), "3 axes", "'ijk'", "[2, 3]");
  EXPECT_INVALID(einsum("ij->iz", {a}), "'z'", "no axis");
  EXPECT_INVALID(einsum("ij->ii", {a}), "'i'", "more than once");
  EXPECT_INVALID(einsum("i?", {a}), "letters");
  EXPECT_INVALID(einsum("i", {Tensor::zeros({2}, DType::kInt32)}), "int32");
}

TEST(RandomWithoutAKey, RepeatsAfterTheSeedAndDiffersFromCallToCall) {
  set_random_seed(3);
  const Tensor first = random_normal({2, 3}), second = random_normal({2, 3});
  EXPECT_EQ(first.shape(), (Shape{2, 3}));
  EXPECT_NE(first.to_doubles(), second.to_doubles());
  set_random_seed(3);
  expect_same_bits(random_normal({2, 3}), first);
  const RandomContextScope replica({.seed = 3, .step = 1, .replica = 1});
  EXPECT_NE(random_normal({2, 3}).to_doubles(), first.to_doubles());
  set_random_seed(0);
}

TEST(RandomCategorical, DrawsClassesWithTheirProbabilities) {
  const std::vector<double> probabilities = {0.1, 0.2, 0.7};
  const Tensor logits = tutti::log(tensor_of({1, 3}, probabilities, DType::kFloat64));
  constexpr std::int64_t kCount = 20'000;
  const Tensor drawn = random_categorical(logits, kCount, {.seed = 5, .purpose = kUserPurpose});
  ASSERT_EQ(drawn.shape(), (Shape{1, kCount}));
  std::vector<double> shares(3, 0.0);
  for (const double drawn_class : drawn.to_doubles()) {
    shares[static_cast<std::size_t>(drawn_class)] += 1.0 / kCount;
  }
  // Five standard deviations of a share.
  for (std::size_t c = 0; c < 3; ++c) {
    const double deviation = std::sqrt(probabilities[c] * (1 - probabilities[c]) / kCount);
    EXPECT_NEAR(shares[c], probabilities[c], 5 * deviation);
  }
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor never = tensor_of({2, 2}, {0, -inf, -inf, 0}, DType::kFloat32);
  expect_tensor(random_categorical(never, 2), {2, 2}, {0, 0, 1, 1});
  EXPECT_INVALID(random_categorical(Tensor::zeros({3}), 1),
                 "random_categorical at typed_by_hand_test.cc", "[3]");
}

}  // namespace typed_by_hand_test
}  // namespace tutti

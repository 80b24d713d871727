// Enlarging images, running sums, the largest elements, and repeating or picking along an axis.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace arranging_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::random_values;
using testing::tensor_of;

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

TEST(Upsample2d, NearestRepeatsPixels) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Tensor x = tensor_of({1, 2, 2, 1}, {1, 2, 3, 4}, dtype);
    expect_tensor(upsample2d(x, {2, 3, Interpolation::kNearest}), {1, 4, 6, 1},
                  {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 3, 3, 3, 4, 4, 4});
  }
}

// Keras 3: UpSampling2D((1, 2), interpolation="bilinear") of [0, 4, 8].
TEST(Upsample2d, BilinearTakesPixelCentresAtHalves) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const UpsampleOptions wide{1, 2, Interpolation::kBilinear};
    expect_tensor(upsample2d(tensor_of({1, 1, 3, 1}, {0, 4, 8}, dtype), wide), {1, 1, 6, 1},
                  {0, 1, 3, 5, 7, 8});
    const UpsampleOptions both{2, 2, Interpolation::kBilinear};
    expect_tensor(upsample2d(tensor_of({1, 2, 2, 1}, {0, 4, 8, 12}, dtype), both), {1, 4, 4, 1},
                  {0, 1, 3, 4, 2, 3, 5, 6, 6, 7, 9, 10, 8, 9, 11, 12});
  }
}

TEST(Upsample2d, KeepsBatchAndChannelsApart) {
  const Tensor x = random_values({2, 3, 2, 3}, DType::kFloat64, -1, 1);
  const auto xs = x.to_doubles();
  std::vector<double> expected;
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t h = 0; h < 6; ++h)
      for (std::size_t w = 0; w < 4; ++w)
        for (std::size_t c = 0; c < 3; ++c) {
          expected.push_back(xs[((n * 3 + h / 2) * 2 + w / 2) * 3 + c]);
        }
  expect_tensor(upsample2d(x), {2, 6, 4, 3}, expected);
  EXPECT_EQ(upsample2d(Tensor::zeros({0, 3, 2, 3})).shape(), (Shape{0, 6, 4, 3}));
}

TEST(Upsample2d, ErrorsNameOperationShapesAndLine) {
  expect_error(kInvalid, {"upsample2d at arranging_test.cc:", "[3, 4]"}, [] {
    upsample2d(Tensor::ones({3, 4}));
  });
  expect_error(kInvalid, {"upsample2d", "[1, 2, 2, 1]", "0 x 2"}, [] {
    upsample2d(Tensor::ones({1, 2, 2, 1}), {0, 2, Interpolation::kNearest});
  });
  expect_error(kInvalid, {"upsample2d_grad at arranging_test.cc:", "[1, 2, 2, 1]", "[1, 5, 4, 1]"},
               [] {
                 upsample2d_grad(Tensor::ones({1, 5, 4, 1}), {1, 2, 2, 1}, {});
               });
}

TEST(CumulativeSum, HasTensorflowsFourForms) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64}) {
    const Tensor x = tensor_of({3}, {1, 2, 4}, dtype);
    expect_tensor(cumulative_sum(x), {3}, {1, 3, 7});
    expect_tensor(cumulative_sum(x, {0, true, false}), {3}, {0, 1, 3});
    expect_tensor(cumulative_sum(x, {0, false, true}), {3}, {7, 6, 4});
    expect_tensor(cumulative_sum(x, {0, true, true}), {3}, {6, 4, 0});
    const Tensor cube = tensor_of({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}, dtype);
    expect_tensor(cumulative_sum(cube, {1, false, false}), {2, 2, 2}, {1, 2, 4, 6, 5, 6, 12, 14});
    EXPECT_EQ(cumulative_sum(Tensor::zeros({0, 3}, dtype)).shape(), (Shape{0, 3}));
  }
  expect_error(kInvalid, {"cumulative_sum at arranging_test.cc:", "axis 2", "[2, 3]"}, [] {
    cumulative_sum(Tensor::ones({2, 3}), {2, false, false});
  });
  expect_error(kInvalid, {"cumulative_sum", "bool"},
               [] { cumulative_sum(Tensor::ones({2}, DType::kBool)); });
}

TEST(TopK, GivesTheLargestFirstAndTheFirstOfEquals) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kUInt8}) {
    const TopKResult result = top_k(tensor_of({2, 4}, {3, 9, 1, 9, 5, 5, 5, 2}, dtype), 3);
    expect_tensor(result.values, {2, 3}, {9, 9, 3, 5, 5, 5});
    expect_tensor(result.indices, {2, 3}, {1, 3, 0, 0, 1, 2});
    EXPECT_EQ(result.indices.dtype(), DType::kInt64);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TopKResult with_nan = top_k(Tensor::from<float>({3}, {1.0f, nan, 5.0f}), 2);
  expect_tensor(with_nan.indices, {2}, {1, 2});
  EXPECT_EQ(top_k(Tensor::zeros({0, 4}), 2).values.shape(), (Shape{0, 2}));
  expect_error(kInvalid, {"top_k at arranging_test.cc:", "[2, 3]", "k 4"}, [] {
    top_k(Tensor::ones({2, 3}), 4);
  });
}

TEST(Arranging, ReverseTurnsAxesRound) {
  for (DType dtype : kAllDTypes) {
    const Tensor x = tensor_of({2, 3}, {1, 0, 0, 1, 1, 0}, dtype);
    expect_tensor(reverse(x, {1}), {2, 3}, {0, 0, 1, 0, 1, 1});
    expect_tensor(reverse(x, {0}), {2, 3}, {1, 1, 0, 1, 0, 0});
    expect_tensor(reverse(x, {0, -1}), {2, 3}, {0, 1, 1, 0, 0, 1});
    EXPECT_EQ(reverse(Tensor::zeros({0, 3}, dtype), {0}).shape(), (Shape{0, 3}));
  }
  expect_error(kInvalid, {"reverse at arranging_test.cc:", "axis 2", "[2, 3]"}, [] {
    reverse(Tensor::ones({2, 3}), {2});
  });
  expect_error(kInvalid, {"reverse", "different axes", "[2, 3]"}, [] {
    reverse(Tensor::ones({2, 3}), {1, -1});
  });
}

TEST(Arranging, TileAndRepeat) {
  const Tensor x = tensor_of({2, 2}, {1, 2, 3, 4}, DType::kInt32);
  expect_tensor(tile(x, {2, 1}), {4, 2}, {1, 2, 3, 4, 1, 2, 3, 4});
  expect_tensor(tile(x, {1, 2}), {2, 4}, {1, 2, 1, 2, 3, 4, 3, 4});
  expect_tensor(tile(x, {0, 2}), {0, 4}, {});
  expect_tensor(repeat(x, 2, 1), {2, 4}, {1, 1, 2, 2, 3, 3, 4, 4});
  expect_tensor(repeat(x, 2, 0), {4, 2}, {1, 2, 1, 2, 3, 4, 3, 4});
  EXPECT_EQ(repeat(Tensor::zeros({0, 3}), 2, 1).shape(), (Shape{0, 6}));
  expect_error(kInvalid, {"tile at arranging_test.cc:", "2 multiples", "[2, 2]", "[3]"},
               [&] { tile(x, {3}); });
  expect_error(kInvalid, {"repeat at arranging_test.cc:", "[2, 2]", "-1"},
               [&] { repeat(x, -1, 0); });
}

TEST(Arranging, StackAlongAnAxisAndBack) {
  const Tensor a = tensor_of({2}, {1, 2}, DType::kFloat32),
               b = tensor_of({2}, {3, 4}, DType::kFloat32);
  const Tensor values[] = {a, b};
  const Tensor columns = stack(values, 1);
  expect_tensor(columns, {2, 2}, {1, 3, 2, 4});
  expect_tensor(stack(values, 0), {2, 2}, {1, 2, 3, 4});
  expect_tensor(stack(values, -1), {2, 2}, {1, 3, 2, 4});
  expect_tensor(stack({a, b}, 1), {2, 2}, {1, 3, 2, 4});
  expect_error(kInvalid, {"stack at arranging_test.cc:", "axis 2", "[2]"}, [&] { stack({a}, 2); });
  const std::vector<Tensor> parts = unstack(columns, 1);
  ASSERT_EQ(parts.size(), 2u);
  expect_tensor(parts[1], {2}, {3, 4});
  EXPECT_EQ(unstack(Tensor::zeros({0, 3}), 1)[2].shape(), (Shape{0}));
  const Tensor unequal[] = {a, Tensor::ones({3})};
  expect_error(kInvalid, {"stack at arranging_test.cc:", "[2]", "[3]"}, [&] { stack(unequal, 1); });
  expect_error(kInvalid, {"unstack at arranging_test.cc:", "axis 2", "[2, 2]"},
               [&] { unstack(columns, 2); });
}

TEST(Arranging, GatherAlongAnAxis) {
  const Tensor x = tensor_of({2, 3}, {1, 2, 3, 4, 5, 6}, DType::kFloat64);
  const Tensor indices = Tensor::from<std::int64_t>({2}, {2, 0});
  expect_tensor(gather(x, indices, 1), {2, 2}, {3, 1, 6, 4});
  const Tensor grid = Tensor::from<std::int32_t>({1, 2}, {1, 1});
  expect_tensor(gather(x, grid, -1), {2, 1, 2}, {2, 2, 5, 5});
  expect_tensor(gather(x, Tensor::from<std::int64_t>({}, {1}), 1), {2}, {2, 5});
  EXPECT_EQ(gather(Tensor::zeros({0, 3}), indices, 1).shape(), (Shape{0, 2}));
  expect_error(kInvalid, {"gather at arranging_test.cc:", "0 .. 2", "got 3"},
               [&] { gather(x, Tensor::from<std::int64_t>({1}, {3}), 1); });
  expect_error(kInvalid, {"gather at arranging_test.cc:", "axis 2", "[2, 3]"},
               [&] { gather(x, indices, 2); });
}

TEST(Activations, AreTheirFormulas) {
  const std::vector<double> xs = {-7, -3, -1.25, -0.5, 0, 0.25, 1, 2.5, 4, 8};
  using Formula = double (*)(double);
  using Function = Tensor (*)(const Operand&);
  const std::pair<Function, Formula> table[] = {
      {silu, [](double x) { return x / (1 + std::exp(-x)); }},
      {selu,
       [](double x) {
         return 1.05070098735548 * (x > 0 ? x : 1.67326324235438 * (std::exp(x) - 1));
       }},
      {relu6, [](double x) { return std::min(std::max(x, 0.0), 6.0); }},
      {hard_sigmoid, [](double x) { return std::min(std::max(x / 6 + 0.5, 0.0), 1.0); }},
      {hard_silu, [](double x) { return x * std::min(std::max(x / 6 + 0.5, 0.0), 1.0); }},
      {softsign, [](double x) { return x / (1 + std::fabs(x)); }},
      {erf, [](double x) { return std::erf(x); }},
      {expm1, [](double x) { return std::expm1(x); }},
      {sin, [](double x) { return std::sin(x); }},
      {cos, [](double x) { return std::cos(x); }},
      {ceil, [](double x) { return std::ceil(x); }},
      {round, [](double x) { return std::nearbyint(x); }}};
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Tensor x = tensor_of({10}, xs, dtype);
    for (const auto& [function, formula] : table) {
      std::vector<double> expected;
      for (double value : xs) expected.push_back(formula(value));
      expect_tensor(function(x), {10}, expected, dtype == DType::kFloat32 ? 1e-4 : 1e-12);
    }
    expect_tensor(leaky_relu(tensor_of({2}, {-2, 3}, dtype)), {2}, {-0.4, 3}, 1e-6);
    expect_tensor(log1p(tensor_of({2}, {1e-10, 1}, dtype)), {2}, {1e-10, std::log(2)}, 1e-7);
  }
  expect_tensor(round(Tensor::from<float>({4}, {0.5f, 1.5f, -2.5f, 2.6f})), {4}, {0, 2, -2, 3});
  expect_error(kInvalid, {"silu at arranging_test.cc:", "int32", "[2]"},
               [] { silu(Tensor::ones({2}, DType::kInt32)); });
}

}  // namespace arranging_test
}  // namespace tutti

// Matrix products: documented values, with batches, without rows, with wrong shapes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/matmul.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace matmul_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::random_values;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-5 : 1e-12; }

TEST(MatMul, GivesTheValuesOfTensorFlowsDocumentation) {
  const Tensor a = Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor b = Tensor::from<float>({3, 2}, {7, 8, 9, 10, 11, 12});
  expect_tensor(matmul(a, b), {2, 2}, {58, 64, 139, 154});
  std::vector<float> numbers(24);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i + 1);
  const std::span<const float> all(numbers);
  expect_tensor(
      matmul(Tensor::from({2, 2, 3}, all.first(12)), Tensor::from({2, 3, 2}, all.last(12))),
      {2, 2, 2}, {94, 100, 229, 244, 508, 532, 697, 730});
}

TEST(MatMul, TransposesAndRepeatsItsOperands) {
  for (DType dtype : kTypes) {
    const Tensor a = testing::tensor_of({2, 3}, {1, 2, 3, 4, 5, 6}, dtype);
    const Tensor b = testing::tensor_of({3, 2}, {7, 8, 9, 10, 11, 12}, dtype);
    const Tensor turned_a = testing::tensor_of({3, 2}, {1, 4, 2, 5, 3, 6}, dtype);
    const Tensor turned_b = testing::tensor_of({2, 3}, {7, 9, 11, 8, 10, 12}, dtype);
    expect_tensor(matmul(turned_a, b, {.transpose_a = true}), {2, 2}, {58, 64, 139, 154});
    expect_tensor(matmul(a, turned_b, {.transpose_b = true}), {2, 2}, {58, 64, 139, 154});
    expect_tensor(matmul(turned_a, turned_b, {.transpose_a = true, .transpose_b = true}), {2, 2},
                  {58, 64, 139, 154});
    const Tensor many_a =
        testing::tensor_of({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, dtype);
    expect_tensor(matmul(many_a, b), {2, 2, 2}, {58, 64, 139, 154, 220, 244, 301, 334});
    const Tensor many_b = many_a.detached_reshape({2, 1, 3, 2});
    expect_tensor(matmul(a, many_b), {2, 1, 2, 2}, {22, 28, 49, 64, 58, 64, 139, 154});
    expect_tensor(matmul(many_a.detached_reshape({2, 1, 2, 3}), many_b), {2, 1, 2, 2},
                  {22, 28, 49, 64, 220, 244, 301, 334});
  }
}

TEST(MatMul, EmptyOperandsGiveZerosOrNothing) {
  for (DType dtype : kTypes) {
    const Tensor b = Tensor::ones({3, 2}, dtype);
    expect_tensor(matmul(Tensor::zeros({0, 3}, dtype), b), {0, 2}, {});
    expect_tensor(matmul(Tensor::zeros({2, 0}, dtype), Tensor::zeros({0, 3}, dtype)), {2, 3},
                  {0, 0, 0, 0, 0, 0});
    // The gradient of a kernel from a batch of 0 rows.
    MatMulOptions options;
    options.transpose_a = true;
    expect_tensor(matmul(Tensor::zeros({0, 2}, dtype), Tensor::zeros({0, 2}, dtype), options),
                  {2, 2}, {0, 0, 0, 0});
    expect_tensor(dense(Tensor::zeros({0, 3}, dtype), b, Tensor::ones({2}, dtype)), {0, 2}, {});
    expect_tensor(dense(Tensor::zeros({2, 0}, dtype), Tensor::zeros({0, 2}, dtype),
                        testing::tensor_of({2}, {-1, 4}, dtype), FusedActivation::kRelu),
                  {2, 2}, {0, 4, 0, 4});
  }
}

TEST(Dense, AddsTheBiasAndAppliesTheActivation) {
  for (DType dtype : kTypes) {
    const Tensor x = random_values({9, 17}, dtype, -1, 1, 1);
    const Tensor kernel = random_values({17, 5}, dtype, -1, 1, 2);
    const Tensor bias = random_values({5}, dtype, -1, 1, 3);
    const std::vector<double> plain = (matmul(x, kernel) + bias).to_doubles();
    const auto check = [&](FusedActivation activation, double (*function)(double)) {
      std::vector<double> expected;
      for (double value : plain) expected.push_back(function(value));
      expect_tensor(dense(x, kernel, bias, activation), {9, 5}, expected, tolerance(dtype));
    };
    check(FusedActivation::kNone, [](double v) { return v; });
    check(FusedActivation::kRelu, [](double v) { return v > 0 ? v : 0; });
    check(FusedActivation::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); });
    check(FusedActivation::kTanh, [](double v) { return std::tanh(v); });
  }
}

TEST(Dense, NanStaysNanThroughActivations) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : kTypes) {
    for (FusedActivation activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                       FusedActivation::kSigmoid, FusedActivation::kTanh}) {
      const Tensor y = dense(testing::tensor_of({2, 1}, {nan, 0}, dtype),
                             Tensor::ones({1, 8}, dtype), Tensor::zeros({8}, dtype), activation);
      const auto values = y.to_doubles();
      EXPECT_TRUE(std::isnan(values[0])) << static_cast<int>(activation);
      EXPECT_FALSE(std::isnan(values[8])) << static_cast<int>(activation);
    }
  }
}

TEST(MatMul, ErrorsNameBothShapesAndTheLine) {
  const Tensor a = Tensor::zeros({2, 3}), b = Tensor::zeros({4, 5});
  const std::string line = concat("matmul at matmul_test.cc:", __LINE__ + 1, ": ");
  const auto wrong = [&] { matmul(a, b); };
  expect_error(ErrorCode::kInvalidArgument, {line, "[2, 3] and [4, 5]", "transpose_a"}, wrong);
  EXPECT_INVALID(matmul(a, Tensor::zeros({3, 5}, DType::kFloat64)), "float32", "float64");
  EXPECT_INVALID(matmul(Tensor::zeros({2, 3}, DType::kInt32), Tensor::zeros({3, 5}, DType::kInt32)),
                 "int32");
  EXPECT_INVALID(matmul(a, Tensor::zeros({3})), "[3]");
  EXPECT_INVALID(matmul(Tensor::zeros({2, 4, 3}), Tensor::zeros({3, 3, 5})), "[2, 4, 3]",
                 "[3, 3, 5]");
  EXPECT_ERROR(matmul(a, Tensor()), kFailedPrecondition, "undefined");
  EXPECT_INVALID(dense(a, Tensor::zeros({3, 5}), Tensor::zeros({4})), "bias", "[5]", "[4]");
  EXPECT_INVALID(dense(Tensor::zeros({2, 3, 3}), Tensor::zeros({3, 5}), Tensor::zeros({5})),
                 "flatten_rows", "[2, 3, 3]");
}

}  // namespace matmul_test
}  // namespace tutti

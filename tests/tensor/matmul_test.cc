// Matrix products: against three plain loops, with batches, without rows, with wrong shapes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/matmul.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"

namespace tutti {
namespace matmul_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::random_values;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-5 : 1e-12; }

/// One product of plain matrices, element by element.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b,
                            std::int64_t m, std::int64_t k, std::int64_t n, bool transpose_a,
                            bool transpose_b) {
  std::vector<double> c;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += a[static_cast<std::size_t>(transpose_a ? l * m + i : i * k + l)] *
               b[static_cast<std::size_t>(transpose_b ? j * k + l : l * n + j)];
      }
      c.push_back(sum);
    }
  }
  return c;
}

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

TEST(MatMul, AgreesWithPlainLoops) {
  const std::array<std::int64_t, 3> sizes[] = {{1, 1, 1},   {2, 3, 4},     {5, 1, 7},   {1, 16, 1},
                                               {17, 9, 33}, {64, 100, 10}, {3, 1600, 5}};
  for (const auto& [m, k, n] : sizes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      for (DType dtype : kTypes) {
        const bool ta = transposes & 1, tb = transposes & 2;
        SCOPED_TRACE(concat(m, " x ", k, " x ", n, ", ", dtype, ", transposes ", transposes));
        const Tensor a = random_values(ta ? Shape{k, m} : Shape{m, k}, dtype, -1, 1, 1);
        const Tensor b = random_values(tb ? Shape{n, k} : Shape{k, n}, dtype, -1, 1, 2);
        MatMulOptions options;
        options.transpose_a = ta;
        options.transpose_b = tb;
        expect_tensor(matmul(a, b, options), {m, n},
                      product(a.to_doubles(), b.to_doubles(), m, k, n, ta, tb), tolerance(dtype));
      }
    }
  }
}

TEST(MatMul, MultipliesBatches) {
  const Shape matrices[][2] = {{{2, 3, 4, 5}, {2, 3, 5, 6}},
                               {{6, 4, 5}, {5, 6}},
                               {{4, 5}, {3, 5, 6}},
                               {{1, 4, 5}, {1, 5, 6}}};
  for (const auto& [sa, sb] : matrices) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(concat(sa, " times ", sb, ", ", dtype));
      const Tensor a = random_values(sa, dtype, -1, 1, 1);
      const Tensor b = random_values(sb, dtype, -1, 1, 2);
      const Shape& longer = sa.rank() > sb.rank() ? sa : sb;
      std::vector<double> expected;
      const std::int64_t batch = longer.num_elements() / (longer.dim(-1) * longer.dim(-2));
      for (std::int64_t i = 0; i < batch; ++i) {
        const auto part = [&](const Tensor& x) {
          return x.rank() == 2 ? x.to_doubles()
                               : x.detached_reshape({batch, x.shape().dim(-2), x.shape().dim(-1)})
                                     .detached_rows(i, 1)
                                     .to_doubles();
        };
        const auto c = product(part(a), part(b), 4, 5, 6, false, false);
        expected.insert(expected.end(), c.begin(), c.end());
      }
      expect_tensor(matmul(a, b), longer.with_dim(-2, 4).with_dim(-1, 6), expected,
                    tolerance(dtype));
    }
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
    std::vector<double> plain =
        product(x.to_doubles(), kernel.to_doubles(), 9, 17, 5, false, false);
    for (std::size_t i = 0; i < plain.size(); ++i) plain[i] += bias.to_doubles()[i % 5];
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
  expect_error(ErrorCode::kInvalidArgument, {"float32", "float64"}, [&] {
    matmul(a, Tensor::zeros({3, 5}, DType::kFloat64));
  });
  expect_error(ErrorCode::kInvalidArgument, {"int32"}, [&] {
    matmul(Tensor::zeros({2, 3}, DType::kInt32), Tensor::zeros({3, 5}, DType::kInt32));
  });
  expect_error(ErrorCode::kInvalidArgument, {"[3]"}, [&] { matmul(a, Tensor::zeros({3})); });
  expect_error(ErrorCode::kInvalidArgument, {"[2, 4, 3]", "[3, 3, 5]"}, [&] {
    matmul(Tensor::zeros({2, 4, 3}), Tensor::zeros({3, 3, 5}));
  });
  expect_error(ErrorCode::kFailedPrecondition, {"undefined"}, [&] { matmul(a, Tensor()); });
  expect_error(ErrorCode::kInvalidArgument, {"bias", "[5]", "[4]"}, [&] {
    dense(a, Tensor::zeros({3, 5}), Tensor::zeros({4}));
  });
  expect_error(ErrorCode::kInvalidArgument, {"flatten_rows", "[2, 3, 3]"}, [&] {
    dense(Tensor::zeros({2, 3, 3}), Tensor::zeros({3, 5}), Tensor::zeros({5}));
  });
}

}  // namespace matmul_test
}  // namespace tutti

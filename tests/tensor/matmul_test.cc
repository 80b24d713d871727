// Tests matrix products and attention against documented values and their component operations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "tensor/kernel_table.h"
#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/ops/attention.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti::matmul_test {
using testing::expect_error;
using testing::expect_same_bits;
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
    // Computes the gradient of a kernel for a batch of 0 rows.
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

/// Sizes of a call. The fast kernel has blocks of 64 queries and 128 keys.
struct Sizes {
  std::int64_t batch, heads, shared, steps, value_steps, features, length;
  bool is_causal = false;
  std::int64_t steps_before = 0;

  AttentionOptions options() const {
    return {.is_causal = is_causal, .steps_before = steps_before};
  }
  AttentionAttributes attributes() const {
    return {1.0 / std::sqrt(static_cast<double>(features)), is_causal, steps_before};
  }
};

const Sizes kSizes[] = {{1, 1, 1, 1, 1, 1, 1},          {2, 3, 3, 5, 7, 4, 3},
                        {1, 2, 1, 64, 128, 8, 8, true}, {1, 2, 2, 65, 129, 8, 5},
                        {2, 4, 2, 70, 70, 6, 6, true},  {1, 2, 2, 200, 300, 16, 9, true, 100},
                        {1, 1, 1, 300, 40, 4, 4, true}, {1, 4, 1, 1, 260, 8, 8, true, 259},
                        {2, 2, 2, 3, 0, 4, 4},          {0, 2, 2, 3, 4, 4, 4}};

struct Inputs {
  Inputs(const Sizes& s, DType dtype)
      : query(random_values({s.batch, s.heads, s.steps, s.features}, dtype, -3, 3, 1)),
        key(random_values({s.batch, s.shared, s.value_steps, s.features}, dtype, -3, 3, 2)),
        value(random_values({s.batch, s.shared, s.value_steps, s.length}, dtype, -1, 1, 3)) {}
  Tensor query, key, value;
};

OpCall call_of(const Sizes& s, const Inputs& in) {
  const DType dtype = in.query.dtype();
  OpCall call;
  call.op = OpId::kAttention;
  call.inputs = {in.query, in.key, in.value};
  call.outputs = {{Shape{s.batch, s.heads, s.steps, s.length}, dtype},
                  {Shape{s.batch, s.heads, s.steps}, dtype}};
  call.attributes = s.attributes();
  return call;
}

TEST(Attention, EqualsWhatItIsMadeOfElsewhere) {
  for (const Sizes& s : kSizes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const Inputs in(s, dtype);
      SCOPED_TRACE(concat(dtype, " ", in.query.shape(), " ", in.value.shape()));
      const Shape shape{s.batch, s.heads, s.steps, s.length};
      const Tensor y = attention(in.query, in.key, in.value, s.options());
      if (s.batch == 0 || s.value_steps == 0) {
        const auto size = static_cast<std::size_t>(shape.num_elements());
        expect_tensor(y, shape, std::vector<double>(size));
        continue;
      }
      const Tensor seen = s.is_causal ? internal::causal_mask(s.steps, s.value_steps,
                                                              s.steps_before, in.query.device())
                                      : Tensor();
      const Tensor shares =
          internal::attention_shares(in.query, in.key, s.attributes().scale, seen);
      const Tensor parts = internal::mixed_values(shares, in.value);
      expect_tensor(y, shape, parts.to_doubles(), dtype == DType::kFloat32 ? 1e-5 : 1e-12);
    }
  }
}

TEST(Attention, HasOneScaleUnlessAnotherIsGiven) {
  const Sizes s{1, 1, 1, 3, 4, 4, 2};
  const Inputs in(s, DType::kFloat64);
  const Tensor halved = attention(in.query, in.key, in.value);
  expect_same_bits(attention(in.query, in.key, in.value, {.scale = 0.5}), halved);
  EXPECT_NE(attention(in.query, in.key, in.value, {.scale = 1.0}).to_doubles(),
            halved.to_doubles());
}

TEST(Attention, OfLargeScoresStaysFinite) {
  const Tensor query = Tensor::full({1, 1, 2, 1}, 1e4),
               value = Tensor::from<float>({1, 1, 3, 1}, {1, 2, 3});
  const Tensor key = Tensor::from<float>({1, 1, 3, 1}, {-1e3, 1e3, 999});
  expect_tensor(attention(query, key, value), {1, 1, 2, 1}, {2, 2}, 1e-6);
}

TEST(Attention, GivesTheSameBitsOnAnyThread) {
  const Sizes s{2, 2, 1, 150, 150, 8, 8, true};
  const Inputs in(s, DType::kFloat32);
  const auto all = [&] {
    std::vector<Tensor> results = run_kernel(cpu_kernels(), call_of(s, in));
    for (const Tensor& gradient : attention_grad(in.query, in.key, in.value, results[0], results[1],
                                                 results[0], s.attributes()))
      results.push_back(gradient);
    return results;
  };
  const std::vector<Tensor> expected = all();
  std::vector<std::vector<Tensor>> found(4);
  std::vector<std::unique_ptr<Thread>> threads;
  for (auto& each : found)
    threads.push_back(Executor::system().start("attention", [&] { each = all(); }));
  for (const auto& thread : threads) thread->join();
  for (const auto& each : found) {
    for (std::size_t i = 0; i < expected.size(); ++i) expect_same_bits(each[i], expected[i]);
  }
}

TEST(Attention, ErrorsNameOperationAndShapes) {
  const Tensor x = Tensor::zeros({1, 4, 2, 3});
  const auto refused = [&](const Tensor& key, const Tensor& value,
                           const std::vector<std::string>& parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { attention(x, key, value); });
  };
  refused(Tensor::zeros({1, 3, 2, 3}), Tensor::zeros({1, 3, 2, 3}),
          {"attention at matmul_test.cc:", "expected a query [batch, heads, steps, features]",
           "[1, 4, 2, 3], [1, 3, 2, 3] and [1, 3, 2, 3]"});
  refused(Tensor::zeros({1, 4, 2, 2}), x, {"got [1, 4, 2, 3], [1, 4, 2, 2]"});
  refused(x, Tensor::zeros({1, 4, 3, 3}), {"and [1, 4, 3, 3]"});
  refused(x, cast(x, DType::kFloat64), {"float64"});
  EXPECT_INVALID(attention(x, x, x, {.is_causal = true, .steps_before = -1}),
                 "expected steps_before of at least 0, got -1");
  EXPECT_INVALID(attention_grad(x, x, x, x, Tensor::zeros({1, 4, 3}), x, AttentionAttributes{}),
                 "attention_grad", "sums [1, 4, 2], got");
}

}  // namespace tutti::matmul_test

// Attention against the operations that it is made of: blocks, causal masks, shared keys, 16 bits.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "tensor/kernel_table.h"
#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti {
namespace attention_test {

using testing::expect_error;
using testing::expect_same_bits;
using testing::expect_tensor;
using testing::random_values;

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

TEST(Attention, SecondOutputIsTheLogarithmOfTheSumOfExponentials) {
  const Sizes s{1, 2, 1, 3, 4, 2, 1, true, 1};  // One head of keys for both heads of queries.
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Inputs in(s, dtype);
    const std::vector<double> queries = in.query.to_doubles(), keys = in.key.to_doubles();
    std::vector<double> expected;
    for (std::size_t row = 0; row < 6; ++row) {
      double sum = 0;
      for (std::size_t j = 0; j < std::min<std::size_t>(4, row % 3 + 2); ++j) {
        const double product =
            queries[2 * row] * keys[2 * j] + queries[2 * row + 1] * keys[2 * j + 1];
        sum += std::exp(product / std::sqrt(2.0));
      }
      expected.push_back(std::log(sum));
    }
    expect_tensor(run_kernel(cpu_kernels(), call_of(s, in))[1], {1, 2, 3}, expected,
                  dtype == DType::kFloat32 ? 1e-5 : 1e-12);
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

TEST(Attention, Computes16BitNumbersInFloat32) {
  const Sizes s{1, 2, 2, 5, 6, 4, 3, true};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Inputs in(s, dtype);
    const Tensor y = attention(in.query, in.key, in.value, s.options());
    const Tensor wide = attention(cast(in.query, DType::kFloat32), cast(in.key, DType::kFloat32),
                                  cast(in.value, DType::kFloat32), s.options());
    expect_same_bits(y, cast(wide, dtype));
  }
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
          {"attention at attention_test.cc:", "expected a query [batch, heads, steps, features]",
           "[1, 4, 2, 3], [1, 3, 2, 3] and [1, 3, 2, 3]"});
  refused(Tensor::zeros({1, 4, 2, 2}), x, {"got [1, 4, 2, 3], [1, 4, 2, 2]"});
  refused(x, Tensor::zeros({1, 4, 3, 3}), {"and [1, 4, 3, 3]"});
  refused(x, cast(x, DType::kFloat64), {"float64"});
  EXPECT_INVALID(attention(x, x, x, {.is_causal = true, .steps_before = -1}),
                 "expected steps_before of at least 0, got -1");
  EXPECT_INVALID(attention_grad(x, x, x, x, Tensor::zeros({1, 4, 3}), x, AttentionAttributes{}),
                 "attention_grad", "sums [1, 4, 2], got");
}

}  // namespace attention_test
}  // namespace tutti

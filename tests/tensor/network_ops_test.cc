// Compares neural-network operations (products, attention, softmax, cross-entropies,
// normalizations, convolutions, pooling) with documented values and plain loops. The operation
// table and the recorded results of Keras (tests/parity) cover more shapes and gradients.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "tensor/kernel_table.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/activation_ops.h"
#include "tutti/tensor/ops/attention.h"
#include "tutti/tensor/ops/convolution_ops.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/normalization.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::network_ops_test {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};

double tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-6 : 1e-13; }

TEST(MatMul, MatchesTensorFlowDocumentation) {
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

TEST(MatMul, TransposesAndBroadcastsOperands) {
  for (DType dtype : kTypes) {
    const Tensor a = tensor_of({2, 3}, {1, 2, 3, 4, 5, 6}, dtype);
    const Tensor b = tensor_of({3, 2}, {7, 8, 9, 10, 11, 12}, dtype);
    const Tensor turned_a = tensor_of({3, 2}, {1, 4, 2, 5, 3, 6}, dtype);
    const Tensor turned_b = tensor_of({2, 3}, {7, 9, 11, 8, 10, 12}, dtype);
    expect_tensor(matmul(turned_a, b, {.transpose_a = true}), {2, 2}, {58, 64, 139, 154});
    expect_tensor(matmul(a, turned_b, {.transpose_b = true}), {2, 2}, {58, 64, 139, 154});
    expect_tensor(matmul(turned_a, turned_b, {.transpose_a = true, .transpose_b = true}), {2, 2},
                  {58, 64, 139, 154});
    const Tensor many_a = tensor_of({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, dtype);
    expect_tensor(matmul(many_a, b), {2, 2, 2}, {58, 64, 139, 154, 220, 244, 301, 334});
    const Tensor many_b = many_a.detached_reshape({2, 1, 3, 2});
    expect_tensor(matmul(a, many_b), {2, 1, 2, 2}, {22, 28, 49, 64, 58, 64, 139, 154});
    expect_tensor(matmul(many_a.detached_reshape({2, 1, 2, 3}), many_b), {2, 1, 2, 2},
                  {22, 28, 49, 64, 220, 244, 301, 334});
  }
}

TEST(MatMul, EmptyOperandsGiveZerosOrEmptyResult) {
  for (DType dtype : kTypes) {
    const Tensor b = Tensor::ones({3, 2}, dtype);
    expect_tensor(matmul(Tensor::zeros({0, 3}, dtype), b), {0, 2}, {});
    expect_tensor(matmul(Tensor::zeros({2, 0}, dtype), Tensor::zeros({0, 3}, dtype)), {2, 3},
                  {0, 0, 0, 0, 0, 0});
    // A product with transpose_a computes the gradient of a kernel; here the batch has 0 rows.
    MatMulOptions options;
    options.transpose_a = true;
    expect_tensor(matmul(Tensor::zeros({0, 2}, dtype), Tensor::zeros({0, 2}, dtype), options),
                  {2, 2}, {0, 0, 0, 0});
    expect_tensor(dense(Tensor::zeros({0, 3}, dtype), b, Tensor::ones({2}, dtype)), {0, 2}, {});
    expect_tensor(dense(Tensor::zeros({2, 0}, dtype), Tensor::zeros({0, 2}, dtype),
                        tensor_of({2}, {-1, 4}, dtype), FusedActivation::kRelu),
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
      expect_tensor(dense(x, kernel, bias, activation), {9, 5}, expected, 10 * tolerance(dtype));
    };
    check(FusedActivation::kNone, [](double v) { return v; });
    check(FusedActivation::kRelu, [](double v) { return v > 0 ? v : 0; });
    check(FusedActivation::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); });
    check(FusedActivation::kTanh, [](double v) { return std::tanh(v); });
  }
}

TEST(MatMul, SumsProductsOverBatch) {
  for (const DType dtype : kTypes) {
    const Tensor a = random_values({2, 3, 4, 5}, dtype, -1, 1, 1);
    const Tensor b = random_values({2, 3, 4, 7}, dtype, -1, 1, 2);
    OpCall call{OpId::kMatMul, {a, b}, {{{5, 7}, dtype}}, {}, {}};
    call.attributes = MatMulAttributes{.transpose_a = true, .sum_over_batch = true};
    const std::vector<double> found = dispatch_one(call).to_doubles();
    const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
    for (std::size_t i = 0; i < 5 * 7; ++i) {
      double sum = 0.0;
      for (std::size_t row = 0; row < 2 * 3 * 4; ++row)
        sum += x[row * 5 + i / 7] * y[row * 7 + i % 7];
      EXPECT_NEAR(found[i], sum, 10 * tolerance(dtype));
    }
  }
}

TEST(MatMul, ErrorsNameBothShapesAndTheLine) {
  const Tensor a = Tensor::zeros({2, 3}), b = Tensor::zeros({4, 5});
  const std::string line = concat("matmul at network_ops_test.cc:", __LINE__ + 1, ": ");
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
  EXPECT_INVALID(dense(Tensor::zeros({2, 3, 3}), Tensor::zeros({9, 5}), Tensor::zeros({5})),
                 "flatten_rows", "[2, 3, 3]");
}

/// Sizes of an attention call. The fast kernel uses blocks of 64 queries and 128 keys.
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

TEST(Attention, EqualsItsComponentOperations) {
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

TEST(Attention, DefaultScaleCanBeOverridden) {
  const Sizes s{1, 1, 1, 3, 4, 4, 2};
  const Inputs in(s, DType::kFloat64);
  const Tensor halved = attention(in.query, in.key, in.value);
  expect_same_bits(attention(in.query, in.key, in.value, {.scale = 0.5}), halved);
  EXPECT_NE(attention(in.query, in.key, in.value, {.scale = 1.0}).to_doubles(),
            halved.to_doubles());
}

TEST(Attention, LargeScoresRemainFinite) {
  const Tensor query = Tensor::full({1, 1, 2, 1}, 1e4),
               value = Tensor::from<float>({1, 1, 3, 1}, {1, 2, 3});
  const Tensor key = Tensor::from<float>({1, 1, 3, 1}, {-1e3, 1e3, 999});
  expect_tensor(attention(query, key, value), {1, 1, 2, 1}, {2, 2}, 1e-6);
}

TEST(Attention, GivesSameBitsOnEveryThread) {
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
          {"attention at network_ops_test.cc:", "expected a query [batch, heads, steps, features]",
           "[1, 4, 2, 3], [1, 3, 2, 3] and [1, 3, 2, 3]"});
  refused(Tensor::zeros({1, 4, 2, 2}), x, {"got [1, 4, 2, 3], [1, 4, 2, 2]"});
  refused(x, Tensor::zeros({1, 4, 3, 3}), {"and [1, 4, 3, 3]"});
  refused(x, cast(x, DType::kFloat64), {"float64"});
  EXPECT_INVALID(attention(x, x, x, {.is_causal = true, .steps_before = -1}),
                 "expected steps_before >= 0, got -1");
  EXPECT_INVALID(attention_grad(x, x, x, x, Tensor::zeros({1, 4, 3}), x, AttentionAttributes{}),
                 "attention_grad", "sums [1, 4, 2], got");
}

TEST(Softmax, MatchesTensorFlowDocumentation) {
  expect_tensor(softmax(Tensor::from<float>({3}, {-1, 0, 1})), {3},
                {0.09003057, 0.24472848, 0.66524094}, 1e-7);
  expect_tensor(
      sparse_softmax_cross_entropy(
          Tensor::from<std::int64_t>({3}, {0, 3, 1}),
          Tensor::from<float>({3, 4}, {2, -5, .5f, -.1f, 0, 0, 1.9f, 1.4f, -100, 100, -100, -100})),
      {3}, {0.29750752, 1.1448325, 0.0}, 1e-6);
  expect_tensor(softmax_cross_entropy(Tensor::from<float>({2, 3}, {1, 0, 0, 0, 0.8f, 0.2f}),
                                      Tensor::from<float>({2, 3}, {4, 2, 1, 0, 5, 1})),
                {2}, {0.16984604, 0.82474494}, 1e-6);
  expect_tensor(sigmoid_cross_entropy(Tensor::from<float>({7}, {0, 0, 0, 1, 1, 1, 0.5f}),
                                      Tensor::from<float>({7}, {1, -1, 0, 1, -1, 0, 0})),
                {7}, {1.3132617, 0.3132617, 0.6931472, 0.3132617, 1.3132617, 0.6931472, 0.6931472},
                1e-6);
}

TEST(Softmax, ExtremeLogitsDoNotOverflow) {
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({2, 3}, {1e30, 0, -1e30, -1e30, -1e30, -1e30}, dtype);
    const double third = 1.0 / 3.0;
    expect_tensor(softmax(x), {2, 3}, {1, 0, 0, third, third, third}, 1e-7);
    const Tensor labels = Tensor::from<std::int64_t>({2}, {0, 1});
    const Tensor big = tensor_of({2, 3}, {1000, 0, -1000, -1000, 0, 1000}, dtype);
    expect_tensor(sparse_softmax_cross_entropy(labels, big), {2}, {0, 1000}, 1e-7);
    expect_tensor(log_softmax(big), {2, 3}, {0, -1000, -2000, -2000, -1000, 0}, 1e-7);
    expect_tensor(sigmoid_cross_entropy(tensor_of({4}, {0, 1, 0, 1}, dtype),
                                        tensor_of({4}, {1000, 1000, -1000, -1000}, dtype)),
                  {4}, {1000, 0, 0, 1000}, 1e-7);
  }
}

TEST(Softmax, LogSoftmaxKeepsPrecisionForLikelyClasses) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(dtype);
    const Tensor x = tensor_of({2, 2}, {20, 0, 5000, 5001}, dtype);
    const double likely = -std::log1p(std::exp(-20.0)), higher = -std::log1p(std::exp(-1.0));
    EXPECT_NEAR(log_softmax(x).to_doubles()[0] / likely, 1.0, 1e-6);
    expect_tensor(log_softmax(x), {2, 2}, {likely, likely - 20, higher - 1, higher}, 2e-7);
    const Tensor labels = Tensor::from<std::int64_t>({2}, {0, 1});
    const Tensor one_hot = tensor_of({2, 2}, {1, 0, 0, 1}, dtype);
    for (const Tensor& loss :
         {sparse_softmax_cross_entropy(labels, x), softmax_cross_entropy(one_hot, x)}) {
      EXPECT_NEAR(loss.to_doubles()[0] / -likely, 1.0, 1e-6);
      expect_tensor(loss, {2}, {-likely, -higher}, 2e-7);
    }
  }
}

TEST(CrossEntropy, InvalidLabelErrorNamesRow) {
  const Tensor logits = Tensor::zeros({3, 10});
  EXPECT_INVALID(sparse_softmax_cross_entropy(Tensor::from<std::int64_t>({3}, {0, 10, 11}), logits),
                 " at network_ops_test.cc:", "0 .. 9", "got 10", "row 1");
  EXPECT_INVALID(sparse_softmax_cross_entropy_grad(Tensor::from<std::int32_t>({3}, {0, 1, -1}),
                                                   logits, Tensor::ones({3})),
                 "got -1", "row 2");
}

TEST(Softmax, ErrorsNameTheShapesAndTheLine) {
  const Tensor logits = Tensor::zeros({3, 10}), labels = Tensor::zeros({3}, DType::kInt64);
  EXPECT_INVALID(softmax(Tensor(1.0f)), "softmax at network_ops_test.cc:", "[]");
  EXPECT_INVALID(sparse_softmax_cross_entropy(Tensor::zeros({3, 1}, DType::kInt64), logits),
                 "[3, 1]", "[3, 10]", "squeeze");
  EXPECT_INVALID(sparse_softmax_cross_entropy(Tensor::zeros({3}), logits), "int32 or int64",
                 "float32");
  EXPECT_INVALID(sparse_softmax_cross_entropy_grad(labels, logits, Tensor::zeros({2})), "[3]",
                 "[2]");
  EXPECT_INVALID(softmax_cross_entropy(Tensor::zeros({3, 9}), logits), "[3, 9]", "[3, 10]");
  EXPECT_INVALID(sigmoid_cross_entropy(Tensor::zeros({10}), logits), "[10]", "[3, 10]");
  EXPECT_INVALID(softmax_grad(logits, Tensor::zeros({3, 9})), "[3, 9]", "[3, 10]");
  EXPECT_INVALID(log_softmax_grad(logits, Tensor::zeros({3, 10}, DType::kFloat64)), "float64");
  EXPECT_INVALID(sparse_softmax_cross_entropy(labels, Tensor::zeros({3, 0})), "class", "[3, 0]");
  EXPECT_INVALID(softmax_cross_entropy(Tensor::zeros({3, 0}), Tensor::zeros({3, 0})), "class",
                 "[3, 0]");
}

constexpr double kEpsilon = 1e-3;

TEST(BatchNorm, VarianceIsAccurateForLargeMean) {
  std::vector<float> values;
  for (int i = 0; i < 4096; ++i) values.push_back(10000.0f + static_cast<float>(i % 2));
  const BatchNormResult result = batch_norm_training(Tensor::from({4096, 1}, values),
                                                     Tensor::ones({1}), Tensor::zeros({1}), 0);
  expect_tensor(result.mean, {1}, {10000.5});
  expect_tensor(result.variance, {1}, {0.25}, 1e-6);
  EXPECT_NEAR(result.y.to_doubles()[0], -1.0, 1e-3);
}

TEST(BatchNorm, EmptyBatchHasZeroStatisticsAndGradients) {
  for (DType dtype : kTypes) {
    const Tensor x = Tensor::zeros({0, 4, 4, 3}, dtype), gamma = Tensor::ones({3}, dtype);
    const BatchNormResult result = batch_norm_training(x, gamma, gamma, kEpsilon);
    expect_tensor(result.y, x.shape(), {});
    expect_tensor(result.mean, {3}, {0, 0, 0});
    expect_tensor(result.variance, {3}, {0, 0, 0});
    expect_tensor(batch_norm_inference(x, gamma, gamma, gamma, gamma, kEpsilon), x.shape(), {});
    const auto gradients = batch_norm_grad(x, gamma, result.mean, result.variance, x, kEpsilon);
    expect_tensor(gradients[0], x.shape(), {});
    expect_tensor(gradients[1], {3}, {0, 0, 0});
    expect_tensor(gradients[2], {3}, {0, 0, 0});
  }
}

TEST(BatchNorm, ErrorsNameTheShapesAndTheLine) {
  const Tensor x = Tensor::zeros({2, 4, 4, 3}), gamma = Tensor::ones({3});
  EXPECT_INVALID(batch_norm_training(x, gamma, Tensor::ones({4}), kEpsilon),
                 " at network_ops_test.cc:", "[3]", "[2, 4, 4, 3]", "[4]");
  EXPECT_INVALID(
      batch_norm_inference(x, gamma, gamma, gamma, Tensor::ones({3}, DType::kFloat64), kEpsilon),
      "float64");
  EXPECT_INVALID(batch_norm_training(gamma, gamma, gamma, kEpsilon), "[3]");
  EXPECT_INVALID(batch_norm_grad(x, gamma, gamma, gamma, Tensor::zeros({2, 3}), kEpsilon),
                 "[2, 4, 4, 3]", "[2, 3]");
}

TEST(LocalResponseNormalization, DividesByPowerOfSumOfSquares) {
  struct Case {
    LrnAttributes attributes;  // radius, bias, alpha and beta
    std::vector<double> expected;
  };
  const Case cases[] = {
      {{1, 1, 1, 0.5}, {1 / std::sqrt(6.0), 2 / std::sqrt(10.0), 2 / std::sqrt(9.0)}},
      {{1, 2, 3, 1}, {1 / 17.0, 2 / 29.0, 2 / 26.0}},
      {{0, 1, 1, 0.5}, {1 / std::sqrt(2.0), 2 / std::sqrt(5.0), 2 / std::sqrt(5.0)}}};
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({1, 1, 1, 3}, {1, 2, 2}, dtype);
    for (const Case& c : cases) {
      SCOPED_TRACE(
          concat(dtype, " radius ", c.attributes.depth_radius, " beta ", c.attributes.beta));
      expect_tensor(local_response_normalization(x, c.attributes), x.shape(), c.expected,
                    dtype == DType::kFloat32 ? 1e-6 : 1e-13);
    }
  }
}

TEST(LocalResponseNormalization, AcceptsEmptyBatchAndRejectsInvalidArguments) {
  const Tensor empty = Tensor::zeros({0, 2, 2, 3});
  expect_tensor(local_response_normalization(empty), empty.shape(), {});
  expect_tensor(local_response_normalization_grad(empty, empty, {}), empty.shape(), {});
  EXPECT_INVALID(local_response_normalization(empty, {.depth_radius = -1}),
                 " at network_ops_test.cc:", "depth_radius", "-1");
  EXPECT_INVALID(local_response_normalization_grad(empty, Tensor::zeros({0, 2, 3}), {}),
                 "[0, 2, 2, 3]", "[0, 2, 3]");
}

TEST(GroupNorm, ErrorsNameShapesAndLine) {
  const Tensor x = Tensor::zeros({2, 3, 6}), six = Tensor::ones({6}), five = Tensor::ones({5});
  EXPECT_INVALID(layer_norm(x, six, five), "layer_norm at network_ops_test.cc:", "[6]", "[2, 3, 6]",
                 "[5]");
  EXPECT_INVALID(layer_norm(x, six, six, {4, 1e-3}), "layer_norm", "num_axes in 1 .. 3", "got 4");
  EXPECT_INVALID(group_norm(x, six, six, {4, 1e-3}),
                 "group_norm at network_ops_test.cc:", "6 channels", "got 4");
  EXPECT_INVALID(group_norm(x, five, six, {2, 1e-3}), "group_norm", "[6]", "[2, 3, 6]", "[5]");
  EXPECT_INVALID(group_norm(Tensor::zeros({2, 6}, DType::kInt32), six, six), "group_norm",
                 "floating-point type", "int32");
  EXPECT_INVALID(group_norm_grad(x, six, Tensor::ones({2, 2}), Tensor::ones({2, 2}),
                                 Tensor::ones({2, 6}), {3, 2, 1e-3}),
                 "group_norm_grad", "[2, 3, 6]", "[2, 6]");
}

constexpr Padding kSame = Padding::kSame, kValid = Padding::kValid;

TEST(Conv2d, SupportsStridesDilationsAndGroups) {
  for (DType dtype : kTypes) {
    const Tensor row = tensor_of({1, 1, 5, 1}, {1, 2, 3, 4, 5}, dtype);
    const Tensor two = tensor_of({1, 2, 1, 1}, {1, 10}, dtype);
    expect_tensor(conv2d(row, two, {.stride_w = 3}), {1, 1, 2, 1}, {21, 54});
    expect_tensor(conv2d(row, two, {.dilation_w = 2}), {1, 1, 3, 1}, {31, 42, 53});
    expect_tensor(conv2d(row, two, {.padding = kSame, .dilation_w = 2}), {1, 1, 5, 1},
                  {20, 31, 42, 53, 4});
    const Tensor column = row.detached_reshape({1, 5, 1, 1}),
                 high = two.detached_reshape({2, 1, 1, 1});
    expect_tensor(conv2d(column, high, {.stride_h = 3}), {1, 2, 1, 1}, {21, 54});
    expect_tensor(conv2d(column, high, {.dilation_h = 2}), {1, 3, 1, 1}, {31, 42, 53});
    const Tensor channels = tensor_of({1, 1, 1, 4}, {1, 2, 3, 4}, dtype);
    const Tensor filter = tensor_of({1, 1, 2, 4}, {1, 2, 3, 4, 10, 20, 30, 40}, dtype);
    expect_tensor(conv2d(channels, filter, {.groups = 2}), {1, 1, 1, 4}, {21, 42, 129, 172});
  }
}

TEST(Conv2d, SamePaddingPutsExtraPixelAtBottomAndRight) {
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, dtype);
    const Tensor filter = Tensor::ones({2, 2, 1, 1}, dtype);
    Conv2dOptions options;
    expect_tensor(conv2d(x, filter, options), {1, 2, 2, 1}, {12, 16, 24, 28});
    options.padding = kSame;
    expect_tensor(conv2d(x, filter, options), {1, 3, 3, 1}, {12, 16, 9, 24, 28, 15, 15, 17, 9});
    options.stride_h = options.stride_w = 2;
    expect_tensor(conv2d(x, filter, options), {1, 2, 2, 1}, {12, 9, 15, 9});
  }
}

TEST(Conv2d, NanPropagatesThroughActivations) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (FusedActivation activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                     FusedActivation::kSigmoid, FusedActivation::kTanh}) {
    Conv2dOptions options;
    options.activation = activation;
    const Tensor y = conv2d(Tensor::full({1, 4, 4, 3}, nan), Tensor::ones({3, 3, 3, 8}),
                            Tensor::zeros({8}), options);
    for (double value : y.to_doubles()) {
      EXPECT_TRUE(std::isnan(value)) << static_cast<int>(activation) << " gave " << value;
    }
  }
}

TEST(Conv2d, HandlesWindowLargerThanImage) {
  const Tensor filter = Tensor::ones({3, 3, 1, 2});
  EXPECT_EQ(conv2d(Tensor::ones({1, 2, 5, 1}), filter).shape(), (Shape{1, 0, 3, 2}));
  EXPECT_INVALID(conv2d(Tensor::ones({1, 1, 5, 1}), filter),
                 "conv2d at network_ops_test.cc:", "window", "at most 1", "got a window of 3");
}

TEST(Conv2d, ErrorsNameBothShapesAndTheLine) {
  const Tensor x = Tensor::zeros({8, 32, 32, 1}), filter = Tensor::zeros({5, 5, 3, 64});
  const std::string expected =
      concat("conv2d at network_ops_test.cc:", __LINE__ + 4,
             ": input channels do not fit the filter; expected [batch, height, width, 3] for "
             "filter [5, 5, 3, 64], got [8, 32, 32, 1]");
  try {
    conv2d(x, filter);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), expected);
  }
  const Tensor fitting = Tensor::zeros({5, 5, 1, 4});
  EXPECT_INVALID(conv2d(x, Tensor::zeros({5, 5})), "[height, width, in, out]", "[5, 5]");
  EXPECT_INVALID(conv2d(Tensor::zeros({32, 32, 1}), fitting), "[batch, height, width, channels]",
                 "[32, 32, 1]");
  EXPECT_INVALID(conv2d(x, fitting, Tensor::zeros({5})), "bias", "[4]", "[5]");
  EXPECT_INVALID(conv2d(x, Tensor::zeros({5, 5, 1, 4}, DType::kFloat64)), "float32", "float64");
  EXPECT_INVALID(conv2d(x, fitting, {.stride_w = 0}), "strides", "0");
  EXPECT_ERROR(conv2d(x, Tensor()), kFailedPrecondition, "undefined");
  EXPECT_INVALID(conv2d_backward_filter(x, Tensor::zeros({8, 3, 3, 4}), fitting.shape(), {}),
                 "conv2d_backward_filter", "[8, 3, 3, 4]");
  EXPECT_INVALID(conv2d_backward_input(Tensor::zeros({8, 28, 28, 5}), fitting, x.shape(), {}),
                 "conv2d_backward_input", "[8, 28, 28, 5]");
}

TEST(BiasGrad, SumsOverAllAxesExceptChannels) {
  for (DType dtype : kTypes) {
    for (const Shape& shape : {Shape{3}, Shape{70, 17}, Shape{5, 13, 9, 3}, Shape{300, 1}}) {
      const Tensor dy = random_values(shape, dtype, -1, 1);
      std::vector<double> expected(static_cast<std::size_t>(shape.dim(-1)));
      const auto values = dy.to_doubles();
      for (std::size_t i = 0; i < values.size(); ++i) expected[i % expected.size()] += values[i];
      expect_tensor(bias_grad(dy), {shape.dim(-1)}, expected, 10 * tolerance(dtype));
    }
  }
  EXPECT_INVALID(bias_grad(Tensor(1.0f)), "[]");
}

// Adds 0.1 half a million times; a sequential float32 sum would be wrong in the third digit.
TEST(BiasGrad, LongSumsAreAccurate) {
  const Tensor sum = bias_grad(Tensor::full({500000, 2}, 0.1));
  EXPECT_NEAR(sum.to_doubles()[0], 500000 * static_cast<double>(0.1f), 0.05);
}

TEST(Conv2dVariants, DepthwiseKeepsChannelsSeparate) {
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({1, 1, 2, 2}, {1, 10, 2, 20}, dtype);
    // The filters are one pixel high and two pixels wide: (1, 2) and (3, 4) for channel 0, (5, 6)
    // and (7, 8) for channel 1.
    const Tensor filter = tensor_of({1, 2, 2, 2}, {1, 3, 5, 7, 2, 4, 6, 8}, dtype);
    expect_tensor(depthwise_conv2d(x, filter), {1, 1, 1, 4}, {5, 11, 170, 230}, 1e-6);
    const Tensor bias = tensor_of({4}, {1, 2, 3, -1000}, dtype);
    expect_tensor(depthwise_conv2d(x, filter, bias, {.activation = FusedActivation::kRelu}),
                  {1, 1, 1, 4}, {6, 13, 173, 0}, 1e-6);
  }
}

struct Transposed {
  std::int64_t input, kernel, stride;
  Padding padding;
  std::int64_t output;
};

TEST(Conv2dTranspose, OutputSizesMatchKeras) {
  const Transposed cases[] = {{4, 3, 1, kValid, 6},  {4, 3, 2, kValid, 9}, {4, 3, 2, kSame, 8},
                              {4, 2, 3, kValid, 12}, {4, 5, 3, kSame, 12}, {1, 1, 1, kSame, 1}};
  for (const Transposed& c : cases) {
    const Conv2dTransposeOptions options{
        .stride_h = c.stride, .stride_w = c.stride, .padding = c.padding};
    const Tensor y = conv2d_transpose(Tensor::ones({2, c.input, c.input, 3}),
                                      Tensor::ones({c.kernel, c.kernel, 5, 3}), options);
    EXPECT_EQ(y.shape(), (Shape{2, c.output, c.output, 5}));
  }
}

TEST(Conv2dTranspose, SpreadsEachPixelOverTheWindow) {
  for (DType dtype : kTypes) {
    const Tensor x = tensor_of({1, 1, 2, 1}, {1, 10}, dtype);
    const Tensor filter = tensor_of({1, 3, 1, 1}, {1, 2, 3}, dtype);
    Conv2dTransposeOptions options;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 4, 1}, {1, 12, 23, 30}, 1e-6);
    options.stride_w = 2;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 5, 1}, {1, 2, 13, 20, 30}, 1e-6);
    options.padding = kSame;
    expect_tensor(conv2d_transpose(x, filter, options), {1, 1, 4, 1}, {1, 2, 13, 20}, 1e-6);
    options.output_width = 3;
    const Tensor bias = tensor_of({1}, {0.5}, dtype);
    expect_tensor(conv2d_transpose(x, filter, bias, options), {1, 1, 3, 1}, {2.5, 13.5, 20.5},
                  1e-6);
  }
}

TEST(Conv2dVariants, ErrorsNameShapesAndLine) {
  const Tensor x = Tensor::zeros({8, 6, 6, 4});
  EXPECT_INVALID(depthwise_conv2d(x, Tensor::ones({3, 3, 4, 1}), {.dilation_h = 0}),
                 "depthwise_conv2d at network_ops_test.cc:", "dilations");
  EXPECT_INVALID(depthwise_conv2d(x, Tensor::ones({3, 3, 5, 1})),
                 "depthwise_conv2d at network_ops_test.cc:", "[3, 3, 5, 1]", "[8, 6, 6, 4]");
  EXPECT_INVALID(depthwise_conv2d(x, Tensor::ones({3, 3})),
                 "depthwise_conv2d at network_ops_test.cc:", "[height, width, in, multiplier]",
                 "[3, 3]");
  EXPECT_INVALID(conv2d_transpose(x, Tensor::ones({3, 3, 4, 5})),
                 "conv2d_transpose at network_ops_test.cc:", "[3, 3, 4, 5]", "[8, 6, 6, 4]");
  EXPECT_INVALID(conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}), {.output_height = 9}),
                 "conv2d_transpose at network_ops_test.cc:", "reduces to 6", "got 9");
  EXPECT_INVALID(conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}), Tensor::ones({4})),
                 "conv2d_transpose", "bias", "[5]", "[4]");
  EXPECT_INVALID(conv2d(x, Tensor::ones({3, 3, 1, 6}), {.groups = 3}),
                 "conv2d at network_ops_test.cc:", "groups", "[8, 6, 6, 4]", "got 3");
  EXPECT_INVALID(conv2d(x, Tensor::ones({3, 3, 4, 6}), {.groups = 2}),
                 "conv2d at network_ops_test.cc:", "in 2 groups", "[8, 6, 6, 4]");
  EXPECT_INVALID(conv2d(x, Tensor::ones({3, 3, 4, 6}), {.dilation_w = 0}), "dilations", "0");
  EXPECT_INVALID(conv2d_transpose(x, Tensor::ones({3, 3, 5, 4}, DType::kFloat64)),
                 "element types differ", "float64");
}

TEST(MaxPool, GradientFlowsToFirstOfEqualElements) {
  const Tensor x = Tensor::from<float>({1, 2, 4, 1}, {3, 3, 1, 2, 3, 0, 2, 2});
  const Tensor dy = Tensor::from<float>({1, 1, 2, 1}, {5, 7});
  expect_tensor(max_pool2d_grad(x, dy, Pool2dAttributes{}), {1, 2, 4, 1}, {5, 0, 0, 7, 0, 0, 0, 0});
}

TEST(Pooling, MatchesKerasDocumentation) {
  const Tensor x = Tensor::from<float>({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  Pool2dOptions options;
  options.stride_h = options.stride_w = 1;
  expect_tensor(max_pool2d(x, options), {1, 2, 2, 1}, {5, 6, 8, 9});
  expect_tensor(average_pool2d(x, options), {1, 2, 2, 1}, {3, 4, 6, 7});
  options.padding = kSame;
  expect_tensor(max_pool2d(x, options), {1, 3, 3, 1}, {5, 6, 6, 8, 9, 9, 8, 9, 9});
  expect_tensor(average_pool2d(x, options), {1, 3, 3, 1}, {3, 4, 4.5, 6, 7, 7.5, 7.5, 8.5, 9});
  const Pool2dOptions wide{.window_h = 1, .window_w = 3, .stride_h = 2, .stride_w = 1};
  expect_tensor(max_pool2d(x, wide), {1, 2, 1, 1}, {3, 9});
  expect_tensor(average_pool2d(negate(x), wide), {1, 2, 1, 1}, {-2, -8});
  Pool2dOptions padded = wide;
  padded.padding = kSame;  // If padding contributed zeros, they would be the largest elements.
  expect_tensor(max_pool2d(negate(x), padded), {1, 2, 3, 1}, {-1, -1, -2, -7, -7, -8});
}

TEST(MaxPool, NanIsMaximumAndReceivesGradient) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : kTypes) {
    // The channels contain: NaN first; NaN last; two NaNs; infinity and NaN; minus infinity only.
    const double inf = std::numeric_limits<double>::infinity();
    const Tensor x = tensor_of({1, 2, 2, 5}, {nan, 1, 2,   inf, -inf, 1, 2,   nan, nan, -inf,  //
                                              2,   3, nan, 1,   -inf, 3, nan, 5,   2,   -inf},
                               dtype);
    expect_tensor(max_pool2d(x), {1, 1, 1, 5}, {nan, nan, nan, nan, -inf});
    const Tensor dy = tensor_of({1, 1, 1, 5}, {1, 2, 3, 4, 5}, dtype);
    expect_tensor(max_pool2d_grad(x, dy, {}), x.shape(),
                  {1, 0, 0, 0, 5, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0});
  }
}

TEST(GlobalPooling, ReducesTheImageToOneValuePerChannel) {
  const Tensor x = Tensor::from<float>({1, 2, 2, 2}, {1, 8, 2, 7, 3, 6, 6, 3});
  expect_tensor(global_average_pool2d(x), {1, 2}, {3, 6});
  expect_tensor(global_max_pool2d(x), {1, 2}, {6, 8});
  EXPECT_EQ(global_average_pool2d(Tensor::zeros({0, 2, 2, 3})).shape(), (Shape{0, 3}));
  EXPECT_INVALID(global_max_pool2d(Tensor::zeros({2, 2})), "[2, 2]");
}

TEST(Pooling, ErrorsNameTheShapesAndTheLine) {
  const Tensor x = Tensor::zeros({1, 4, 4, 3});
  EXPECT_INVALID(max_pool2d(Tensor::zeros({4, 4})), "max_pool",
                 " at network_ops_test.cc:", "[4, 4]");
  EXPECT_INVALID(average_pool2d(Tensor::zeros({1, 4, 4, 3}, DType::kInt32)), "float", "int32");
  EXPECT_INVALID(max_pool2d(x, {.window_h = 0}), "window", "0 x 2");
  EXPECT_INVALID(max_pool2d(x, {.window_w = 9}), "at most 4", "window of 9");
  EXPECT_INVALID(max_pool2d_grad(x, Tensor::zeros({1, 3, 2, 3}), {}), "[1, 4, 4, 3]",
                 "[1, 3, 2, 3]");
  EXPECT_INVALID(average_pool2d_grad(Tensor::zeros({2, 2, 2, 3}), x.shape(), {}), "[1, 4, 4, 3]",
                 "[2, 2, 2, 3]");
}

}  // namespace tutti::testing::network_ops_test

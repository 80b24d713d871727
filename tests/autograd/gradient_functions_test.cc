// Compares gradients of functions with central differences. Tests recompute_grad, and the gradients
// of attention, normalization and many slices.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "tensor/buffer_allocator.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/seen_ops.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/recompute.h"
#include "tutti/core/random.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::gradient_functions_test {

using CheckedGradients = OpTableTest;

TEST_P(CheckedGradients, AgreeWithCentralDifferences) { gradient_check::check_all(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Operations, CheckedGradients, ValuesIn(op_families()), family_name);

std::set<OpId> ops_with_cases() {
  std::set<OpId> ops;
  for (const OpFamily& family : op_families())
    for (const gradient_check::Case& c : gradient_check::cases_of(family)) ops.insert(c.call.op);
  return ops;
}

/// Gradient operations that have no gradient function: it is documented as missing or, for
/// attention, never needed.
const std::set<OpId> kOpsWithoutGradient = {OpId::kMaxPoolGrad, OpId::kBatchNormGrad,
                                            OpId::kLrnGrad, OpId::kGroupNormGrad,
                                            OpId::kAttentionGrad};
const std::set<OpId> kConstantOps = {
    OpId::kCeil,       OpId::kRound,       OpId::kSign,      OpId::kFloor,
    OpId::kLogicalNot, OpId::kFloorDivide, OpId::kEqual,     OpId::kNotEqual,
    OpId::kLess,       OpId::kLessEqual,   OpId::kGreater,   OpId::kGreaterEqual,
    OpId::kLogicalAnd, OpId::kLogicalOr,   OpId::kReduceAny, OpId::kReduceAll,
    OpId::kArgMax,     OpId::kArgMin,      OpId::kOneHot,    OpId::kStopGradient};

TEST(GradientFunctions, EveryOperationIsTestedOrConstantOrExempt) {
  const std::set<OpId> checked = ops_with_cases();
  for (int i = 0; i < static_cast<int>(OpId::kCount); ++i) {
    const auto op = static_cast<OpId>(i);
    SCOPED_TRACE(to_string(op));
    EXPECT_EQ(checked.contains(op), internal::find_gradient(op) != nullptr);
    EXPECT_EQ(kConstantOps.contains(op), internal::is_constant_for_gradients(op));
    EXPECT_EQ(checked.contains(op) + kConstantOps.contains(op) + kOpsWithoutGradient.contains(op),
              1);
  }
}

TEST(GradientFunctions, ConstantOperationsHaveNoGradient) {
  const Tensor x = gradient_check::random_tensor({2, 3}, 5);
  const auto is_none = [&](const std::function<Tensor(const Tensor&)>& function) {
    GradientTape tape;
    tape.watch(x);
    const Tensor y = function(x);
    return tape.gradient(y, x).is_none();
  };
  EXPECT_TRUE(is_none([](const Tensor& t) { return floor(t); }));
  EXPECT_TRUE(is_none([](const Tensor& t) { return sign(t); }));
  EXPECT_TRUE(is_none([](const Tensor& t) { return stop_gradient(t); }));
  EXPECT_TRUE(is_none([](const Tensor& t) { return cast(greater(t, 0.0), DType::kFloat64); }));
  EXPECT_TRUE(is_none([](const Tensor& t) { return one_hot(argmax(t), 3); }));
  EXPECT_TRUE(
      is_none([](const Tensor& t) { return cast(cast(t, DType::kInt32), DType::kFloat64); }));
  GradientTape tape;
  tape.watch(x);
  EXPECT_EQ(tape.gradient(x * stop_gradient(x), x).dense().to_doubles(), x.to_doubles());
}

TEST(GradientFunctions, MissingSecondOrderGradientErrorNamesOperation) {
  const Tensor x = gradient_check::random_tensor({1, 4, 4, 1}, 5);
  GradientTape outer;
  outer.watch(x);
  GradientTape inner;
  inner.watch(x);
  const Tensor y = reduce_sum(square(max_pool2d(x)));
  const Tensor dx = inner.gradient(y, x).dense();
  EXPECT_ERROR(outer.gradient(dx, x), kUnimplemented, concat(to_string(OpId::kMaxPoolGrad)));
}

TEST(GradientFunctions, BiasGradientSumsOverAllRows) {
  constexpr std::int64_t kColumns = 3;
  for (const std::int64_t rows : {1, 64, 65, 100, 1000}) {
    const Tensor x = Tensor::ones({rows, 2}, DType::kFloat64);
    const Tensor kernel = Tensor::ones({2, kColumns}, DType::kFloat64);
    const Tensor bias = Tensor::zeros({kColumns}, DType::kFloat64);
    std::vector<double> factors, expected(kColumns, 0.0);
    for (std::int64_t i = 0; i < rows * kColumns; ++i) {
      factors.push_back(static_cast<double>(i % 7 - 2));
      expected[static_cast<std::size_t>(i % kColumns)] += factors.back();
    }
    GradientTape tape;
    tape.watch(bias);
    const Tensor y = dense(x, kernel, bias) * Tensor::from<double>({rows, kColumns}, factors);
    EXPECT_EQ(tape.gradient(y, bias).dense().to_doubles(), expected) << rows << " rows";
  }
}

TEST(GradientFunctions, ReduceMaxSplitsGradientAmongTies) {
  const Tensor x = Tensor::from<double>({4}, {1.0, 3.0, 3.0, 2.0});
  GradientTape tape;
  tape.watch(x);
  const Tensor y = reduce_max(x);
  EXPECT_EQ(tape.gradient(y, x).dense().to_doubles(), (std::vector{0.0, 0.5, 0.5, 0.0}));
}

TEST(GradientFunctions, MaximumPassesTieGradientToFirstOperand) {
  const Tensor a = Tensor::from<double>({1}, {1.0}), b = Tensor::from<double>({1}, {1.0});
  GradientTape tape({.persistent = true});
  tape.watch(a);
  tape.watch(b);
  const Tensor y = maximum(a, b) + minimum(a, b);
  EXPECT_EQ(tape.gradient(y, a).dense().item_double(), 2.0);
  EXPECT_EQ(tape.gradient(y, b).dense().item_double(), 0.0);
}

using gradient_check::random_tensor;

constexpr std::int64_t kHeads = 2, kFeatures = 8;

/// Returns the peak memory, in bytes, of attention over `steps` steps, forward and backward.
std::size_t peak_of(std::int64_t steps, bool fused) {
  const Tensor x = cast(random_tensor({1, kHeads, steps, kFeatures}, 1), DType::kFloat32);
  const std::size_t before = host_allocator().statistics().in_use;
  host_allocator().reset_peak();
  GradientTape tape;
  tape.watch(x);
  Tensor y;
  if (fused) {
    y = attention(x, x, x, {.is_causal = true});
  } else {
    const Tensor seen = internal::causal_mask(steps, steps, 0, x.device());
    y = internal::mixed_values(internal::attention_shares(x, x, 0.5, seen), x);
  }
  EXPECT_FALSE(tape.gradient(y, x).is_none());
  return host_allocator().statistics().peak_in_use - before;
}

TEST(AttentionGradients, MemoryGrowsLinearlyWithSequenceLength) {
  const std::size_t of_result = 512 * kHeads * kFeatures * sizeof(float);
  EXPECT_LE(peak_of(512, true), 12 * of_result);
  EXPECT_LE(peak_of(2048, true), 4.1 * static_cast<double>(peak_of(512, true)));
  // Shows that the test would detect stored scores: unfused attention stores them.
  EXPECT_GE(peak_of(512, false), 512 * 512 * kHeads * sizeof(float));
}

TEST(AttentionGradients, PersistentTapeUsesPrimitiveOperations) {
  const Tensor x = random_tensor({1, 2, 3, 4}, 1);
  const auto ops_of = [&](bool persistent) {
    const SeenOps seen;
    GradientTape tape({.persistent = persistent});
    tape.watch(x);
    const Tensor y = attention(x, x, x);
    (void)tape.gradient(y, x);
    return seen.ops;
  };
  EXPECT_TRUE(ops_of(false).contains(OpId::kAttentionGrad));
  EXPECT_FALSE(ops_of(true).contains(OpId::kAttentionGrad));
}

struct MixedNormalization {
  explicit MixedNormalization(DType half)
      : x(random_values({6, 5, 4}, half, -2.0, 2.0, 1)),
        dy(random_values({6, 5, 4}, half, -1.0, 1.0, 2)),
        gamma(random_values({4}, DType::kFloat32, 0.5, 1.5, 3)),
        beta(random_values({4}, DType::kFloat32, -1.0, 1.0, 4)),
        mean(random_values({4}, DType::kFloat32, -0.5, 0.5, 5)),
        variance(random_values({4}, DType::kFloat32, 0.5, 2.0, 6)) {}

  /// Returns y, the statistics, and the gradients of sum(y * dy) with respect to x, gamma and beta.
  template <class Fn>
  std::vector<Tensor> differentiated(const Fn& normalize) const {
    const std::vector<Tensor> sources{x, gamma, beta};
    GradientTape tape;
    for (const Tensor& tensor : sources) tape.watch(tensor);
    std::vector<Tensor> results = normalize();
    const Tensor loss = reduce_sum(results[0] * dy);
    for (const Gradient& gradient : tape.gradient(loss, sources)) {
      results.push_back(gradient.dense());
    }
    return results;
  }
  std::vector<Tensor> train(const Tensor& input) const {
    const BatchNormResult result = batch_norm_training(input, gamma, beta, 1e-3);
    return {cast(result.y, x.dtype()), result.mean, result.variance};
  }
  std::vector<Tensor> infer(const Tensor& input) const {
    return {cast(batch_norm_inference(input, gamma, beta, mean, variance, 1e-3), x.dtype())};
  }
  Tensor wide() const { return cast(x, DType::kFloat32); }

  Tensor x, dy, gamma, beta, mean, variance;
};

void expect_equal(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].dtype(), expected[i].dtype()) << i;
    EXPECT_EQ(actual[i].to_doubles(), expected[i].to_doubles()) << i;
  }
}

TEST(MixedNormalizationTest, MatchesExplicitCastsBitwise) {
  for (const DType half : {DType::kBFloat16, DType::kFloat16}) {
    const MixedNormalization c(half);
    expect_equal(c.differentiated([&] { return c.train(c.x); }),
                 c.differentiated([&] { return c.train(c.wide()); }));
    expect_equal(c.differentiated([&] { return c.infer(c.x); }),
                 c.differentiated([&] { return c.infer(c.wide()); }));
  }
  const MixedNormalization c(DType::kBFloat16);
  EXPECT_INVALID((void)batch_norm_training(c.x, c.gamma, cast(c.beta, DType::kBFloat16), 1e-3),
                 "expected bfloat16 or float32 [4]");
}

namespace blocks_test {

/// Offset and size of a slice of a [4, 6] matrix.
struct Cut {
  std::vector<std::int64_t> begin, size;
};

/// Returns the sum over i of (i + 1) * (sum of squares of slice i). For element x, the gradient is
/// 2 * x * s, where s is the sum of the factors i + 1 of all slices that contain x.
Tensor weighed_squares(const Tensor& x, const std::vector<Cut>& cuts) {
  Tensor sum = Tensor::zeros({}, DType::kFloat64);
  double factor = 0.0;
  for (const Cut& cut : cuts)
    sum = sum + reduce_sum(square(slice(x, cut.begin, cut.size))) * (factor += 1.0);
  return sum;
}

std::vector<double> factors(const std::vector<Cut>& cuts) {
  std::vector<double> all(24, 0.0);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    for (std::int64_t r = 0; r < cuts[i].size[0]; ++r) {
      for (std::int64_t c = 0; c < cuts[i].size[1]; ++c) {
        const std::int64_t place = (cuts[i].begin[0] + r) * 6 + cuts[i].begin[1] + c;
        all[static_cast<std::size_t>(place)] += static_cast<double>(i + 1);
      }
    }
  }
  return all;
}

class OpCounter final : public OpObserver {
 public:
  void on_op(const OpCall& call, std::span<const Tensor>) override { ++counts[call.op]; }
  std::map<OpId, int> counts;

 private:
  ObserverScope scope_{*this};
};

}  // namespace blocks_test

using blocks_test::Cut;

class GradientBlocks : public TestWithParam<std::vector<Cut>> {};

TEST_P(GradientBlocks, AccumulateFromSlicesAtAnyOffset) {
  const Variable x(random_uniform({4, 6}, {.seed = 3}, -1.0, 1.0, DType::kFloat64));
  const std::vector<double> values = x.value().to_doubles();
  const std::vector<double> factors = blocks_test::factors(GetParam());
  GradientTape outer({.persistent = true});
  Gradient first;
  Tensor sum;
  {
    GradientTape tape;
    first = tape.gradient(blocks_test::weighed_squares(x.value(), GetParam()), x);
    sum = reduce_sum(first.dense() * first.dense());
  }
  const std::vector<double> gradient = first.dense().to_doubles();
  const std::vector<double> second = outer.gradient(sum, x).dense().to_doubles();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(gradient[i], 2.0 * factors[i] * values[i], 1e-12) << "element " << i;
    EXPECT_NEAR(second[i], 8.0 * factors[i] * factors[i] * values[i], 1e-12) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, GradientBlocks,
                         Values(
                             // one slice
                             std::vector<Cut>{{{1, 2}, {2, 3}}},
                             // slices that cover all rows
                             std::vector<Cut>{{{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}},
                             // slices with gaps
                             std::vector<Cut>{{{0, 1}, {4, 2}}, {{0, 4}, {4, 1}}},
                             // overlapping slices
                             std::vector<Cut>{{{0, 0}, {4, 4}}, {{0, 2}, {4, 4}}, {{0, 1}, {4, 2}}},
                             // the full matrix, twice
                             std::vector<Cut>{{{0, 0}, {4, 6}}, {{0, 0}, {4, 6}}},
                             // slices along both axes
                             std::vector<Cut>{{{1, 0}, {1, 6}},
                                              {{0, 3}, {4, 1}},
                                              {{0, 0}, {1, 1}},
                                              {{3, 5}, {1, 1}},
                                              {{3, 0}, {1, 6}}},
                             // an empty slice and a slice of one column
                             std::vector<Cut>{{{0, 2}, {4, 0}}, {{0, 2}, {4, 1}}}));

TEST(GradientBlocksCost, UnstackGradientUsesOneConcatenation) {
  const Variable x(Tensor::ones({100, 3}, DType::kFloat64));
  blocks_test::OpCounter counter;
  GradientTape tape;
  Tensor sum = Tensor::zeros({3}, DType::kFloat64);
  for (const Tensor& row : unstack(x.value())) sum = sum + square(row);
  counter.counts.clear();
  const Gradient gradient = tape.gradient(sum, x);
  EXPECT_EQ(gradient.dense().to_doubles(), std::vector<double>(300, 2.0));
  EXPECT_EQ(counter.counts[OpId::kPad], 0);
  EXPECT_EQ(counter.counts[OpId::kConcat], 1);
  EXPECT_LE(counter.counts[OpId::kAdd], 1) << "sums of whole tensors";
}

TEST(GradientBlocksCost, SumOfSliceGradientsMatchesFullTensorGradient) {
  const Variable x(Tensor::from<double>({4}, {1, 2, 3, 4}));
  GradientTape tape;
  const Tensor whole = x.value() * 1.0;
  const Tensor y = reduce_sum(square(whole)) + reduce_sum(slice(whole, {1}, {2})) +
                   reduce_sum(slice(whole, {3}, {1})) +
                   reduce_sum(gather(whole, Tensor::from<std::int64_t>({1}, {0})));
  EXPECT_EQ(tape.gradient(y, x).dense().to_doubles(), (std::vector<double>{3, 5, 7, 9}));
}

Tensor normal(const Shape& shape, std::uint64_t number) {
  return random_normal(shape, RandomKey{4, kUserPurpose, number, 0, 0});
}

/// Returns dense() of x [..., in], the gradients of its sum of squares with respect to x, kernel
/// and bias, and the gradients of the sum of squares of the kernel's gradient.
std::vector<std::vector<double>> dense_and_gradients(const Shape& rows) {
  const std::vector<Tensor> sources = {reshape(normal({12, 5}, 1), rows), normal({5, 7}, 2),
                                       normal({7}, 3)};
  GradientTape outer, inner;
  for (const Tensor& each : sources) outer.watch(each), inner.watch(each);
  const Tensor y = dense(sources[0], sources[1], sources[2], FusedActivation::kTanh);
  const std::vector<Gradient> first = inner.gradient(reduce_sum(square(y)), sources);
  const Tensor of_kernel = reduce_sum(square(first[1].to_dense()));
  std::vector<std::vector<double>> all = {y.to_doubles()};
  for (const auto& gradients : {first, outer.gradient(of_kernel, sources)}) {
    for (const Gradient& each : gradients) all.push_back(each.to_dense().to_doubles());
  }
  return all;
}

TEST(DenseGradients, HigherRankInputMatchesMatrixBitForBit) {
  EXPECT_EQ(dense_and_gradients({3, 4, 5}), dense_and_gradients({12, 5}));
  EXPECT_EQ(dense_and_gradients({3, 2, 2, 5}), dense_and_gradients({12, 5}));
}

using Block =
    std::function<Tensor(const RecomputedFunction&, const Tensor&, const std::vector<Variable>&)>;

Tensor plain(const RecomputedFunction& function, const Tensor& x, const std::vector<Variable>&) {
  return function({&x, 1}).at(0);
}
Tensor again(const RecomputedFunction& function, const Tensor& x,
             const std::vector<Variable>& variables) {
  return recompute_grad(function, {&x, 1}, variables).at(0);
}

std::vector<std::vector<double>> numbers(const std::vector<Gradient>& gradients) {
  std::vector<std::vector<double>> all;
  for (const Gradient& each : gradients) {
    all.push_back(each.is_none() ? std::vector<double>() : each.to_dense().to_doubles());
  }
  return all;
}

/// Returns the gradients of a network that applies `block` twice. Values are used several times
/// inside and outside of the blocks, so the bits of the gradients depend on the summation order.
std::vector<std::vector<double>> gradients_with(const Block& block) {
  const std::vector<Variable> w = {Variable(normal({5, 5}, 1)), Variable(normal({5, 5}, 2)),
                                   Variable(normal({3}, 3))};
  const Tensor x = normal({4, 5}, 4);
  GradientTape tape;
  tape.watch(x);
  const auto inner = [&](std::span<const Tensor> in) {
    const Tensor a = matmul(in[0], w[0]), b = matmul(in[0], w[1]), c = matmul(in[0], w[0]);
    return std::vector<Tensor>{tanh(a) * sigmoid(b) + c * in[0]};
  };
  const Tensor h = tanh(matmul(x, w[0]) + x);
  const Tensor first = h + block(inner, h, {w[0], w[1]});
  const Tensor second = first * 0.5f + block(inner, first, {w[0], w[1]}) + h;
  const Tensor loss = reduce_sum(square(second + matmul(second, w[1])));
  auto all = numbers(tape.gradient(loss, w));
  return all;
}

TEST(Recompute, SummationOrderMatchesPlainBackwardPass) {
  EXPECT_EQ(gradients_with(again), gradients_with(plain));
}

TEST(Recompute, ComputesInputGradients) {
  const auto gradient_with = [](const Block& block) {
    const Tensor x = normal({6}, 1);
    const auto cube = [](std::span<const Tensor> in) {
      return std::vector<Tensor>{in[0] * in[0] * in[0]};
    };
    GradientTape tape;
    tape.watch(x);
    return tape.gradient(reduce_sum(block(cube, x, {}) * x), x).dense().to_doubles();
  };
  EXPECT_EQ(gradient_with(again), gradient_with(plain));
}

TEST(Recompute, SupportsSecondOrderGradients) {
  const auto second_with = [](const Block& block) {
    const std::vector<Variable> w = {Variable(normal({6}, 1))};
    const Tensor x = normal({6}, 2);
    const auto inner = [&](std::span<const Tensor> in) {
      return std::vector<Tensor>{in[0] * w[0].value() * square(w[0].value())};
    };
    GradientTape outer, tape;
    const Tensor loss = reduce_sum(block(inner, x, w));
    const Tensor first = tape.gradient(loss, w[0]).dense();
    return outer.gradient(reduce_sum(square(first)), w[0]).dense().to_doubles();
  };
  EXPECT_EQ(second_with(again), second_with(plain));
}

TEST(Recompute, PersistentTapeRecomputesEachTime) {
  int calls = 0;
  const Variable w(normal({3}, 1));
  const auto inner = [&](std::span<const Tensor> in) {
    ++calls;
    return std::vector<Tensor>{square(w) * in[0], in[0]};
  };
  GradientTape tape({.persistent = true});
  const Tensor x = Tensor::ones({3});
  const std::vector<Tensor> y = recompute_grad(inner, {&x, 1}, {&w, 1});
  EXPECT_EQ(calls, 1);
  const auto once = tape.gradient(reduce_sum(y[0]), w).dense().to_doubles();
  EXPECT_EQ(tape.gradient(reduce_sum(y[0]), w).dense().to_doubles(), once);
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(tape.gradient(reduce_sum(y[1]), w).is_none());
}

TEST(Recompute, VariableWritesHappenOnce) {
  Variable count(Tensor(0.0f), {.trainable = false});
  const Variable w(Tensor(2.0f));
  const auto inner = [&](std::span<const Tensor> in) {
    count.assign_add(1.0);
    return std::vector<Tensor>{in[0] * w};
  };
  const Tensor x(3.0f);
  GradientTape tape;
  const Tensor y = recompute_grad(inner, {&x, 1}, {&w, 1}).at(0);
  EXPECT_EQ(tape.gradient(y, w).dense().item(), 3.0f);
  EXPECT_EQ(count.value().item(), 1.0f);
  // without a tape, recompute_grad calls the function directly
  (void)recompute_grad(inner, {&x, 1}, {&w, 1});
  EXPECT_EQ(count.value().item(), 2.0f);
}

TEST(Recompute, KeepsOnlyInputsInMemory) {
  constexpr std::int64_t kCount = 1 << 16;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  const Device device{DeviceType::kCpu, 5};
  set_memory_limit(device, kUnlimitedMemory);
  const auto held_with = [&](const Block& block) {
    const Tensor x = Tensor::ones({kCount}, DType::kFloat32, device);
    const auto inner = [](std::span<const Tensor> in) {
      Tensor y = in[0];
      for (int i = 0; i < 6; ++i) y = tanh(y);
      return std::vector<Tensor>{y};
    };
    GradientTape tape;
    tape.watch(x);
    Tensor y = x;
    for (int i = 0; i < 4; ++i) y = block(inner, y, {});
    const std::size_t held = device_memory(device).in_use;
    EXPECT_EQ(tape.gradient(reduce_sum(y), x).dense().num_elements(), kCount);
    return held / kBytes;
  };
  EXPECT_EQ(held_with(plain), 25U);  // x, and 4 * 6 intermediate values
  EXPECT_EQ(held_with(again), 5U);   // x, and the results of 4 blocks
  clear_memory_limit(device);
}

}  // namespace tutti::testing::gradient_functions_test

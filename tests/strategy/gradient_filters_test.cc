// Tests gradient filters: 16-bit rounding with error feedback, workers that send 16-bit values, and
// policies for non-finite values.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/gradient_filters.h"

#include <cmath>
#include <limits>

#include "tests/strategy/worker_threads.h"
#include "tests/support/warnings.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/tensor/half.h"

namespace tutti::strategy_tests::gradient_filters_test {
using internal::compress_with_feedback;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

LocalStrategyOptions compressed(int replicas, WireCompression compression,
                                const std::string& ops = "canonical",
                                NonFinitePolicy policy = NonFinitePolicy::kIgnore) {
  LocalStrategyOptions options = on_cpus(replicas);
  options.cross_device_ops = make_cross_device_ops(
      ops, {.bytes_per_pack = 50'000, .compression = compression, .non_finite = policy});
  options.deterministic = false;
  return options;
}

Variable variable_of(Strategy& strategy, std::int64_t size, DType dtype = DType::kFloat32) {
  const auto scope = strategy.scope();
  return Variable(Tensor::zeros({size}, dtype), {.name = "w"});
}

/// Returns a gradient for replica `replica`; its elements differ between replicas and are not
/// exactly representable in 16 bits.
Tensor gradient_of(std::int64_t size, int replica) {
  return random_uniform({size},
                        RandomKey{7, kUserPurpose, 0, static_cast<std::uint64_t>(replica), 0}, -1.0,
                        1.0, DType::kFloat32, Device{});
}

std::vector<double> reduced(Strategy& strategy, const Variable& variable,
                            const std::function<Gradient(int replica)>& gradient) {
  const auto sums = strategy.run(
      [&] { return summed(variable, gradient(ReplicaContext::current().replica_id())); });
  EXPECT_EQ(numbers(sums[0]), numbers(sums[sums.size() - 1]));
  return numbers(sums[0]);
}

TEST(ErrorFeedback, CarriesRoundingErrorToLaterSteps) {
  for (const auto compression : {WireCompression::kBFloat16, WireCompression::kFloat16}) {
    constexpr std::size_t kCount = 5'000;  // more than one block
    const Tensor gradient = gradient_of(kCount, 0);
    const auto values = gradient.host_span<float>();
    std::vector<float> residual(kCount, 0.0f), sent(kCount);
    std::vector<double> total(kCount, 0.0);
    constexpr int kSteps = 64;
    for (int step = 0; step < kSteps; ++step) {
      compress_with_feedback(compression, values.data(), residual.data(), sent.data(), kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        const float rounded = compression == WireCompression::kBFloat16
                                  ? static_cast<float>(BFloat16(sent[i]))
                                  : static_cast<float>(Float16(sent[i]));
        ASSERT_EQ(rounded, sent[i]);  // every number sent is exact in 16 bits
        total[i] += sent[i];
      }
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      // The total lacks only the last residual, which is at most half a unit in the last place.
      EXPECT_NEAR(total[i] / kSteps, values[i], 0.004 / kSteps) << i;
    }
  }
}

TEST(ErrorFeedback, OverflowIsCarriedOverAndInfinityIsSentUnchanged) {
  const std::vector<float> gradient = {100'000.0f, -1e6f, kInfinity, -kInfinity, std::nanf("")};
  std::vector<float> residual(5, 0.0f), sent(5);
  compress_with_feedback(WireCompression::kFloat16, gradient.data(), residual.data(), sent.data(),
                         5);
  EXPECT_EQ(sent[0], 65504.0f);
  EXPECT_EQ(residual[0], 100'000.0f - 65504.0f);
  EXPECT_EQ(sent[1], -65504.0f);
  EXPECT_EQ(sent[2], kInfinity);
  EXPECT_EQ(sent[3], -kInfinity);
  EXPECT_TRUE(std::isnan(sent[4]));
  for (const std::size_t i : {2U, 3U, 4U}) EXPECT_EQ(residual[i], 0.0f) << i;
  const float largest = std::numeric_limits<float>::max();
  residual.assign(5, 0.0f);
  compress_with_feedback(WireCompression::kBFloat16, &largest, residual.data(), sent.data(), 1);
  EXPECT_EQ(sent[0], static_cast<float>(std::numeric_limits<float>::max() -
                                        static_cast<float>(residual[0])));
  EXPECT_TRUE(std::isfinite(sent[0]));
}

TEST(ErrorFeedback, MeanOfManySumsConvergesToExactSum) {
  constexpr std::int64_t kSize = 70'000;  // spans several slices
  struct Case {
    std::string name;
    std::unique_ptr<Strategy> strategy;
    double least_error_of_a_step;
  };
  std::vector<Case> cases;
  for (const std::string ops : {"canonical", "ring", "reduction_to_one_device"}) {
    for (const int replicas : {2, 3}) {
      const auto options = compressed(replicas, WireCompression::kBFloat16, ops);
      cases.push_back(
          {concat(ops, " of ", replicas), std::make_unique<MirroredStrategy>(options), 1e-3});
    }
  }
  const CentralStorageOptions central{compressed(2, WireCompression::kFloat16), std::nullopt};
  cases.push_back({"central storage", std::make_unique<CentralStorageStrategy>(central), 1e-4});
  for (const auto& [name, strategy, least_error_of_a_step] : cases) {
    const int replicas = strategy->num_replicas_in_sync();
    const Variable w = variable_of(*strategy, kSize);
    std::vector<double> total(kSize, 0.0), first;
    constexpr int kSteps = 16;
    for (int step = 0; step < kSteps; ++step) {
      const auto sum = reduced(*strategy, w, [](int r) { return gradient_of(kSize, r); });
      if (step == 0) first = sum;
      for (std::size_t i = 0; i < sum.size(); ++i) total[i] += sum[i];
    }
    std::vector<double> all_exact(kSize, 0.0);
    for (int r = 0; r < replicas; ++r) {
      const Tensor gradient = gradient_of(kSize, r);
      for (std::size_t i = 0; i < all_exact.size(); ++i) {
        all_exact[i] += gradient.host_span<float>()[i];
      }
    }
    double worst = 0, worst_of_first = 0;
    for (std::size_t i = 0; i < total.size(); ++i) {
      const double exact = all_exact[i];
      worst = std::max(worst, std::abs(total[i] / kSteps - exact));
      worst_of_first = std::max(worst_of_first, std::abs(first[i] - exact));
    }
    EXPECT_GT(worst_of_first, least_error_of_a_step) << name;
    EXPECT_LT(worst, 0.004 * replicas / kSteps) << name;
  }
}

TEST(ErrorFeedback, ResidualsArePerReplica) {
  // bfloat16 rounds 1 + 2^-9 to 1. After two steps, replica 0's residual is 2^-8, so the third step
  // sends 1 + 2^-7. No residual remains after the fourth step. Replica 1's gradient is exact.
  MirroredStrategy strategy(compressed(2, WireCompression::kBFloat16));
  const Variable w = variable_of(strategy, 1);
  const auto gradient = [](int r) { return Gradient(vec({r == 0 ? 1.001953125f : 4.0f})); };
  std::vector<double> sums;
  for (int step = 0; step < 4; ++step) sums.push_back(reduced(strategy, w, gradient)[0]);
  double total = 0;
  for (const double sum : sums) total += sum;
  EXPECT_EQ(sums[0], 5.0);
  EXPECT_EQ(total, 4 * 5.0 + 4 * 0.001953125);
  // If the replicas shared residuals, each replica would now apply the other replica's residual.
  const auto swapped = [](int r) { return Gradient(vec({r == 1 ? 1.001953125f : 4.0f})); };
  EXPECT_EQ(reduced(strategy, w, swapped)[0], 5.0);
}

TEST(ErrorFeedback, ResultIsIndependentOfOperationAndBucketSize) {
  std::vector<double> expected;
  for (const std::int64_t pack : {0, 1'000, 1'000'000}) {
    for (const std::string ops : {"canonical", "reduction_to_one_device", "hierarchical_copy"}) {
      LocalStrategyOptions options = compressed(3, WireCompression::kFloat16, ops);
      options.cross_device_ops.options.bytes_per_pack = pack;
      MirroredStrategy strategy(options);
      const Variable w = variable_of(strategy, 50'000);
      reduced(strategy, w, [](int r) { return gradient_of(50'000, r); });
      const auto sum = reduced(strategy, w, [](int r) { return gradient_of(50'000, r); });
      if (expected.empty()) expected = sum;
      EXPECT_EQ(sum, expected) << ops;
    }
  }
}

TEST(ErrorFeedback, SingleReplicaGradientsAreNotRounded) {
  MirroredStrategy strategy(compressed(1, WireCompression::kBFloat16));
  const auto sum =
      reduced(strategy, variable_of(strategy, 100), [](int) { return gradient_of(100, 0); });
  EXPECT_EQ(sum, numbers(gradient_of(100, 0)));
}

TEST(ErrorFeedback, LeavesSparseAndIntegerGradientsUncompressedAndRejectsFloat64) {
  MirroredStrategy strategy(compressed(2, WireCompression::kBFloat16));
  EXPECT_ERROR(reduced(strategy, variable_of(strategy, 2, DType::kFloat64),
                       [](int) { return Gradient(Tensor::ones({2}, DType::kFloat64)); }),
               kUnimplemented, "Variable 'w' cannot be compressed");
  const auto sparse = [](int r) {
    return Gradient(
        IndexedSlices{vec({1.001953125f}), Tensor::from<std::int64_t>({1}, {r}), Shape{2}});
  };
  EXPECT_EQ(reduced(strategy, variable_of(strategy, 2), sparse),
            (std::vector<double>{1.001953125, 1.001953125}));
  const auto integers = [](int) { return Gradient(Tensor::full({1}, 65537, DType::kInt64)); };
  EXPECT_EQ(reduced(strategy, variable_of(strategy, 1, DType::kInt64), integers)[0], 2 * 65537);
}

TEST(ErrorFeedback, RestoreOrFailedStepClearsResiduals) {
  MirroredStrategy strategy(compressed(2, WireCompression::kBFloat16));
  const Variable w = variable_of(strategy, 1);
  const auto gradient = [](int) { return Gradient(vec({1.001953125f})); };
  const auto forget = std::vector<std::function<void()>>{
      [&] { EXPECT_THROW(strategy.run([] { fail(ErrorCode::kInternal, "on purpose"); }), Error); },
      [&] { strategy.restore_state(strategy.save_state()); }};
  for (const auto& each : forget) {
    std::vector<double> sums;
    for (int step = 0; step < 3; ++step) sums.push_back(reduced(strategy, w, gradient)[0]);
    EXPECT_GT(sums[0] + sums[1] + sums[2], 6.0);
    each();
    EXPECT_EQ(reduced(strategy, w, gradient)[0], sums[0]);
    each();
  }
}

/// Returns the sums of three steps. Each replica has the same gradient in all steps; a gradient is
/// larger than one block of elements. Rounding errors are carried from step to step.
std::vector<double> sums_of_three_steps(Strategy& strategy) {
  const auto scope = strategy.scope();
  const Variable variable(Tensor::zeros({9'001}), {.name = "w"});
  std::vector<double> all;
  for (int step = 0; step < 3; ++step) {
    const auto sums = strategy.run([&] {
      const auto r = static_cast<std::uint64_t>(ReplicaContext::current().replica_id());
      return summed(variable, random_normal({9'001}, RandomKey{5, kUserPurpose, r, 0, 0}));
    });
    for (const double each : numbers(sums[0])) all.push_back(each);
  }
  return all;
}

TEST(CompressedWorkers, MatchOneProcessBitForBit) {
  for (const auto compression : {WireCompression::kBFloat16, WireCompression::kFloat16}) {
    for (const std::vector<int>& replicas :
         {std::vector{1, 1}, {2, 2}, {1, 2}, {1, 1, 1}, {2, 1, 2}}) {
      int total = 0;
      std::vector<LocalStrategyOptions> options;
      for (const int count : replicas) {
        total += count;
        options.push_back(compressed(count, compression));
      }
      MirroredStrategy one_process(compressed(total, compression));
      const std::vector<double> expected = sums_of_three_steps(one_process);
      // Compression changes the sums.
      EXPECT_NE(expected, sums_of_three_steps(*mirrored(1, total)));
      for (const Between between : {Between::kMemory, Between::kMessages}) {
        EXPECT_THAT(results_of_workers(options, sums_of_three_steps, between),
                    ::testing::Each(expected))
            << join(replicas);
      }
    }
  }
}

/// Returns the number of bytes that worker 0 sends in three steps.
std::uint64_t bytes_of_three_steps(WireCompression compression) {
  auto transports = in_process_transports(2, false);
  const std::shared_ptr<Transport> first = transports[0];
  expect_no_error(errors_of_ranks(2, [&](int worker) {
    MultiWorkerMirroredStrategy strategy(
        make_communicator(transports[static_cast<std::size_t>(worker)]),
        compressed(1, compression));
    sums_of_three_steps(strategy);
  }));
  return first->stats().bytes_sent;
}

TEST(CompressedWorkers, SendFewerBytesThanUncompressedWorkers) {
  const auto plain = static_cast<double>(bytes_of_three_steps(WireCompression::kNone));
  const auto shorter = static_cast<double>(bytes_of_three_steps(WireCompression::kBFloat16));
  EXPECT_LT(shorter, 0.8 * plain);
  EXPECT_GT(shorter, 0.6 * plain);
}

TEST(CompressedWorkers, RejectRingAlgorithmAndMixedSparsity) {
  const std::vector<LocalStrategyOptions> options(2, compressed(1, WireCompression::kBFloat16));
  for (const std::string& error :
       run_workers(options, [](auto&) {}, Between::kMessages, {.algorithm = "ring"})) {
    EXPECT_THAT(error, HasSubstr("compression bfloat16 is not supported with 'ring'"));
  }
  const auto mixed = run_workers(
      options,
      [](MultiWorkerMirroredStrategy& strategy) {
        const auto scope = strategy.scope();
        Variable w(Tensor::zeros({2, 1}), {.name = "w"});
        Sgd sgd(std::vector<Variable>{w}, {.learning_rate = 1.0});
        strategy.run([&] {
          Gradient gradient(Tensor::from<float>({2, 1}, {1, 1}));
          if (strategy.worker() == 0) {
            gradient = IndexedSlices{Tensor::from<float>({1, 1}, {5}),
                                     Tensor::from<std::int64_t>({1}, {1}), Shape{2, 1}};
          }
          sgd.apply_gradients(std::vector<Gradient>{gradient});
        });
      },
      Between::kMessages);
  for (const std::string& error : mixed) {
    EXPECT_THAT(error, HasSubstr("Variable 'w' has slices on some replicas"));
  }
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kSize = 40'000;

struct Setting {
  int replicas;
  std::string ops;
  WireCompression compression;
};
std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const int replicas : {1, 2, 3}) {
    for (const std::string ops : {"canonical", "ring", "reduction_to_one_device"}) {
      for (const auto compression : {WireCompression::kNone, WireCompression::kBFloat16}) {
        all.push_back({replicas, ops, compression});
      }
    }
  }
  return all;
}

MirroredStrategy strategy_with(const Setting& setting, NonFinitePolicy policy) {
  return MirroredStrategy(compressed(setting.replicas, setting.compression, setting.ops, policy));
}

struct Network {
  Variable a, table, b;
  std::unique_ptr<Sgd> optimizer;
  explicit Network(Strategy& strategy) {
    const auto scope = strategy.scope();
    a = Variable(Tensor::zeros({10}), {.name = "a"});
    table = Variable(Tensor::zeros({6, 2}), {.name = "table"});
    b = Variable(Tensor::zeros({kSize}), {.name = "b"});
    optimizer = std::make_unique<Sgd>(std::vector{a, table, b},
                                      SgdOptions{.learning_rate = 1.0, .momentum = 0.5});
  }
  /// Gradient values for one step: initially all 1, but `spoil` may replace some.
  struct Parts {
    std::vector<float> a = std::vector<float>(10, 1.0f);
    std::vector<float> rows = {1, 1, 1, 1};
    std::vector<float> b = std::vector<float>(kSize, 1.0f);
  };
  void step(Strategy& strategy, const std::function<void(Parts&, int replica)>& spoil) {
    strategy.run([&] {
      Parts parts;
      spoil(parts, ReplicaContext::current().replica_id());
      const IndexedSlices rows{Tensor::from<float>({2, 2}, parts.rows),
                               Tensor::from<std::int64_t>({2}, {4, 1}), Shape{6, 2}};
      optimizer->apply_gradients(std::vector<Gradient>{vec(parts.a), rows, vec(parts.b)});
    });
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (const Variable& each : {a, table, b}) {
      for (const double value : numbers(each.value())) all.push_back(value);
    }
    return all;
  }
};

void spoil_nothing(Network::Parts&, int) {}

TEST(NonFiniteGradients, ErrorLocatesFirstNonFiniteElement) {
  for (const Setting& setting : settings()) {
    const int last = setting.replicas - 1;
    MirroredStrategy strategy = strategy_with(setting, NonFinitePolicy::kError);
    Network network(strategy);
    network.step(strategy, spoil_nothing);
    const auto before = network.values();
    const std::string on_last = concat(" on replica ", last, ", in step 1");
    EXPECT_ERROR(network.step(strategy,
                              [&](Network::Parts& parts, int r) {
                                if (r != last) return;
                                parts.b[31'234] = kNan;
                                parts.b[39'999] = kInfinity;
                              }),
                 kOutOfRange,
                 "the gradient of Variable 'b' is not finite at flat index 31234" + on_last);
    EXPECT_EQ(network.values(), before);
    EXPECT_EQ(strategy.last_failure().step, 1U);
    EXPECT_ERROR(
        network.step(strategy, [](Network::Parts& parts, int) { parts.rows[1] = -kInfinity; }),
        kOutOfRange,
        "the gradient of Variable 'table' is not finite at flat index 9 on replica 0, in step 1");
    EXPECT_EQ(network.values(), before);
    network.step(strategy, spoil_nothing);
    EXPECT_NE(network.values(), before);
  }
}

TEST(NonFiniteGradients, InfiniteSumOfFiniteGradientsIsDetected) {
  for (const std::string ops : {"canonical", "ring"}) {
    MirroredStrategy strategy =
        strategy_with({2, ops, WireCompression::kNone}, NonFinitePolicy::kError);
    Network network(strategy);
    EXPECT_ERROR(network.step(strategy, [](Network::Parts& parts, int) { parts.a[3] = 3e38f; }),
                 kOutOfRange, "'a' is not finite at flat index 3 of the sum");
  }
}

TEST(NonFiniteGradients, SkipPolicyLeavesVariablesAndOptimizerStateUnchanged) {
  for (const Setting& setting : settings()) {
    MirroredStrategy skipping = strategy_with(setting, NonFinitePolicy::kSkip);
    MirroredStrategy plain = strategy_with(setting, NonFinitePolicy::kIgnore);
    Network network(skipping), expected(plain);
    for (int step = 0; step < 5; ++step) {
      const bool is_bad = step == 1 || step == 3;
      network.step(skipping, [&](Network::Parts& parts, int r) {
        if (!is_bad || r != 0) return;
        if (step == 1) parts.b[7] = kInfinity;
        if (step == 3) parts.rows[3] = kNan;
      });
      if (!is_bad) expected.step(plain, spoil_nothing);
    }
    EXPECT_EQ(network.values(), expected.values()) << setting.ops << setting.replicas;
    EXPECT_EQ(network.optimizer->iterations().value().item_int(), 3);
    for (const Tensor& component : network.b.storage().local_components()) {
      EXPECT_EQ(numbers(component), numbers(network.b.value()));
    }
  }
}

TEST(NonFiniteGradients, AreAppliedUnderIgnorePolicy) {
  MirroredStrategy strategy =
      strategy_with({2, "canonical", WireCompression::kNone}, NonFinitePolicy::kIgnore);
  Network network(strategy);
  network.step(strategy, [](Network::Parts& parts, int) { parts.a[2] = kNan; });
  EXPECT_TRUE(std::isnan(network.values()[2]));
}

TEST(NonFiniteGradients, PolicyDoesNotChangeFiniteGradients) {
  const auto run = [](NonFinitePolicy policy) {
    MirroredStrategy strategy = strategy_with({3, "canonical", WireCompression::kNone}, policy);
    Network network(strategy);
    for (int step = 0; step < 3; ++step) {
      network.step(strategy, [](Network::Parts& parts, int r) {
        for (std::size_t i = 0; i < parts.b.size(); ++i) {
          parts.b[i] = std::sin(static_cast<float>(i) + static_cast<float>(r));
        }
      });
    }
    return network.values();
  };
  const auto expected = run(NonFinitePolicy::kIgnore);
  for (const auto policy : {NonFinitePolicy::kError, NonFinitePolicy::kSkip}) {
    EXPECT_EQ(run(policy), expected);
  }
}

TEST(NonFiniteGradients, PolicyAppliesToOneDeviceStrategy) {
  OneDeviceStrategy strategy("cpu:0", {.non_finite = NonFinitePolicy::kError});
  Network network(strategy);
  EXPECT_ERROR(network.step(strategy, [](Network::Parts& parts, int) { parts.a[2] = kNan; }),
               kOutOfRange, "on replica 0, in step 0");
}

TEST(NonFiniteGradients, AreCountedForEveryFloatingPointType) {
  using internal::count_non_finite;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    const Tensor values = cast(vec({1, kNan, -kInfinity, 0, kInfinity, 2}), dtype);
    EXPECT_EQ(count_non_finite(dtype, values.bytes().data(), 6), 3U);
    EXPECT_EQ(internal::first_non_finite(dtype, values.bytes().data(), 6), 1U);
  }
  const Tensor integers = Tensor::full({4}, -1, DType::kInt32);
  EXPECT_EQ(count_non_finite(DType::kInt32, integers.bytes().data(), 4), 0U);
}

}  // namespace tutti::strategy_tests::gradient_filters_test

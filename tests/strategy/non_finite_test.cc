// Tests the policies for non-finite gradients, with several replicas, operations and kinds.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/gradient_filters.h"

#include <cmath>
#include <limits>

#include "tests/strategy/strategy_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::strategy_tests::non_finite_test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
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
  LocalStrategyOptions options = on_cpus(setting.replicas);
  options.cross_device_ops = make_cross_device_ops(
      setting.ops,
      {.bytes_per_pack = 50'000, .compression = setting.compression, .non_finite = policy});
  options.deterministic = false;
  return MirroredStrategy(options);
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
  /// Gradients of ones, which `spoil` may change.
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
      const std::vector<Gradient> gradients = {vec(parts.a), rows, vec(parts.b)};
      optimizer->apply_gradients(gradients);
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

TEST(NonFinite, ErrorNamesVariableIndexReplicaAndStep) {
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

TEST(NonFinite, AnInfiniteSumOfFiniteValuesIsFoundToo) {
  for (const std::string ops : {"canonical", "ring"}) {
    MirroredStrategy strategy =
        strategy_with({2, ops, WireCompression::kNone}, NonFinitePolicy::kError);
    Network network(strategy);
    EXPECT_ERROR(network.step(strategy, [](Network::Parts& parts, int) { parts.a[3] = 3e38f; }),
                 kOutOfRange, "'a' is not finite at flat index 3 of the sum");
  }
}

TEST(NonFinite, SkipLeavesVariablesMomentaAndIterationsOnAllReplicas) {
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

TEST(NonFinite, ZeroStandsForTheValueOfThatReplicaAlone) {
  for (const Setting& setting : settings()) {
    MirroredStrategy strategy = strategy_with(setting, NonFinitePolicy::kZero);
    Network network(strategy);
    const auto spoil = [](Network::Parts& parts, int r) {
      if (r != 0) return;
      parts.a[9] = kNan;
      parts.b[20'000] = -kInfinity;
      parts.rows[0] = kInfinity;
    };
    const auto warnings = thrown::warnings_of([&] {
      for (int step = 0; step < 2; ++step) network.step(strategy, spoil);
    });
    const auto all = network.values();
    // Two steps of momentum 0.5 with the same gradient g: -(g + 1.5 g).
    const double others = -2.5 * (setting.replicas - 1), full = -2.5 * setting.replicas;
    EXPECT_EQ(all[9], others);
    EXPECT_EQ(all[8], full);
    EXPECT_EQ(all[10 + 4 * 2], others);
    EXPECT_EQ(all[10 + 4 * 2 + 1], full);
    EXPECT_EQ(all[10 + 12 + 20'000], others);
    EXPECT_EQ(all[10 + 12 + 20'001], full);
    ASSERT_EQ(warnings.size(), 1U) << setting.ops << setting.replicas;
    EXPECT_THAT(warnings[0], ::testing::HasSubstr("Variable 'a' is not finite at flat index 9 on "
                                                  "replica 0, in step 0; zeros stand for"));
  }
}

TEST(NonFinite, IgnoreLetsThemPass) {
  MirroredStrategy strategy =
      strategy_with({2, "canonical", WireCompression::kNone}, NonFinitePolicy::kIgnore);
  Network network(strategy);
  network.step(strategy, [](Network::Parts& parts, int) { parts.a[2] = kNan; });
  EXPECT_TRUE(std::isnan(network.values()[2]));
}

TEST(NonFinite, APolicyDoesNotChangeTheBitsOfFiniteGradients) {
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
  for (const auto policy :
       {NonFinitePolicy::kError, NonFinitePolicy::kSkip, NonFinitePolicy::kZero}) {
    EXPECT_EQ(run(policy), expected);
  }
}

TEST(NonFinite, OneDeviceHasThePolicyToo) {
  OneDeviceStrategy strategy("cpu:0", {.non_finite = NonFinitePolicy::kError});
  Network network(strategy);
  EXPECT_ERROR(network.step(strategy, [](Network::Parts& parts, int) { parts.a[2] = kNan; }),
               kOutOfRange, "on replica 0, in step 0");
}

TEST(NonFinite, CountsInEveryFloatingType) {
  using internal::count_non_finite;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    const Tensor values = cast(vec({1, kNan, -kInfinity, 0, kInfinity, 2}), dtype);
    EXPECT_EQ(count_non_finite(dtype, values.bytes().data(), 6), 3U);
    EXPECT_EQ(internal::first_non_finite(dtype, values.bytes().data(), 6), 1U);
    EXPECT_EQ(numbers(internal::without_non_finite(values)),
              (std::vector<double>{1, 0, 0, 0, 0, 2}));
  }
  const Tensor integers = Tensor::full({4}, -1, DType::kInt32);
  EXPECT_EQ(count_non_finite(DType::kInt32, integers.bytes().data(), 4), 0U);
}

}  // namespace tutti::strategy_tests::non_finite_test

// Tests FullyShardedStrategy: bit-identity with MirroredStrategy, memory per replica, and memory
// that tapes release.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/fully_sharded_strategy.h"

#include "strategy/variables/fully_sharded_variable.h"
#include "tests/strategy/toy_training.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/tensor/device_memory.h"

namespace tutti::strategy_tests::fully_sharded_test {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 8;

Tensor normal(const Shape& shape, std::uint64_t number) {
  return random_normal(shape, RandomKey{3, kUserPurpose, number, 0, 0});
}

/// Network whose weights have sizes that are not divisible by the number of replicas.
struct Net {
  std::vector<Variable> weights = {
      Variable(normal({7, 37}, 1), {.name = "w1"}), Variable(normal({37}, 2), {.name = "b1"}),
      Variable(normal({37, 29}, 3), {.name = "w2"}), Variable(normal({29, 1}, 4), {.name = "w3"})};
  /// Returns the loss; layers compute in `type`.
  Tensor loss(const Tensor& x, DType type) const {
    const AutocastScope types(type);
    const Tensor hidden = tanh(matmul(cast(x, type), weights[0].value()) + weights[1].value());
    const Tensor next = relu(matmul(hidden, weights[2].value()));
    const Tensor y = cast(matmul(next, weights[3].value()), DType::kFloat32);
    return reduce_sum(square(y - 1.0f)) / static_cast<float>(kRows);
  }
};

Trained trained(Strategy& strategy, DType type = DType::kFloat32) {
  const auto scope = strategy.scope();
  const Net net;
  Adam optimizer(net.weights);
  const Tensor x = normal({kRows, 7}, 9);
  for (int step = 0; step < 5; ++step) {
    strategy.run([&] {
      ReplicaContext& context = ReplicaContext::current();
      const std::int64_t rows = kRows / context.num_replicas_in_sync();
      GradientTape tape;
      const Tensor own = x.detached_rows(context.replica_id() * rows, rows).to(context.device());
      optimizer.minimize(tape, net.loss(own, type));
    });
  }
  return {hash_variables(net.weights), hash_variables(optimizer.state_variables()), ""};
}

FullyShardedOptions keeping_values(int devices) {
  return {.local = on_cpus(devices), .reshard_after_forward = false, .min_shard_bytes = 0};
}

TEST(FullySharded, GatheredValuesIn16BitsMatchMirroredBitForBit) {
  FullyShardedStrategy kept(keeping_values(4));
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    const Trained expected = trained(*mirrored(4), type);
    EXPECT_NE(expected.weights, trained(*mirrored(4)).weights) << type;
    for (const int stage : {1, 2, 3}) {
      EXPECT_EQ(trained(*fully_sharded(4, 0, stage), type), expected) << type << stage;
    }
    EXPECT_EQ(trained(kept, type), expected) << type;
  }
}

TEST(FullySharded, ValueCanBeReadInSeveralDTypes) {
  for (const int stage : {1, 3}) {
    const auto strategy = fully_sharded(2, 0, stage);
    const auto scope = strategy->scope();
    Variable w(Tensor::full({50}, 1.001), {.name = "w"});
    const std::vector<double> wide = copies_of(static_cast<double>(1.001f), 50);
    const std::vector<double> narrow = copies_of(1.0, 50);
    for (const bool wide_first : {true, false}) {
      w.assign(1.001);  // invalidates the gathered copies on devices
      strategy->run([&] {
        for (const bool is_wide : {wide_first, !wide_first, wide_first}) {
          const AutocastScope types(is_wide ? std::nullopt : std::optional(DType::kBFloat16));
          const Tensor value = w.value();
          EXPECT_EQ(value.dtype(), is_wide ? DType::kFloat32 : DType::kBFloat16);
          EXPECT_EQ(numbers(value), is_wide ? wide : narrow);
        }
      });
    }
  }
}

TEST(FullySharded, ResultIsIndependentOfDevicesOperationAndResharding) {
  const Trained expected = trained(*mirrored(4));
  EXPECT_EQ(trained(*fully_sharded(2, 4)), expected);
  FullyShardedOptions kept = keeping_values(4);
  FullyShardedStrategy with_kept(kept);
  EXPECT_EQ(trained(with_kept), expected);
  for (const char* name : {"hierarchical_copy", "reduction_to_one_device"}) {
    kept.local.cross_device_ops = make_cross_device_ops(name);
    FullyShardedStrategy other(kept);
    EXPECT_EQ(trained(other), expected) << name;
  }
}

/// Returns the device and size of each component as "device:bytes".
std::vector<std::string> components_of(const Variable& variable) {
  std::vector<std::string> all;
  for (const Tensor& each : variable.storage().local_components()) {
    all.push_back(concat(each.device(), ":", each.num_bytes()));
  }
  return all;
}

TEST(FullySharded, VariablesAndSlotsAreShardedEvenly) {
  const auto strategy = fully_sharded(3);
  const auto scope = strategy->scope();
  const std::vector<Variable> variables = {Variable(Tensor::zeros({100, 10}), {.name = "w"})};
  const Adam optimizer(variables);
  const auto even = ElementsAre("cpu:0:1344", "cpu:1:1344", "cpu:2:1312");  // 4,000 bytes in total
  EXPECT_THAT(components_of(variables[0]), even);
  for (const Variable& state : optimizer.state_variables()) {
    if (state.shape().rank() == 0) continue;
    EXPECT_THAT(components_of(state), even);
  }
}

TEST(FullySharded, SmallDivergentAndOnReadVariablesAreNotSharded) {
  FullyShardedStrategy strategy(on_cpus(2));
  const auto scope = strategy.scope();
  const auto num_bytes = [&](std::int64_t count, VariableOptions options = {}) {
    return components_of(Variable(Tensor::zeros({count}), std::move(options)));
  };
  EXPECT_THAT(num_bytes(16'384), ElementsAre("cpu:0:32768", "cpu:1:32768"));
  EXPECT_THAT(num_bytes(16'383), ElementsAre("cpu:0:65532", "cpu:1:65532"));
  EXPECT_THAT(num_bytes(20'000, {.allow_divergent = true}),
              ElementsAre("cpu:0:80000", "cpu:1:80000"));
  EXPECT_THAT(num_bytes(20'000, {.synchronization = VariableSynchronization::kOnRead,
                                 .aggregation = VariableAggregation::kMean}),
              ElementsAre("cpu:0:80000", "cpu:1:80000"));
}

TEST(FullySharded, InvalidOptionsAreRejected) {
  EXPECT_INVALID(FullyShardedStrategy(FullyShardedOptions{.stage = 4}), "stage: expected 1");
  EXPECT_INVALID(FullyShardedStrategy(FullyShardedOptions{.min_shard_bytes = -1}),
                 "min_shard_bytes");
}

/// Memory in use on a device, in bytes: after the forward pass through kLayers layers, and at the
/// peak.
struct Held {
  std::size_t after_forward = 0, peak = 0;
};

constexpr std::int64_t kWidth = 256;
constexpr std::size_t kLayerBytes = kWidth * kWidth * sizeof(float);
constexpr int kLayers = 8, kReplicas = 4;

/// Counts the memory of the devices cpu:0 to cpu:3 separately during its lifetime.
class OwnMemory {
 public:
  OwnMemory() {
    for (int i = 0; i < kReplicas; ++i) set_memory_limit({DeviceType::kCpu, i}, kUnlimitedMemory);
  }
  ~OwnMemory() {
    for (int i = 0; i < kReplicas; ++i) clear_memory_limit({DeviceType::kCpu, i});
  }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
};

/// Measures the last device's memory in the second of two Adam steps; layers compute in `type`.
Held held_by(Strategy& strategy, DType type = DType::kFloat32) {
  const Device device{DeviceType::kCpu, kReplicas - 1};
  Held held;
  const auto scope = strategy.scope();
  std::vector<Variable> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.emplace_back(normal({kWidth, kWidth}, static_cast<std::uint64_t>(i)) * 0.05f);
  }
  Adam optimizer(layers);
  for (int step = 0; step < 2; ++step) {
    reset_peak_memory(device);
    strategy.run([&] {
      ReplicaContext& context = ReplicaContext::current();
      GradientTape tape;
      const AutocastScope types(type);
      Tensor x = Tensor::ones({2, kWidth}, type, context.device());
      for (const Variable& layer : layers) x = tanh(matmul(x, layer.value()));
      const Tensor loss = reduce_sum(square(x));
      if (context.device() == device) held.after_forward = device_memory(device).in_use;
      optimizer.minimize(tape, loss);
    });
    held.peak = device_memory(device).peak;
  }
  return held;
}

/// Returns options that put each layer in its own bucket.
LocalStrategyOptions in_layers(ReplicaExecution execution) {
  LocalStrategyOptions options = on_cpus(kReplicas);
  options.cross_device_ops.options.bytes_per_pack = kLayerBytes;
  options.execution = execution;
  return options;
}

Held held_by(ReplicaExecution execution, int stage, bool reshard_after_forward = true,
             DType type = DType::kFloat32) {
  FullyShardedStrategy strategy({.local = in_layers(execution),
                                 .stage = stage,
                                 .reshard_after_forward = reshard_after_forward});
  return held_by(strategy, type);
}

/// Expects `bytes` to be within 10 % of `layers` times a layer's bytes.
#define EXPECT_LAYERS(bytes, layers) \
  EXPECT_NEAR(static_cast<double>(bytes) / kLayerBytes, layers, 0.1 * (layers))

TEST(FullySharded, ReplicaMemoryMatchesFormula) {
  const OwnMemory own;
  constexpr double kAll = kLayers, kPart = kAll / kReplicas;
  // With sequential execution, each replica runs until it waits for the remaining replicas.
  for (const auto execution : {ReplicaExecution::kThreads, ReplicaExecution::kSequential}) {
    // Each replica holds the weights, two slots, its gradients and the sums of gradients.
    MirroredStrategy mirrored(in_layers(execution));
    const Held whole = held_by(mirrored);
    EXPECT_LAYERS(whole.after_forward, 3 * kAll);
    EXPECT_LAYERS(whole.peak, 5 * kAll);
    // In addition to the full weights, each replica holds the shards of weights and slots that it
    // updates.
    const Held first = held_by(execution, 1);
    EXPECT_LAYERS(first.after_forward, kAll + 3 * kPart);
    EXPECT_LAYERS(first.peak, 3 * kAll + 3 * kPart);
    // Each replica holds its shards of the sums, and the gradients of three buckets and of the
    // layer in progress.
    const Held second = held_by(execution, 2);
    EXPECT_LAYERS(second.after_forward, kAll + 3 * kPart);
    EXPECT_LE(second.peak, (kAll + 4 * kPart + 4) * kLayerBytes * 1.1);
    const Held kept = held_by(execution, 3, false);
    EXPECT_LAYERS(kept.after_forward, kAll + 3 * kPart);
    // Each replica holds the gathered weights of only the current layer.
    const Held third = held_by(execution, 3);
    EXPECT_LAYERS(third.after_forward, 3 * kPart);
    EXPECT_LE(third.peak, (4 * kPart + 5) * kLayerBytes * 1.1);
  }
}

TEST(FullySharded, SixteenBitValuesHalveMemory) {
  const OwnMemory own;
  constexpr double kAll = kLayers, kPart = kAll / kReplicas;
  const auto held = [](int stage, bool reshard_after_forward) {
    return held_by(ReplicaExecution::kThreads, stage, reshard_after_forward, DType::kBFloat16)
        .after_forward;
  };
  // Full values are gathered in 16 bits, so they take kAll / 2.
  EXPECT_LAYERS(held(1, true), kAll / 2 + 3 * kPart);
  EXPECT_LAYERS(held(3, false), kAll / 2 + 3 * kPart);
  EXPECT_LAYERS(held(3, true), 3 * kPart);
}

TEST(FullySharded, WriteBetweenReadAndGradientFails) {
  const auto step = [](Strategy& strategy) {
    const auto scope = strategy.scope();
    Variable w(normal({32, 32}, 1), {.name = "w", .aggregation = VariableAggregation::kMean});
    strategy.run([w]() mutable {
      const Tensor x = filled({2, 32}, 1.0);
      GradientTape tape;
      tape.watch(x);
      const Tensor y = matmul(x, w.value());
      w.assign_add(1.0);
      (void)tape.gradient(y, x);
    });
  };
  EXPECT_ERROR(step(*fully_sharded(2)), kFailedPrecondition,
               "Variable 'w' was written after the step read it");
  step(*fully_sharded(2, 0, 2));
  FullyShardedStrategy kept(keeping_values(2));
  step(kept);
}

/// Returns the gradient of |g|^2 with respect to w, where g is the gradient of sum((x w)^3). Reads
/// w as `type`, then transposes, reshapes and casts it.
std::vector<double> second_derivative(Strategy& strategy, DType type) {
  const auto scope = strategy.scope();
  const Variable w(normal({4, 9}, 1), {.name = "w"});
  const auto results = strategy.run([&] {
    const Tensor x = normal({2, 6}, 2).to(ReplicaContext::current().device());
    GradientTape outer, inner;
    const AutocastScope types(type);
    const Tensor view = cast(transpose(reshape(w.value(), {6, 6})), DType::kFloat64);
    const Tensor y = matmul(cast(x, DType::kFloat64), view);
    const Tensor cube = reduce_sum(y * square(y));
    const Tensor first = inner.gradient(cube, w).dense();
    return outer.gradient(reduce_sum(square(first)), w).dense();
  });
  return numbers(results);
}

TEST(FullySharded, SecondOrderGradientsMatchMirrored) {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    const std::vector<double> expected = second_derivative(*mirrored(2), type);
    for (const double value : expected) EXPECT_NE(value, 0.0);
    EXPECT_EQ(second_derivative(*fully_sharded(2), type), expected) << type;
  }
}

TEST(FullySharded, SparseGradientShardsMaySplitRows) {
  constexpr std::int64_t kWidth = 5;
  const Shape whole{4, kWidth};
  const std::vector<std::int64_t> rows = {3, 1, 3};
  std::vector<float> values;
  std::vector<double> dense(20, 0.0);
  for (std::size_t i = 0; i < rows.size() * kWidth; ++i) {
    values.push_back(static_cast<float>(i + 1));
    dense[static_cast<std::size_t>(rows[i / kWidth]) * kWidth + i % kWidth] += values.back();
  }
  const Gradient gradient(IndexedSlices{Tensor::from({3, kWidth}, values),
                                        Tensor::from<std::int64_t>({3}, rows), whole});
  for (std::ptrdiff_t first = 0; first <= 20; ++first) {
    for (std::ptrdiff_t end = first; end <= 20; ++end) {
      const Gradient shard = internal::gradient_of_shard(gradient, whole, {first, end - first});
      EXPECT_EQ(shard.dense().to_doubles(),
                std::vector<double>(dense.begin() + first, dense.begin() + end))
          << first << " to " << end;
    }
  }
}

TEST(FullySharded, UpdatesOutsideReplicasMatchMirrored) {
  const auto updated = [](Strategy& strategy, const UpdateRule& rule) {
    const auto scope = strategy.scope();
    const Variable w(normal({40, 3}, 1), {.name = "w"});
    std::vector<Variable> variables = {w};
    std::vector<Variable> slots;
    for (const SlotSpec& slot : rule.slots()) {
      slots.push_back(w.storage().create_slot(slot.name, slot.initial_value));
    }
    w.storage().update(rule, slots, normal({40, 3}, 2), {.learning_rate = 0.1});
    variables.insert(variables.end(), slots.begin(), slots.end());
    return hash_variables(variables);
  };
  const AdamRule adam;
  const LambRule lamb;
  for (const UpdateRule* rule :
       {static_cast<const UpdateRule*>(&adam), static_cast<const UpdateRule*>(&lamb)}) {
    EXPECT_EQ(updated(*fully_sharded(3), *rule), updated(*mirrored(3), *rule)) << rule->name();
  }
}

}  // namespace tutti::strategy_tests::fully_sharded_test

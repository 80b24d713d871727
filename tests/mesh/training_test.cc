// Tests training under MeshStrategy: the values equal those computed on one device, and their bits
// depend only on the blocks.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/mesh/mesh_helpers.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/variable.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/device_memory.h"

namespace tutti::mesh_tests {
namespace {

/// Shards the first kernel by columns and the second by rows, so that a pair of layers needs only
/// one sum.
const LayoutMap kColumnsThenRows = {
    {"dense/kernel", {"", "model"}}, {"dense/bias", {"model"}}, {"dense_1/kernel", {"model", ""}}};

struct Trained {
  std::vector<double> losses;
  std::string hash = "";
  std::vector<std::vector<double>> weights = {};
};

/// Trains a two-layer network for three steps with batches of 16 examples. Initial values are
/// explicit, because workers that are threads share the variable counter.
Trained train(Strategy& strategy, const OptimizerSpec& spec = "adam",
              DType dtype = DType::kFloat32) {
  const auto given = [&](const Shape& shape, std::uint64_t seed) {
    return cast(numbers(shape, seed), dtype);
  };
  std::vector<Variable> w;
  std::unique_ptr<Optimizer> optimizer;
  {
    const auto scope = strategy.scope();
    w = {Variable(given({8, 32}, 3), {.name = "dense/kernel"}),
         Variable(given({32}, 4), {.name = "dense/bias"}),
         Variable(given({32, 4}, 5), {.name = "dense_1/kernel"}),
         Variable(given({4}, 6), {.name = "dense_1/bias"}),
         Variable(given({8}, 7), {.name = "scale"})};
    optimizer = make_optimizer(spec, w);
  }
  const Dataset data =
      Dataset::from_tensor_slices({given({48, 8}, 1), given({48, 4}, 2)}).batch(16);
  Trained result;
  for (const auto& batch : strategy.distribute_dataset(data)) {
    const auto losses = strategy.run(
        [&](const Batch& part) {
          GradientTape tape;
          // The gradient of the scale is partial over both axes.
          const Tensor hidden = dense(part.features() * w[4].value(), w[0].value(), w[1].value(),
                                      FusedActivation::kRelu);
          const Tensor error = dense(hidden, w[2].value(), w[3].value()) - part.labels();
          const Tensor loss = reduce_sum(square(error)) / (16.0 * 4.0);
          optimizer->minimize(tape, loss);
          return loss;
        },
        batch);
    result.losses.push_back(strategy.reduce(ReduceOp::kSum, losses).item_double());
  }
  // Slots are hashed, too: a difference in the last bit of a gradient may be too small to change
  // weights.
  std::vector<Variable> all = optimizer->state_variables();
  all.insert(all.end(), w.begin(), w.end());
  result.hash = hash_variables(all);
  for (const Variable& each : w) result.weights.push_back(each.value().to_doubles());
  return result;
}

TEST(MeshTraining, LossesMatchOneDeviceOnEveryMesh) {
  OneDeviceStrategy one("cpu:0");
  const Trained expected = train(one);
  for (const DeviceMesh& mesh :
       {DeviceMesh{{"data", 1}, {"model", 1}}, DeviceMesh{{"data", 4}, {"model", 1}},
        DeviceMesh{{"data", 1}, {"model", 4}}, DeviceMesh{{"data", 2}, {"model", 2}}}) {
    MeshStrategy strategy(on_mesh(mesh, kColumnsThenRows));
    const Trained trained = train(strategy);
    ASSERT_EQ(trained.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(trained.losses[i], expected.losses[i], 1e-5 * expected.losses[i])
          << mesh.to_string();
    }
  }
}

TEST(MeshTraining, EqualBlocksGiveEqualBitsOnEveryMesh) {
  const std::vector<MeshAxis> blocks = {{"data", 2}, {"model", 4}};
  std::vector<std::string> hashes;
  for (const DeviceMesh& mesh :
       {DeviceMesh{{"data", 1}, {"model", 1}}, DeviceMesh{{"data", 2}, {"model", 1}},
        DeviceMesh{{"data", 1}, {"model", 4}}, DeviceMesh{{"data", 2}, {"model", 2}}}) {
    MeshStrategy strategy(on_mesh(mesh, kColumnsThenRows, blocks));
    hashes.push_back(train(strategy).hash);
  }
  EXPECT_THAT(hashes, ::testing::Each(hashes.front()));
}

TEST(MeshTraining, DataAxisMatchesMirroredBitForBit) {
  MirroredStrategy mirrored(LocalStrategyOptions{.devices = "cpu:0-3"});
  MeshStrategy mesh(on_mesh({{"data", 4}}));
  EXPECT_EQ(train(mesh).hash, train(mirrored).hash);
}

TEST(MeshTraining, ShardingOverBatchAxisMatchesMirroredBitForBit) {
  MirroredStrategy mirrored(LocalStrategyOptions{.devices = "cpu:0-3"});
  const std::string expected = train(mirrored).hash;
  MeshStrategy stored_by_four(fully_sharded(4));
  EXPECT_EQ(train(stored_by_four).hash, expected);
  MeshStrategy stored_by_two(hybrid_sharded(2, 2));
  EXPECT_EQ(train(stored_by_two).hash, expected);
  MeshOptions options = fully_sharded(4);
  options.reshard_after_forward = false;
  MeshStrategy keeps_values(options);
  EXPECT_EQ(train(keeps_values).hash, expected);
}

/// Returns the bytes in use on device cpu:3 after a forward pass through eight layers of 64 KiB,
/// in the second step of Adam.
std::size_t bytes_after_forward(bool reshard_after_forward) {
  constexpr Device kLast{DeviceType::kCpu, 3};
  set_memory_limit(kLast, kUnlimitedMemory);  // counts its bytes separately from other devices'
  MeshOptions options = fully_sharded(4);
  options.reshard_after_forward = reshard_after_forward;
  std::size_t bytes = 0;
  {
    MeshStrategy strategy(options);
    const auto scope = strategy.scope();
    std::vector<Variable> layers;
    for (std::uint64_t i = 0; i < 8; ++i) {
      layers.emplace_back(numbers({128, 128}, i) * 0.05f,
                          VariableOptions{.name = concat("layer_", i)});
    }
    Adam optimizer(layers);
    for (int step = 0; step < 2; ++step) {
      strategy.run([&] {
        const ReplicaContext& context = ReplicaContext::current();
        GradientTape tape;
        Tensor x = Tensor::ones({2, 128}, DType::kFloat32, context.device());
        for (const Variable& layer : layers) x = tanh(matmul(x, layer.value()));
        const Tensor loss = reduce_sum(square(x));
        if (context.device() == kLast) bytes = device_memory(kLast).in_use;
        optimizer.minimize(tape, loss);
      });
    }
  }
  clear_memory_limit(kLast);
  return bytes;
}

TEST(MeshTraining, GatheredValuesAreReleasedAfterForwardPass) {
  constexpr double kAll = 8 * 128 * 128 * sizeof(float), kPart = kAll / 4;
  // Each device stores its shards of the weights and of two slots.
  EXPECT_NEAR(static_cast<double>(bytes_after_forward(true)), 3 * kPart, 0.1 * 3 * kPart);
  EXPECT_NEAR(static_cast<double>(bytes_after_forward(false)), kAll + 3 * kPart, 0.1 * kAll);
}

TEST(MeshTraining, WriteBetweenReadAndGradientFails) {
  const auto step = [](const MeshOptions& options) {
    MeshStrategy strategy(options);
    const auto scope = strategy.scope();
    Variable w(numbers({8, 8}, 1), {.name = "w"});
    strategy.run([w]() mutable {
      const Tensor x = Tensor::ones({2, 8});
      GradientTape tape;
      tape.watch(x);
      const Tensor y = matmul(x, w.value());
      w.assign_add(1.0);
      (void)tape.gradient(y, x);
    });
  };
  MeshOptions options = fully_sharded(2);
  EXPECT_THAT(message_of([&] { step(options); }),
              ::testing::HasSubstr("Variable 'w' was written after the step read it"));
  options.reshard_after_forward = false;
  step(options);
}

TEST(MeshTraining, SixteenBitReadsExchangeHalfTheBytes) {
  MeshStrategy strategy(fully_sharded(4));
  const auto scope = strategy.scope();
  const Variable w(Tensor::full({8, 32}, 1.5), {.name = "w"});
  std::vector<std::uint64_t> bytes;
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const std::uint64_t before = strategy.traffic()["all_gather"].bytes;
    strategy.run([&] {
      const AutocastScope types(type);
      const Tensor value = w.value();
      EXPECT_EQ(value.dtype(), type);
      EXPECT_THAT(value.to_doubles(), ::testing::Each(1.5));
    });
    bytes.push_back(strategy.traffic()["all_gather"].bytes - before);
  }
  // Each of four positions sends its quarter to the other three.
  EXPECT_THAT(bytes, ::testing::ElementsAre(4 * 3 * 8 * 8 * 4, 4 * 3 * 8 * 8 * 2));
}

TEST(MeshTraining, WorkersMatchOneProcessBitForBit) {
  // On a mesh with more blocks than devices, a worker's terms of a sum over both axes (such as the
  // gradient of the scale) are not consecutive.
  const OptimizerSpec spec = AdamOptions{.clipping = {.global_clipnorm = 0.1}};
  for (const std::vector<MeshAxis>& blocks :
       {std::vector<MeshAxis>(), std::vector<MeshAxis>{{"data", 4}, {"model", 4}}}) {
    const MeshOptions options = on_mesh({{"data", 2}, {"model", 2}}, kColumnsThenRows, blocks);
    MeshStrategy one(options);
    const Trained expected = train(one, spec);
    for (const int workers : {2, 4}) {
      auto communicators = in_process_communicators(workers);
      const auto errors = errors_of_ranks(workers, [&](int worker) {
        MeshStrategy strategy(std::move(communicators[static_cast<std::size_t>(worker)]), options);
        const Trained trained = train(strategy, spec);
        EXPECT_EQ(trained.hash, expected.hash);
        EXPECT_EQ(trained.losses, expected.losses);
      });
      EXPECT_THAT(errors, ::testing::Each(""));
    }
  }
}

/// Trains with one worker thread per mesh position, and expects the hash `expected` on each.
void expect_hash_of_workers(const std::string& expected, const MeshOptions& options) {
  const int workers = options.mesh.num_positions();
  auto communicators = in_process_communicators(workers);
  const auto errors = errors_of_ranks(workers, [&](int worker) {
    MeshStrategy strategy(std::move(communicators[static_cast<std::size_t>(worker)]), options);
    EXPECT_EQ(train(strategy).hash, expected);
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

TEST(MeshTraining, VariablesShardedOverWorkersMatchMirroredBitForBit) {
  MirroredStrategy mirrored(LocalStrategyOptions{.devices = "cpu:0-3"});
  const std::string expected = train(mirrored).hash;
  expect_hash_of_workers(expected, fully_sharded(4));
  expect_hash_of_workers(expected, hybrid_sharded(2, 2));
}

TEST(MeshTraining, WorkersGatherNextValueDuringLayerComputation) {
  const auto transports = in_process_transports(2, false);
  const auto errors = errors_of_ranks(2, [&](int worker) {
    const auto& transport = transports[static_cast<std::size_t>(worker)];
    MeshStrategy strategy(make_communicator(transport), fully_sharded(4));
    const auto scope = strategy.scope();
    const Variable a(Tensor::full({8, 16}, 1.0), {.name = "a"});
    const Variable b(Tensor::full({64, 16}, 2.0), {.name = "b"});
    const std::uint64_t halves_of_both = (8 + 64) * 16 * 4 / 2;
    for (int step = 0; step < 3; ++step) {
      const std::uint64_t before = transport->stats().bytes_sent;
      strategy.run([&] {
        EXPECT_THAT(a.value().to_doubles(), ::testing::Each(1.0));
        // The previous step recorded that b is read next, so the gather of b starts early.
        while (step > 0 && transport->stats().bytes_sent < before + halves_of_both) {
          Clock::system().sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_THAT(b.value().to_doubles(), ::testing::Each(2.0));
      });
    }
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

TEST(MeshTraining, ReorderedReadsOnWorkersSeeInterveningWrites) {
  auto communicators = in_process_communicators(2);
  const auto errors = errors_of_ranks(2, [&](int worker) {
    MeshStrategy strategy(std::move(communicators[static_cast<std::size_t>(worker)]),
                          fully_sharded(4));
    const auto scope = strategy.scope();
    const Variable a(Tensor::full({8, 16}, 1.0), {.name = "a"});
    Variable b(Tensor::full({8, 16}, 2.0), {.name = "b"});
    auto c = std::make_unique<Variable>(Tensor::full({8, 16}, 3.0), VariableOptions{.name = "c"});
    const auto expect = [](const Variable& variable, double value) {
      EXPECT_THAT(variable.value().to_doubles(), ::testing::Each(value));
    };
    const auto read_all = [&] { expect(a, 1.0), expect(b, 2.0), expect(*c, 3.0); };
    for (int i = 0; i < 2; ++i) strategy.run(read_all);
    strategy.run([&] { expect(*c, 3.0), expect(b, 2.0), expect(a, 1.0); });
    for (int i = 0; i < 2; ++i) strategy.run([&] { expect(a, 1.0), expect(b, 2.0); });
    strategy.run([&] {
      expect(a, 1.0);
      b.assign(Tensor::full({8, 16}, 4.0));  // the gather of b is in progress
      expect(b, 4.0);
    });
    strategy.run([&] { expect(*c, 3.0), expect(b, 4.0), expect(a, 1.0); });
    c.reset();
    strategy.run([&] { expect(a, 1.0), expect(b, 4.0); });
    expect(b, 4.0);
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

/// Optimizer that needs more than the gradient of a shard: norms of full variables or gradients,
/// earlier gradients, averages, or a scale that depends on all gradients.
struct OptimizerCase {
  std::string name;
  OptimizerSpec optimizer;
};

std::ostream& operator<<(std::ostream& out, const OptimizerCase& c) { return out << c.name; }

class MeshOptimizers : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(MeshOptimizers, MatchOneDevice) {
  OneDeviceStrategy one("cpu:0");
  const Trained expected = train(one, GetParam().optimizer, DType::kFloat64);
  for (const DeviceMesh& mesh :
       {DeviceMesh{{"data", 4}, {"model", 1}}, DeviceMesh{{"data", 1}, {"model", 4}},
        DeviceMesh{{"data", 2}, {"model", 2}}}) {
    MeshStrategy strategy(on_mesh(mesh, kColumnsThenRows));
    const Trained found = train(strategy, GetParam().optimizer, DType::kFloat64);
    for (std::size_t i = 0; i < expected.weights.size(); ++i) {
      SCOPED_TRACE(concat(mesh.to_string(), ", variable ", i));
      testing::expect_near(found.weights[i], expected.weights[i], 1e-12);
    }
  }
}

TEST_P(MeshOptimizers, AreBitIdenticalForFixedBlocks) {
  const std::vector<MeshAxis> blocks = {{"data", 2}, {"model", 2}};
  std::vector<std::string> hashes;
  for (const DeviceMesh& mesh :
       {DeviceMesh{{"data", 1}, {"model", 1}}, DeviceMesh{{"data", 2}, {"model", 1}},
        DeviceMesh{{"data", 1}, {"model", 2}}, DeviceMesh{{"data", 2}, {"model", 2}}}) {
    MeshStrategy strategy(on_mesh(mesh, kColumnsThenRows, blocks));
    hashes.push_back(train(strategy, GetParam().optimizer).hash);
  }
  EXPECT_THAT(hashes, ::testing::Each(hashes.front()));
  auto communicators = in_process_communicators(2);
  const auto errors = errors_of_ranks(2, [&](int worker) {
    MeshStrategy strategy(std::move(communicators[static_cast<std::size_t>(worker)]),
                          on_mesh({{"data", 1}, {"model", 2}}, kColumnsThenRows, blocks));
    EXPECT_EQ(train(strategy, GetParam().optimizer).hash, hashes.front());
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

INSTANTIATE_TEST_SUITE_P(
    All, MeshOptimizers,
    ::testing::Values(
        OptimizerCase{"lamb", LambOptions{.learning_rate = 0.01}},
        OptimizerCase{"lars", LarsOptions{.learning_rate = 1.0}},
        OptimizerCase{"clipnorm", SgdOptions{.clipping = {.clipnorm = 0.5}}},
        OptimizerCase{"global_clipnorm", AdamOptions{.clipping = {.global_clipnorm = 0.5}}},
        OptimizerCase{"accumulation", LambOptions{.gradient_accumulation_steps = 2}},
        OptimizerCase{"average", AdamOptions{.ema = EmaOptions{.overwrite_frequency = 2}}},
        OptimizerCase{"loss_scale", SgdOptions{.dynamic_loss_scale = DynamicLossScaleOptions{}}}),
    [](const auto& info) { return info.param.name; });

TEST(MeshTraining, MatmulPairNeedsOneAllReducePerDirection) {
  MeshStrategy strategy({.mesh = {{"data", 1}, {"model", 2}}, .layout = kColumnsThenRows});
  const auto scope = strategy.scope();
  const std::vector<Variable> w = {Variable(numbers({8, 32}, 3), {.name = "dense/kernel"}),
                                   Variable(numbers({32}, 4), {.name = "dense/bias"}),
                                   Variable(numbers({32, 4}, 5), {.name = "dense_1/kernel"}),
                                   Variable(numbers({8}, 6), {.name = "scale"})};
  Sgd optimizer(w, {.learning_rate = 0.1});
  const std::uint64_t before = strategy.cross_device_ops().bytes_reduced();
  strategy.run([&] {
    GradientTape tape;
    const Tensor x = tanh(numbers({16, 8}, 1) * w[3].value());
    const Tensor y =
        matmul(dense(x, w[0].value(), w[1].value(), FusedActivation::kRelu), w[2].value());
    optimizer.minimize(tape, reduce_sum(square(y)));
  });
  // Each of the two mesh positions has one term of the result [16, 4] and one of the gradient of x
  // [16, 8].
  EXPECT_EQ(strategy.cross_device_ops().bytes_reduced() - before, 2u * 4 * (16 * 4 + 16 * 8));
}

TEST(MeshTraining, ClippingUsesNormsOfUnshardedGradients) {
  const std::vector<Tensor> gradients = {numbers({8, 4}, 1), numbers({4}, 2), numbers({6}, 3)};
  for (const ClippingOptions& options :
       {ClippingOptions{.global_clipnorm = 0.5}, ClippingOptions{.clipnorm = 0.5}}) {
    const std::vector<Gradient> expected =
        clip_gradients({gradients.begin(), gradients.end()}, options);
    MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 2}}));
    const auto clipped = strategy.run([&] {
      return clip_gradients({relayout(gradients[0], {"data", "model"}),
                             relayout(gradients[1], {"model"}), gradients[2]},
                            options);
    });
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::vector<double> found = clipped[0][i].dense().to_doubles();
      const std::vector<double> wanted = expected[i].dense().to_doubles();
      EXPECT_THAT(found, ::testing::Pointwise(::testing::DoubleNear(1e-6), wanted));
    }
  }
}

/// Returns the output of attention for inputs in this layout, and the gradients with respect to the
/// inputs.
std::vector<Tensor> attention_and_gradients(const Layout& layout) {
  GradientTape tape;
  std::vector<Tensor> inputs, sharded;
  for (const std::uint64_t seed : {1, 2, 3}) {
    inputs.push_back(numbers({2, 4, 6, 5}, seed));
    tape.watch(inputs.back());
    sharded.push_back(relayout(inputs.back(), layout));
  }
  const Tensor y = attention(sharded[0], sharded[1], sharded[2], {.is_causal = true});
  std::vector<Tensor> results = {y};
  for (const Gradient& gradient : tape.gradient(reduce_sum(square(y)), inputs)) {
    results.push_back(gradient.to_dense());
  }
  return results;
}

TEST(MeshAttention, SwitchesFromSequenceShardsToHeadShards) {
  const std::vector<Tensor> expected = attention_and_gradients({});
  MeshStrategy strategy(on_mesh({{"data", 1}, {"sequence", 2}}));
  const auto found = strategy.run([] { return attention_and_gradients({"", "", "sequence", ""}); });
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::vector<double> wanted = expected[i].to_doubles();
    EXPECT_THAT(found[0][i].to_doubles(),
                ::testing::Pointwise(::testing::DoubleNear(1e-5), wanted));
  }
  const auto traffic = strategy.traffic();
  // The forward pass exchanges three inputs and the result; the backward pass exchanges five
  // tensors that are sharded by sequence, and three gradients. A mesh position has a shard [2, 4,
  // 3, 5] of each tensor; it keeps half of the shard's elements and sends the other half.
  EXPECT_GE(traffic.at("all_to_all").bytes, 2u * (4 + 3) * (2 * 4 * 3 * 5 * 4) / 2);
}

TEST(MeshTraining, BatchSizeNeedNotBeDivisibleByAxis) {
  for (const bool is_sharded : {false, true}) {
    const std::vector<MeshAxis> axes = {{"data", is_sharded ? 4 : 1}};
    MeshStrategy strategy(on_mesh(DeviceMesh(axes)));
    const Dataset data = Dataset::from_tensor_slices({numbers({10, 3}, 1)}).batch(6);
    std::vector<double> sums;
    for (const auto& batch : strategy.distribute_dataset(data)) {
      const auto sum =
          strategy.run([](const Batch& part) { return reduce_sum(part.features()); }, batch);
      sums.push_back(sum[0].item_double());
    }
    ASSERT_EQ(sums.size(), 2u);
    EXPECT_NEAR(sums[0] + sums[1], reduce_sum(numbers({10, 3}, 1)).item_double(), 1e-5);
  }
}

TEST(MeshTraining, TrainsModelLargerThanOneDevice) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const auto step = [](Strategy& strategy) {
    const auto scope = strategy.scope();
    const std::vector<Variable> w = {
        Variable(Tensor::zeros({512, 2048}, DType::kFloat32, Device{}), {.name = "dense/kernel"}),
        Variable(Tensor::zeros({2048, 512}, DType::kFloat32, Device{}),
                 {.name = "dense_1/kernel"})};
    Adam optimizer(w);
    strategy.run([&] {
      GradientTape tape;
      const Tensor x = Tensor::ones({4, 512});
      const Tensor y = matmul(relu(matmul(x, w[0].value())), w[1].value());
      optimizer.minimize(tape, reduce_sum(square(y - 1.0)));
    });
  };
  // Two weights of 4 MiB each, with their gradients and two slots: 32 MiB in total.
  for (int i = 1; i <= 4; ++i) set_memory_limit({DeviceType::kCpu, i}, 16 * kMiB);
  MeshOptions options = on_mesh({{"data", 1}, {"model", 4}}, kColumnsThenRows);
  options.local.devices = "cpu:1-4";
  MeshStrategy mesh(options);
  EXPECT_EQ(message_of([&] { step(mesh); }), "");
  OneDeviceStrategy one("cpu:1");
  EXPECT_THAT(message_of([&] { step(one); }), ::testing::HasSubstr("cpu:1"));
  for (int i = 1; i <= 4; ++i) clear_memory_limit({DeviceType::kCpu, i});
}

}  // namespace
}  // namespace tutti::mesh_tests

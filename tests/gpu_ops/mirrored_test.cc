// Tests strategies over GPUs: gradient sums on the GPUs, shards, bits equal to the CPU's, memory of
// each GPU.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tensor/gpu_device.h"
#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tests/strategy/toy_training.h"
#include "tests/support/ranks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/captured_step.h"
#include "tutti/strategy/fully_sharded_strategy.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/testing/strategy/suite.h"

namespace tutti::mirrored_test {
using gpu_ops_tests::expect_tensor;
using gpu_ops_tests::gpu;
using strategy_tests::train;
using strategy_tests::Trained;
using ::testing::Each;
using ::testing::HasSubstr;

LocalStrategyOptions on_devices(const char* devices, const std::string& ops = "") {
  LocalStrategyOptions options;
  options.devices = devices;
  if (!ops.empty()) options.cross_device_ops = make_cross_device_ops(ops);
  options.deterministic = ops.empty() || ops == "nccl" || ops == "ring" ? false : true;
  return options;
}

/// Trains three SGD steps on sum((w * x_r)^2) + sum(b); returns the final weights.
std::vector<Tensor> trained(Strategy& strategy) {
  auto scope = strategy.scope();
  Variable w(Tensor::from<float>({5}, {1.5f, -2.25f, 0.3f, 1e-3f, 7}), {.name = "w"});
  Variable b(Tensor::from<float>({2}, {0.1f, 0.7f}), {.name = "b"});
  Sgd optimizer(std::vector<Variable>{w, b}, {.learning_rate = 0.01});
  for (int step = 0; step < 3; ++step) {
    strategy.run([&] {
      const ReplicaContext& replica = ReplicaContext::current();
      const float part = 0.37f * static_cast<float>(replica.replica_id() + 1);
      const Tensor x =
          Tensor::from<float>({5}, {part, 1 / part, part * part, 3, -part}, replica.device());
      GradientTape tape;
      const Tensor y = w.value() * x;
      const Tensor loss = reduce_sum(y * y) + reduce_sum(b.value());
      optimizer.minimize(tape, loss);
    });
  }
  for (const Variable& variable : {w, b}) {
    const std::vector<Tensor> copies = variable.storage().local_components();
    for (const Tensor& copy : copies) {
      testing::expect_same_bits(copy.to(Device{}), copies[0].to(Device{}));
    }
  }
  return {w.value().to(Device{}), b.value().to(Device{})};
}

TEST(MirroredOnGpus, DefaultsToAllGpusAndNccl) {
  const int count = static_cast<int>(logical_gpus().size());
  ASSERT_GE(count, 4);
  MirroredStrategy strategy;
  EXPECT_EQ(strategy.num_replicas_in_sync(), count);
  EXPECT_EQ(strategy.worker_devices(), gpu_ops_tests::gpus(count));
  EXPECT_EQ(strategy.cross_device_ops().name(), "nccl");
}

TEST(MirroredOnGpus, CanonicalHasTheBitsOfTheCpu) {
  MirroredStrategy cpus(on_devices("cpu:0-1", "canonical"));
  const std::vector<Tensor> expected = trained(cpus);
  for (const char* ops : {"canonical", "hierarchical_copy", "reduction_to_one_device"}) {
    MirroredStrategy strategy(on_devices("gpu:0-1", ops));
    const std::vector<Tensor> got = trained(strategy);
    testing::expect_same_bits(got[0], expected[0]);
    testing::expect_same_bits(got[1], expected[1]);
  }
}

// Runs the strategy suite on a backend with its own reductions that is known only through the
// plugin interface.
TEST(MirroredOnGpus, PluggedInBackendPassesTheStrategySuite) {
  const auto mirrored = [](const char* devices, const char* ops) {
    return [=] { return std::make_unique<MirroredStrategy>(on_devices(devices, ops)); };
  };
  const auto central = [] {
    return std::make_unique<CentralStorageStrategy>(
        CentralStorageOptions{on_devices("gpu:0-1", "canonical"), Device{}});
  };
  for (const conformance::StrategySubject& subject :
       {conformance::StrategySubject{"one_gpu", mirrored("gpu:0", "canonical")},
        {"mirrored_2_gpus", mirrored("gpu:0-1", "canonical")},
        {"mirrored_3_gpus_nccl", mirrored("gpu:0-2", "nccl"), /*is_canonical=*/false},
        {"central_2_gpus", central}}) {
    const conformance::StrategyReport report = run_strategy_suite(subject);
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_EQ(report.num_checks, conformance::strategy_checks().size());
  }
}

TEST(MirroredOnGpus, NcclTrainsTheSameTwice) {
  MirroredStrategy cpus(on_devices("cpu:0-2", "canonical"));
  const std::vector<Tensor> expected = trained(cpus);
  const thrown::LogLines log;
  MirroredStrategy strategy(on_devices("gpu:0-2"));
  EXPECT_EQ(strategy.cross_device_ops().name(), "nccl");
  EXPECT_THAT(log.text(), HasSubstr("reduction nccl"));
  const std::vector<Tensor> got = trained(strategy), again = trained(strategy);
  for (std::size_t i = 0; i < got.size(); ++i) {
    expect_tensor(got[i], expected[i].shape(), expected[i].to_doubles(), 1e-5);
    testing::expect_same_bits(got[i], again[i]);
  }
}

TEST(MirroredOnGpus, CentralStorageAndOneDeviceTrainToo) {
  CentralStorageStrategy on_cpus({on_devices("cpu:0-1", "canonical"), Device{}});
  const std::vector<Tensor> expected = trained(on_cpus);
  for (const Device parameters : {Device{}, gpu(1)}) {
    CentralStorageStrategy strategy({on_devices("gpu:0-1", "canonical"), parameters});
    const std::vector<Tensor> got = trained(strategy);
    for (std::size_t i = 0; i < got.size(); ++i) testing::expect_same_bits(got[i], expected[i]);
  }
  OneDeviceStrategy cpu("cpu:0"), one("gpu:3");
  const std::vector<Tensor> alone = trained(cpu), got = trained(one);
  for (std::size_t i = 0; i < got.size(); ++i) testing::expect_same_bits(got[i], alone[i]);
}

TEST(MirroredOnGpus, CpusAmongGpusAndCompressionAreRefused) {
  EXPECT_ERROR(MirroredStrategy strategy(on_devices("cpu:0,gpu:0")), kUnimplemented, "mirrored",
               "cpu:0", "gpu:0");
  LocalStrategyOptions options = on_devices("gpu:0-1");
  options.cross_device_ops.options.compression = WireCompression::kBFloat16;
  EXPECT_ERROR(MirroredStrategy strategy(options), kUnimplemented, "compression bfloat16", "gpu:0");
  options = on_devices("gpu:0-1");
  options.deterministic = true;
  EXPECT_EQ(MirroredStrategy(options).cross_device_ops().name(), "canonical");
}

/// Small packs give several buckets.
LocalStrategyOptions on(const std::string& devices, std::size_t bytes_per_pack = 300) {
  LocalStrategyOptions options;
  options.devices = devices;
  options.deterministic = true;
  options.cross_device_ops.options.bytes_per_pack = bytes_per_pack;
  return options;
}

FullyShardedOptions sharded_on(const std::string& devices, int stage,
                               bool reshard_after_forward = true) {
  return {.local = on(devices),
          .stage = stage,
          .reshard_after_forward = reshard_after_forward,
          .min_shard_bytes = 0};
}

void expect_same(const Trained& got, const Trained& expected, const std::string& name) {
  EXPECT_EQ(got.weights, expected.weights) << name;
  EXPECT_EQ(got.slots, expected.slots) << name;
  EXPECT_EQ(got.losses, expected.losses) << name;
}

TEST(FullyShardedOnGpus, EveryStageHasMirroredsBitsOfTheSameGpus) {
  for (const char* devices : {"gpu:0-1", "gpu:0-2", "gpu:0-3"}) {
    MirroredStrategy mirrored(on(devices));
    const Trained expected = train(mirrored);
    for (const int stage : {1, 2, 3}) {
      FullyShardedStrategy strategy(sharded_on(devices, stage));
      expect_same(train(strategy), expected, concat(devices, ", stage ", stage));
    }
    FullyShardedStrategy kept(sharded_on(devices, 3, false));
    expect_same(train(kept), expected, concat(devices, ", values kept"));
  }
}

TEST(FullyShardedOnGpus, EveryOperationHasMirroredsBits) {
  for (const char* ops : {"hierarchical_copy", "reduction_to_one_device", "nccl"}) {
    FullyShardedOptions options = sharded_on("gpu:0-2", 3);
    options.local.cross_device_ops.name = ops;
    options.local.deterministic = std::nullopt;
    MirroredStrategy mirrored(options.local);
    FullyShardedStrategy strategy(options);
    expect_same(train(strategy), train(mirrored), ops);
  }
}

using Variables = std::vector<Variable>;

/// Trains weights that no number of replicas divides evenly (one is smaller than the number of
/// shards), rows of a table, and layers that compute in 16 bits.
std::string trained(Strategy& strategy, const OptimizerSpec& spec) {
  const auto scope = strategy.scope();
  const auto weight = [](const Shape& shape, std::uint64_t number) {
    return Variable(random_normal(shape, RandomKey{3, kUserPurpose, number, 0, 0}),
                    {.name = concat("w", number)});
  };
  Variables all = {weight({7, 37}, 1), weight({3}, 2), weight({37, 3}, 3), weight({23, 5}, 4)};
  const auto optimizer = make_optimizer(spec, all);
  for (int step = 0; step < 4; ++step) {
    strategy.run([&] {
      const ReplicaContext& context = ReplicaContext::current();
      const auto r = static_cast<std::uint64_t>(context.replica_id());
      const Tensor x =
          random_normal({2, 7}, RandomKey{4, kUserPurpose, r, 0, 0}).to(context.device());
      const Tensor rows = Tensor::from<std::int64_t>({3}, {step, 22 - context.replica_id(), step},
                                                     context.device());
      GradientTape tape;
      const auto forward = [&] {
        const AutocastScope types(DType::kBFloat16);
        const Tensor hidden = matmul(cast(x, DType::kBFloat16), all[0].value());
        const Tensor y = cast(matmul(hidden, all[2].value()) + all[1].value(), DType::kFloat32);
        const Tensor of_rows = cast(gather(all[3].value(), rows), DType::kFloat32);
        return reduce_sum(square(y)) + reduce_sum(square(of_rows));
      };
      optimizer->minimize(tape, forward());
    });
  }
  for (const Variable& state : optimizer->state_variables()) all.push_back(state);
  return hash_variables(all);
}

TEST(FullyShardedOnGpus, EveryOptimizerHasMirroredsBits) {
  const std::vector<std::pair<std::string, OptimizerSpec>> optimizers = {
      {"adam", "adam"},
      {"lamb", "lamb"},
      {"lars", "lars"},
      {"clipnorm", SgdOptions{.clipping = {.clipnorm = 0.1}}},
      {"global_clipnorm", AdamOptions{.clipping = {.global_clipnorm = 0.1}}},
      {"average", SgdOptions{.ema = EmaOptions{.momentum = 0.5, .overwrite_frequency = 2}}},
      {"accumulation", SgdOptions{.gradient_accumulation_steps = 2}},
      {"loss_scale", AdamOptions{.dynamic_loss_scale = DynamicLossScaleOptions{.growth_steps = 2}}},
  };
  for (const auto& [name, spec] : optimizers) {
    MirroredStrategy mirrored(on("gpu:0-2"));
    const std::string expected = trained(mirrored, spec);
    for (const int stage : {1, 3}) {
      FullyShardedStrategy strategy(sharded_on("gpu:0-2", stage));
      EXPECT_EQ(trained(strategy, spec), expected) << name << ", stage " << stage;
    }
  }
}

TEST(FullyShardedOnGpus, PassesTheSuiteOfStrategies) {
  for (const int stage : {1, 3}) {
    const conformance::StrategySubject subject{
        concat("fully_sharded_2_gpus_stage_", stage),
        [stage] { return std::make_unique<FullyShardedStrategy>(sharded_on("gpu:0-1", stage)); }};
    const conformance::StrategyReport report = run_strategy_suite(subject);
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_EQ(report.num_checks, conformance::strategy_checks().size());
  }
}

/// Returns the weights after six steps, captured where possible; the host reads the value before
/// each.
std::string trained_in_captured_steps(Strategy& strategy, int& num_captured) {
  const auto scope = strategy.scope();
  const Variables weights = {Variable(Tensor::full({40, 5}, 0.5), {.name = "w"})};
  Adam optimizer(weights);
  const auto step = captured([&](const Tensor& x) {
    GradientTape tape;
    const Tensor loss = reduce_sum(square(matmul(x, weights[0].value())));
    optimizer.minimize(tape, loss);
    return loss;
  });
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(weights[0].value().num_elements(), 200);
    strategy.run([&] {
      const ReplicaContext& context = ReplicaContext::current();
      const double value = 0.25 * (i + 1) * (context.replica_id() + 1);
      step(Tensor::full({3, 40}, value, DType::kFloat32, context.device()));
    });
  }
  num_captured = step.num_captured();
  Variables all = optimizer.state_variables();
  all.push_back(weights[0]);
  return hash_variables(all);
}

TEST(FullyShardedOnGpus, StepsAreCapturedAndReplayed) {
  int num_captured = 0;
  MirroredStrategy mirrored(on("gpu:0-1"));
  const std::string expected = trained_in_captured_steps(mirrored, num_captured);
  for (const int stage : {1, 2, 3}) {
    FullyShardedStrategy strategy(sharded_on("gpu:0-1", stage));
    EXPECT_EQ(trained_in_captured_steps(strategy, num_captured), expected) << stage;
    EXPECT_EQ(num_captured, 1) << stage;
  }
}

/// Returns each worker's training result when `reduction` sums the gradients.
std::vector<Trained> trained_by_workers(const std::vector<FullyShardedOptions>& options,
                                        std::string_view reduction) {
  const auto workers = static_cast<int>(options.size());
  auto transports = in_process_transports(workers, false);
  std::vector<Trained> trained(options.size());
  const auto errors = errors_of_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    FullyShardedStrategy strategy(make_communicator(transports[w]), options[w]);
    EXPECT_EQ(strategy.reduction_name(), reduction);
    trained[w] = train(strategy);
  });
  EXPECT_THAT(errors, Each(""));
  return trained;
}

TEST(FullyShardedOnGpus, WorkersWhoseSumsGoByNcclHaveOneState) {
  std::vector<FullyShardedOptions> options = {sharded_on("gpu:0-1", 3), sharded_on("gpu:2-3", 3)};
  for (FullyShardedOptions& each : options) each.local.deterministic = std::nullopt;
  const std::vector<Trained> trained = trained_by_workers(options, "nccl");
  expect_same(trained[1], trained[0], "the other worker");
}

TEST(FullyShardedOnGpus, WorkersHaveTheBitsOfOneProcess) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> teams = {
      {"gpu:0-3", {"gpu:0-1", "gpu:2-3"}},
      {"gpu:0-2", {"gpu:0", "gpu:1-2"}},
      {"gpu:0-3", {"gpu:0-1", "gpu:2", "gpu:3"}}};
  for (const auto& [together, apart] : teams) {
    MirroredStrategy mirrored(on(together));
    const Trained expected = train(mirrored);
    for (const int stage : {1, 3}) {
      std::vector<FullyShardedOptions> options;
      for (const std::string& devices : apart) options.push_back(sharded_on(devices, stage));
      for (const Trained& each : trained_by_workers(options, "canonical")) {
        expect_same(each, expected, concat(join(apart), ", stage ", stage));
      }
    }
  }
}

}  // namespace tutti::mirrored_test

// Tests strategies on GPUs, with one or several workers: gradient sums on the GPUs, shards,
// bit-identity with CPU results, and the memory of each GPU.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/in_process/in_process_transport.h"

#include <limits>

#include "tensor/gpu_device.h"
#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tests/strategy/toy_training.h"
#include "tests/support/ranks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/captured_step.h"
#include "tutti/strategy/fully_sharded_strategy.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/testing/strategy/suite.h"

namespace tutti::testing::strategies_test {

using strategy_tests::train;
using strategy_tests::Trained;

LocalStrategyOptions on_devices(const char* devices, const std::string& ops = "") {
  LocalStrategyOptions options;
  options.devices = devices;
  if (!ops.empty()) options.cross_device_ops = make_cross_device_ops(ops);
  options.deterministic = ops.empty() || ops == "nccl" || ops == "ring" ? false : true;
  return options;
}

/// Trains w and b for three SGD steps on sum((w * x_r)^2) + sum(b); returns their final values.
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
      expect_same_bits(copy.to(Device{}), copies[0].to(Device{}));
    }
  }
  return {w.value().to(Device{}), b.value().to(Device{})};
}

TEST(MirroredOnGpus, DefaultsToAllGpusAndNccl) {
  const int count = static_cast<int>(logical_gpus().size());
  ASSERT_GE(count, 4);
  MirroredStrategy strategy;
  EXPECT_EQ(strategy.num_replicas_in_sync(), count);
  EXPECT_EQ(strategy.worker_devices(), gpus(count));
  EXPECT_EQ(strategy.cross_device_ops().name(), "nccl");
}

TEST(MirroredOnGpus, CanonicalMatchesCpuBitwise) {
  MirroredStrategy cpus(on_devices("cpu:0-1", "canonical"));
  const std::vector<Tensor> expected = trained(cpus);
  for (const char* ops : {"canonical", "hierarchical_copy", "reduction_to_one_device"}) {
    MirroredStrategy strategy(on_devices("gpu:0-1", ops));
    const std::vector<Tensor> got = trained(strategy);
    expect_same_bits(got[0], expected[0]);
    expect_same_bits(got[1], expected[1]);
  }
}

// Runs the strategy suite on a backend that has its own reductions and that tutti accesses only
// through the plugin interface.
TEST(MirroredOnGpus, BackendWithPluginInterfacePassesStrategySuite) {
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

TEST(MirroredOnGpus, NcclTrainingIsReproducible) {
  MirroredStrategy cpus(on_devices("cpu:0-2", "canonical"));
  const std::vector<Tensor> expected = trained(cpus);
  const LogLines log;
  MirroredStrategy strategy(on_devices("gpu:0-2"));
  EXPECT_EQ(strategy.cross_device_ops().name(), "nccl");
  EXPECT_THAT(log.text(), HasSubstr("reduction nccl"));
  const std::vector<Tensor> got = trained(strategy), again = trained(strategy);
  for (std::size_t i = 0; i < got.size(); ++i) {
    expect_tensor(got[i], expected[i].shape(), expected[i].to_doubles(), 1e-5);
    expect_same_bits(got[i], again[i]);
  }
}

TEST(MirroredOnGpus, CentralStorageAndOneDeviceMatchCpuBitwise) {
  CentralStorageStrategy on_cpus({on_devices("cpu:0-1", "canonical"), Device{}});
  const std::vector<Tensor> expected = trained(on_cpus);
  for (const Device parameters : {Device{}, gpu(1)}) {
    CentralStorageStrategy strategy({on_devices("gpu:0-1", "canonical"), parameters});
    const std::vector<Tensor> got = trained(strategy);
    for (std::size_t i = 0; i < got.size(); ++i) expect_same_bits(got[i], expected[i]);
  }
  OneDeviceStrategy cpu("cpu:0"), one("gpu:3");
  const std::vector<Tensor> alone = trained(cpu), got = trained(one);
  for (std::size_t i = 0; i < got.size(); ++i) expect_same_bits(got[i], alone[i]);
}

TEST(MirroredOnGpus, RejectsMixedDevicesAndCompression) {
  EXPECT_ERROR(MirroredStrategy strategy(on_devices("cpu:0,gpu:0")), kUnimplemented, "mirrored",
               "cpu:0", "gpu:0");
  LocalStrategyOptions options = on_devices("gpu:0-1");
  options.cross_device_ops.options.compression = WireCompression::kBFloat16;
  EXPECT_ERROR(MirroredStrategy strategy(options), kUnimplemented, "compression bfloat16", "gpu:0");
  options = on_devices("gpu:0-1");
  options.deterministic = true;
  EXPECT_EQ(MirroredStrategy(options).cross_device_ops().name(), "canonical");
}

/// Returns options with small packs, so that gradients form several buckets.
LocalStrategyOptions in_small_packs(const std::string& devices, std::size_t bytes_per_pack = 300) {
  LocalStrategyOptions options;
  options.devices = devices;
  options.deterministic = true;
  options.cross_device_ops.options.bytes_per_pack = bytes_per_pack;
  return options;
}

FullyShardedOptions sharded_on(const std::string& devices, int stage,
                               bool reshard_after_forward = true) {
  return {.local = in_small_packs(devices),
          .stage = stage,
          .reshard_after_forward = reshard_after_forward,
          .min_shard_bytes = 0};
}

void expect_same(const Trained& got, const Trained& expected, const std::string& name) {
  EXPECT_EQ(got.weights, expected.weights) << name;
  EXPECT_EQ(got.slots, expected.slots) << name;
  EXPECT_EQ(got.losses, expected.losses) << name;
}

TEST(FullyShardedOnGpus, EveryStageMatchesMirroredBitwise) {
  for (const char* devices : {"gpu:0-1", "gpu:0-2", "gpu:0-3"}) {
    MirroredStrategy mirrored(in_small_packs(devices));
    const Trained expected = train(mirrored);
    for (const int stage : {1, 2, 3}) {
      FullyShardedStrategy strategy(sharded_on(devices, stage));
      expect_same(train(strategy), expected, concat(devices, ", stage ", stage));
    }
    FullyShardedStrategy kept(sharded_on(devices, 3, false));
    expect_same(train(kept), expected, concat(devices, ", values kept"));
  }
}

TEST(FullyShardedOnGpus, EveryOperationMatchesMirroredBitwise) {
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

/// Trains three weights and a table, mostly in bfloat16; some of their sizes are not multiples of
/// the number of replicas. Returns a hash of all variables.
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

TEST(FullyShardedOnGpus, EveryOptimizerMatchesMirroredBitwise) {
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
    MirroredStrategy mirrored(in_small_packs("gpu:0-2"));
    const std::string expected = trained(mirrored, spec);
    for (const int stage : {1, 3}) {
      FullyShardedStrategy strategy(sharded_on("gpu:0-2", stage));
      EXPECT_EQ(trained(strategy, spec), expected) << name << ", stage " << stage;
    }
  }
}

TEST(FullyShardedOnGpus, PassesStrategySuite) {
  for (const int stage : {1, 3}) {
    const conformance::StrategySubject subject{
        concat("fully_sharded_2_gpus_stage_", stage),
        [stage] { return std::make_unique<FullyShardedStrategy>(sharded_on("gpu:0-1", stage)); }};
    const conformance::StrategyReport report = run_strategy_suite(subject);
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_EQ(report.num_checks, conformance::strategy_checks().size());
  }
}

/// Trains for six steps, which are captured where possible; the host reads the weights before each
/// step. Returns a hash of the variables.
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
  MirroredStrategy mirrored(in_small_packs("gpu:0-1"));
  const std::string expected = trained_in_captured_steps(mirrored, num_captured);
  for (const int stage : {1, 2, 3}) {
    FullyShardedStrategy strategy(sharded_on("gpu:0-1", stage));
    EXPECT_EQ(trained_in_captured_steps(strategy, num_captured), expected) << stage;
    EXPECT_EQ(num_captured, 1) << stage;
  }
}

/// Trains on in-process workers, which must use `reduction`. Returns each worker's result.
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

TEST(FullyShardedOnGpus, NcclWorkersKeepIdenticalState) {
  std::vector<FullyShardedOptions> options = {sharded_on("gpu:0-1", 3), sharded_on("gpu:2-3", 3)};
  for (FullyShardedOptions& each : options) each.local.deterministic = std::nullopt;
  const std::vector<Trained> trained = trained_by_workers(options, "nccl");
  expect_same(trained[1], trained[0], "the other worker");
}

TEST(FullyShardedOnGpus, WorkersMatchOneProcessBitwise) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> teams = {
      {"gpu:0-3", {"gpu:0-1", "gpu:2-3"}},
      {"gpu:0-2", {"gpu:0", "gpu:1-2"}},
      {"gpu:0-3", {"gpu:0-1", "gpu:2", "gpu:3"}}};
  for (const auto& [together, apart] : teams) {
    MirroredStrategy mirrored(in_small_packs(together));
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

using strategy_tests::numbers;

using Implementation = CommunicationImplementation;
using WorkerBody = std::function<void(MultiWorkerMirroredStrategy&)>;

/// Returns options with small packs, so that gradients form several buckets.
LocalStrategyOptions on(const std::string& devices,
                        Implementation implementation = Implementation::kCanonical) {
  LocalStrategyOptions options;
  options.devices = devices;
  options.cross_device_ops.options.bytes_per_pack = 300;
  options.cross_device_ops.options.implementation = implementation;
  return options;
}

std::vector<std::string> run_on(const std::vector<LocalStrategyOptions>& options,
                                const WorkerBody& body) {
  const auto workers = static_cast<int>(options.size());
  auto transports = in_process_transports(workers, false);
  return errors_of_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    MultiWorkerMirroredStrategy strategy(make_communicator(transports[w]), options[w]);
    body(strategy);
  });
}

void expect_fine(const std::vector<LocalStrategyOptions>& options, const WorkerBody& body) {
  EXPECT_THAT(run_on(options, body), Each(""));
}

std::vector<LocalStrategyOptions> workers_on(const std::vector<std::string>& devices,
                                             Implementation implementation) {
  std::vector<LocalStrategyOptions> options;
  for (const std::string& each : devices) options.push_back(on(each, implementation));
  return options;
}

TEST(MultiWorkerGpus, HostReductionMatchesOneProcessBitwise) {
  MirroredStrategy two(on("gpu:0-1")), four(on("gpu:0-3"));
  const std::map<int, Trained> expected = {{2, train(two)}, {4, train(four)}};
  for (const std::vector<std::string>& devices : {std::vector<std::string>{"gpu:0", "gpu:1"},
                                                  {"gpu:0-1", "gpu:2-3"},
                                                  {"gpu:0-2", "gpu:3"},
                                                  {"gpu:0", "gpu:1-2", "gpu:3"}}) {
    std::vector<Trained> trained(devices.size());
    int replicas = 0;
    expect_fine(workers_on(devices, Implementation::kCanonical),
                [&](MultiWorkerMirroredStrategy& strategy) {
                  if (strategy.worker() == 0) replicas = strategy.num_replicas_in_sync();
                  trained[static_cast<std::size_t>(strategy.worker())] = train(strategy);
                });
    for (const Trained& each : trained) {
      EXPECT_EQ(each.weights, expected.at(replicas).weights) << join(devices);
      EXPECT_EQ(each.slots, expected.at(replicas).slots) << join(devices);
      EXPECT_EQ(each.losses, expected.at(replicas).losses) << join(devices);
    }
  }
}

/// Sums random gradients in three steps, and returns the sums of the first local replica.
std::vector<double> sums_of(Strategy& strategy, DType dtype) {
  const auto scope = strategy.scope();
  const std::vector<Variable> variables{Variable(Tensor::zeros({20'000}, dtype), {.name = "a"}),
                                        Variable(Tensor::zeros({7}, dtype), {.name = "b"})};
  std::vector<double> all;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto sums = strategy.run([&] {
      ReplicaContext& context = ReplicaContext::current();
      const auto r = static_cast<std::uint64_t>(context.replica_id());
      GradientReducer& reducer = *GradientReducer::current();
      reducer.begin(variables);
      for (std::size_t i = 2; i-- > 0;) {
        const Tensor random =
            random_normal(variables[i].shape(), RandomKey{3, kUserPurpose, r, step, i});
        reducer.ready(i, cast(random, dtype).to(context.device()));
      }
      const std::vector<Gradient> reduced = reducer.finish();
      reducer.updates_done();
      return concat({reduced[0].dense(), reduced[1].dense()}, 0);
    });
    EXPECT_EQ(sums[0].dtype(), dtype);
    for (const double value : numbers(sums[0])) all.push_back(value);
  }
  return all;
}

TEST(MultiWorkerGpus, EveryTypeAndWorkerLayoutMatchesCpusBitwise) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    MirroredStrategy cpus(on("cpu:0-2"));
    const std::vector<double> expected = sums_of(cpus, dtype);
    for (const std::vector<std::string>& devices : {std::vector<std::string>{"gpu:0-1", "gpu:2"},
                                                    {"cpu:0-1", "gpu:0"},
                                                    {"gpu:1", "cpu:0-1"}}) {
      std::vector<std::vector<double>> sums(devices.size());
      expect_fine(workers_on(devices, Implementation::kAuto),
                  [&](MultiWorkerMirroredStrategy& strategy) {
                    if (devices[0] != "gpu:0-1") {
                      EXPECT_EQ(strategy.reduction_name(), "canonical");
                    }
                    sums[static_cast<std::size_t>(strategy.worker())] = sums_of(strategy, dtype);
                  });
      if (devices[0] == "gpu:0-1") {  // NCCL adds in a different order
        EXPECT_EQ(sums[0], sums[1]);
        for (std::size_t i = 0; i < expected.size(); i += 97) {
          EXPECT_NEAR(sums[0][i], expected[i], 0.04) << dtype;
        }
        continue;
      }
      for (const auto& each : sums) EXPECT_EQ(each, expected) << dtype << " " << join(devices);
    }
  }
}

/// Runs one step. Replica r gets the gradient that `give` returns for it. Returns each worker's
/// error and weights.
template <class Give>
std::pair<std::vector<std::string>, std::vector<std::vector<double>>> one_step(
    Implementation implementation, NonFinitePolicy policy, const Give& give) {
  std::vector<LocalStrategyOptions> options = workers_on({"gpu:0-1", "gpu:2"}, implementation);
  for (auto& each : options) each.cross_device_ops.options.non_finite = policy;
  std::vector<std::vector<double>> weights(2);
  auto errors = run_on(options, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    Variable w(Tensor::zeros({2, 1}), {.name = "w"});
    Variable b(Tensor::zeros({1}), {.name = "b"});
    Sgd sgd(std::vector<Variable>{w, b}, {.learning_rate = 1.0});
    strategy.run([&] {
      ReplicaContext& context = ReplicaContext::current();
      const Gradient one(Tensor::ones({1}, DType::kFloat32, context.device()));
      const Gradient gradient = give(context.replica_id(), context.device());
      sgd.apply_gradients(std::vector<Gradient>{gradient, one});
    });
    expect_tensor(b.value(), {1}, {policy == NonFinitePolicy::kSkip ? 0.0 : -3.0});
    weights[static_cast<std::size_t>(strategy.worker())] = numbers(w.value());
  });
  return {errors, weights};
}

Gradient column(float a, float b, Device device) {
  return Tensor::from<float>({2, 1}, {a, b}, device);
}
Gradient row(std::int64_t index, float value, Device device) {
  return IndexedSlices{Tensor::from<float>({1, 1}, {value}, device),
                       Tensor::from<std::int64_t>({1}, {index}, device), Shape{2, 1}};
}

using Weights = std::vector<std::vector<double>>;

TEST(MultiWorkerGpus, SparseMixedAndMissingGradientsAreSummed) {
  for (const Implementation implementation : {Implementation::kCanonical, Implementation::kNccl}) {
    const auto step = [&](const auto& give) {
      const auto [errors, weights] = one_step(implementation, NonFinitePolicy::kIgnore, give);
      EXPECT_THAT(errors, Each(""));
      return weights;
    };
    EXPECT_EQ(step([](int r, Device d) { return r == 2 ? Gradient() : column(1, 2, d); }),
              (Weights{{-2, -4}, {-2, -4}}));
    EXPECT_EQ(step([](int r, Device d) { return r < 2 ? Gradient() : column(1, 2, d); }),
              (Weights{{-1, -2}, {-1, -2}}));
    EXPECT_EQ(step([](int r, Device d) { return row(r % 2, 1.0f + static_cast<float>(r), d); }),
              (Weights{{-4, -2}, {-4, -2}}));
    EXPECT_EQ(step([](int r, Device d) { return r < 2 ? row(1, 5, d) : column(1, 1, d); }),
              (Weights{{-1, -11}, {-1, -11}}));
    EXPECT_EQ(step([](int r, Device d) { return r == 0 ? row(1, 5, d) : column(1, 1, d); }),
              (Weights{{-2, -7}, {-2, -7}}));
  }
}

TEST(MultiWorkerGpus, NonFiniteGradientsCauseErrorOrSkippedStep) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Implementation implementation : {Implementation::kCanonical, Implementation::kNccl}) {
    for (const int bad : {1, 2}) {
      const auto give = [&](int r, Device d) { return column(1, r == bad ? nan : 1.0f, d); };
      for (const std::string& error :
           one_step(implementation, NonFinitePolicy::kError, give).first) {
        EXPECT_THAT(error, HasSubstr(concat(
                               "Variable 'w' is not finite at flat index 1 on replica ", bad)));
      }
      EXPECT_EQ(one_step(implementation, NonFinitePolicy::kSkip, give).second,
                (Weights{{0, 0}, {0, 0}}));
    }
  }
}

TEST(MultiWorkerGpus, SupportsEveryCollectiveAndVariableKind) {
  expect_fine(workers_on({"gpu:0-1", "gpu:2"}, Implementation::kCanonical), [](auto& strategy) {
    auto scope = strategy.scope();
    Variable count(Tensor::scalar(0, DType::kInt64),
                   {.name = "count",
                    .trainable = false,
                    .synchronization = VariableSynchronization::kOnRead,
                    .aggregation = VariableAggregation::kSum});
    Variable mean(Tensor::from<float>({2}, {0, 0}),
                  {.name = "mean", .trainable = false, .aggregation = VariableAggregation::kMean});
    Variable rows(Tensor::zeros({3, 1}),
                  {.name = "rows", .trainable = false, .aggregation = VariableAggregation::kSum});
    const auto results = strategy.run([&] {
      ReplicaContext& replica = ReplicaContext::current();
      const float own = static_cast<float>(replica.replica_id() + 1);
      const Tensor x = Tensor::from<float>({2}, {own, 2 * own}, replica.device());
      count.assign_add(Tensor::scalar(5, DType::kInt64, replica.device()));
      mean.assign(x);
      const auto index = static_cast<std::int64_t>(replica.replica_id());
      rows.scatter_add({Tensor::from<float>({1, 1}, {own}, replica.device()),
                        Tensor::from<std::int64_t>({1}, {index}, replica.device()), Shape{3, 1}});
      const Tensor sum = replica.all_reduce(ReduceOp::kSum, x);
      EXPECT_EQ(sum.device(), replica.device());
      return concat({sum, replica.all_gather(x, 0)}, 0);
    });
    for (std::size_t r = 0; r < results.size(); ++r) {
      EXPECT_EQ(results[r].device(), strategy.replica_devices()[r]);
      expect_tensor(results[r], {8}, {6, 12, 1, 2, 2, 4, 3, 6});
    }
    expect_tensor(count.value(), {}, {15});
    expect_tensor(mean.value(), {2}, {2, 4});
    for (const Tensor& copy : mean.storage().local_components()) expect_tensor(copy, {2}, {2, 4});
    expect_tensor(rows.value(), {3, 1}, {1, 2, 3});
    count.assign(Tensor::scalar(7, DType::kInt64));
    expect_tensor(count.value(), {}, {7});
    expect_tensor(strategy.reduce(ReduceOp::kSum, results), {8}, {18, 36, 3, 6, 6, 12, 9, 18});
    expect_tensor(strategy.reduce(ReduceOp::kMean, results, 0), {}, {4.5});
    EXPECT_EQ(strategy.gather(results, 0).shape(), Shape{24});
    const auto ten = strategy.run([] { return ReplicaContext::current().replica_id() * 10; });
    EXPECT_EQ(ten[0], strategy.first_replica() * 10);
  });
}

TEST(MultiWorkerGpus, UncapturedStepIsLogged) {
  const LogLines log;
  expect_fine(workers_on({"gpu:0", "gpu:1"}, Implementation::kCanonical), [](auto& strategy) {
    auto scope = strategy.scope();
    Variable w(Tensor::from<float>({1}, {1}), {.name = "w"});
    Sgd sgd(std::vector<Variable>{w}, {.learning_rate = 0.25});
    const auto step = captured([&] {
      GradientTape tape;
      sgd.minimize(tape, reduce_sum(w.value()));
    });
    for (int i = 0; i < 4; ++i) strategy.run(step);
    EXPECT_EQ(step.num_captured(), 0);
    expect_tensor(w.value(), {1}, {-1});
  });
  EXPECT_THAT(log.text(), HasSubstr("with several workers; each call runs the function"));
}

TEST(MultiWorkerGpus, NcclFormsOneGroupOfAllGpus) {
  MirroredStrategy four(on("gpu:0-3"));
  const Trained expected = train(four);
  for (const std::vector<std::string>& devices :
       {std::vector<std::string>{"gpu:0-1", "gpu:2-3"}, {"gpu:0", "gpu:1-3"}}) {
    take_nccl_notes();
    std::vector<Trained> trained(2);
    std::vector<std::vector<double>> losses(2);
    expect_fine(workers_on(devices, Implementation::kNccl), [&](auto& strategy) {
      EXPECT_EQ(strategy.reduction_name(), "nccl");
      trained[static_cast<std::size_t>(strategy.worker())] = train(strategy);
    });
    EXPECT_EQ(trained[0].weights, trained[1].weights);
    EXPECT_EQ(trained[0].losses, trained[1].losses);
    EXPECT_FALSE(trained[0].losses.empty());
    const std::string notes = take_nccl_notes();
    EXPECT_THAT(notes, HasSubstr("init rank 0 of 4 GPU 0\n"));
    EXPECT_THAT(notes, HasSubstr("init rank 3 of 4 GPU 3\n"));
    EXPECT_EQ(notes.find('!'), std::string::npos);  // the simulation recorded no misuse
  }
}

TEST(MultiWorkerGpus, AutoSelectsSupportedNcclAndLogsReason) {
  const auto line_of = [](const std::vector<std::string>& devices, std::string_view expected) {
    const LogLines log;
    expect_fine(workers_on(devices, Implementation::kAuto),
                [&](auto& strategy) { EXPECT_EQ(strategy.reduction_name(), expected); });
    return log.text();
  };
  EXPECT_THAT(line_of({"gpu:0-1", "gpu:2"}, "nccl"),
              HasSubstr("sums across workers: nccl, because each replica has a GPU of its own"));
  EXPECT_THAT(
      line_of({"gpu:0", "gpu:0"}, "canonical"),
      HasSubstr("sums across workers: canonical, because workers 0 and 1 both use the GPU"));
  EXPECT_THAT(line_of({"gpu:0", "cpu:0"}, "canonical"),
              HasSubstr("canonical, because worker 1 has replicas on cpu:0"));
  EXPECT_THAT(line_of({"cpu:0", "cpu:0"}, "canonical"),
              HasSubstr("canonical, because no replica is on a GPU"));
  std::vector<LocalStrategyOptions> options = workers_on({"gpu:0", "gpu:1"}, Implementation::kAuto);
  for (auto& each : options) each.deterministic = true;
  expect_fine(options, [](auto& strategy) { EXPECT_EQ(strategy.reduction_name(), "canonical"); });
}

TEST(MultiWorkerGpus, SingleWorkerBehavesLikeMirroredStrategy) {
  for (const auto& [implementation, name] : {std::pair(Implementation::kAuto, "nccl"),
                                             {Implementation::kNccl, "nccl"},
                                             {Implementation::kRing, "ring"},
                                             {Implementation::kCanonical, "canonical"}}) {
    MirroredStrategy mirrored(on("gpu:0-2", implementation));
    const std::vector<double> expected = sums_of(mirrored, DType::kFloat32);
    const std::string algorithm = name;  // clang 14 cannot capture a structured binding
    expect_fine({on("gpu:0-2", implementation)}, [&](auto& strategy) {
      EXPECT_EQ(strategy.reduction_name(), algorithm);
      EXPECT_EQ(sums_of(strategy, DType::kFloat32), expected);
    });
  }
  expect_fine({on("gpu:1", Implementation::kAuto)}, [&](auto& strategy) {
    EXPECT_EQ(sums_of(strategy, DType::kFloat32).size(), 3 * 20'007u);
  });
}

TEST(MultiWorkerGpus, UnusableNcclIsRejectedOnEveryWorker) {
  const auto refusal = [](const std::vector<std::string>& devices, int replicas = 0) {
    std::vector<LocalStrategyOptions> options = workers_on(devices, Implementation::kNccl);
    for (auto& each : options) each.replicas = replicas;
    return run_on(options, [](auto&) {});
  };
  EXPECT_THAT(refusal({"gpu:0", "cpu:0"}), Each(HasSubstr("worker 1 has replicas on cpu:0")));
  EXPECT_THAT(refusal({"gpu:0", "gpu:0"}), Each(HasSubstr("workers 0 and 1 both use the GPU")));
  EXPECT_THAT(refusal({"gpu:0", "gpu:1"}, 4),
              Each(HasSubstr("worker 0 has replicas 0 and 1 on one GPU, 0")));
  std::vector<LocalStrategyOptions> options = workers_on({"gpu:0", "gpu:1"}, Implementation::kNccl);
  for (auto& each : options) each.deterministic = true;
  EXPECT_THAT(run_on(options, [](auto&) {}),
              Each(HasSubstr("'nccl' does not add in canonical order")));
  for (auto& each : options) {
    each.deterministic = false;
    each.cross_device_ops.options.timeout = std::chrono::milliseconds(400);
  }
  const Environment faults("TUTTI_SIMULATED_NCCL", "init_never:1");
  EXPECT_THAT(run_on(options, [](auto&) {}),
              Each(HasSubstr("worker 0: nccl: rank 0 (gpu:0): making communicators of 2 ranks")));
}

/// Worker 1 fails in its backward pass, possibly while worker 0 is waiting for worker 1's sums.
TEST(MultiWorkerGpus, ErrorOnOneWorkerStopsAllWorkersAndNamesThatWorker) {
  for (const Implementation implementation : {Implementation::kCanonical, Implementation::kNccl}) {
    const auto errors =
        run_on(workers_on({"gpu:0-1", "gpu:2"}, implementation), [](auto& strategy) {
          const auto scope = strategy.scope();
          std::vector<Variable> variables{Variable(Tensor::zeros({300}), {.name = "a"}),
                                          Variable(Tensor::zeros({300}), {.name = "b"})};
          strategy.run([&] {
            const Device device = ReplicaContext::current().device();
            GradientReducer& reducer = *GradientReducer::current();
            reducer.begin(variables);
            reducer.ready(1, Tensor::ones({300}, DType::kFloat32, device));
            if (ReplicaContext::current().replica_id() == 2) {
              fail(ErrorCode::kResourceExhausted, "Running out of resources");
            }
            reducer.ready(0, Tensor::ones({300}, DType::kFloat32, device));
            reducer.finish();
            reducer.updates_done();
          });
        });
    EXPECT_THAT(errors, Each(HasSubstr("replica 2, step 0: Running out of resources")));
  }
}

TEST(MultiWorkerGpus, NcclErrorEndsStepOnEveryWorker) {
  std::vector<LocalStrategyOptions> options = workers_on({"gpu:0", "gpu:1"}, Implementation::kNccl);
  for (auto& each : options) {
    each.cross_device_ops.options.timeout = std::chrono::milliseconds(1000);
  }
  take_nccl_notes();  // discards the notes about earlier launches
  const Environment faults("TUTTI_SIMULATED_NCCL", "async_error:1");
  const auto errors = run_on(options, [](auto& strategy) { sums_of(strategy, DType::kFloat32); });
  EXPECT_THAT(errors, Each(HasSubstr("nccl: rank")));
  EXPECT_THAT(concat(errors[0], errors[1]),
              HasSubstr("injected: the connection to the peer was lost"));
  take_nccl_notes();
}

TEST(MultiWorkerGpus, CompressionOnGpusIsRefused) {
  std::vector<LocalStrategyOptions> options =
      workers_on({"gpu:0", "gpu:1"}, Implementation::kCanonical);
  for (auto& each : options) {
    each.cross_device_ops.options.compression = WireCompression::kBFloat16;
  }
  EXPECT_THAT(run_on(options, [](auto&) {}), Contains(HasSubstr("compression bfloat16")));
}

}  // namespace tutti::testing::strategies_test

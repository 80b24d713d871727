// Strategies over GPUs: gradients summed there, with the bits of the CPU and without waiting.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/testing/strategy/suite.h"

namespace tutti {
namespace {

using gpu_ops_tests::expect_error;
using gpu_ops_tests::expect_tensor;
using gpu_ops_tests::gpu;
using ::testing::HasSubstr;

LocalStrategyOptions on_devices(const char* devices, const std::string& ops = "") {
  LocalStrategyOptions options;
  options.devices = devices;
  if (!ops.empty()) options.cross_device_ops = make_cross_device_ops(ops);
  options.deterministic = ops.empty() || ops == "nccl" || ops == "ring" ? false : true;
  return options;
}

/// Three steps of SGD on sum((w * x_r)^2) + sum(b); the weights at the end.
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

// A backend that the host program knows by its plug-in interface alone, with reductions of its own,
// under everything that strategies promise.
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

TEST(MirroredOnGpus, ValuesThatAreNotFiniteAreFoundByEveryPolicy) {
  for (const NonFinitePolicy policy :
       {NonFinitePolicy::kError, NonFinitePolicy::kSkip, NonFinitePolicy::kZero}) {
    for (const char* devices : {"gpu:0-1", "gpu:1"}) {
      LocalStrategyOptions options = on_devices(devices, "canonical");
      options.cross_device_ops.options.non_finite = policy;
      MirroredStrategy strategy(options);
      auto scope = strategy.scope();
      Variable w(Tensor::from<float>({3}, {1, 1, 1}), {.name = "w"});
      Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 1.0});
      const int last = strategy.num_replicas_in_sync() - 1;
      const auto step = [&] {
        strategy.run([&] {
          const ReplicaContext& replica = ReplicaContext::current();
          const bool bad = replica.replica_id() == last;
          const float nan = std::numeric_limits<float>::quiet_NaN();
          const Tensor x =
              Tensor::from<float>({3}, {0.25f, bad ? nan : 0.25f, 0.25f}, replica.device());
          GradientTape tape;
          optimizer.minimize(tape, reduce_sum(w.value() * x));
        });
      };
      const double all = 1 - 0.25 * (last + 1), others = 1 - 0.25 * last;
      if (policy == NonFinitePolicy::kError) {
        expect_error(ErrorCode::kOutOfRange, {"'w'", "flat index 1", concat("replica ", last)},
                     step);
        expect_tensor(w.value(), {3}, {1, 1, 1});
      } else if (policy == NonFinitePolicy::kSkip) {
        step();
        expect_tensor(w.value(), {3}, {1, 1, 1});
      } else {
        step();
        expect_tensor(w.value(), {3}, {all, others, all});
      }
    }
  }
}

TEST(MirroredOnGpus, RowsOfEmbeddingsAreSummed) {
  MirroredStrategy strategy(on_devices("gpu:0-1", "canonical"));
  auto scope = strategy.scope();
  Variable table(Tensor::zeros({4, 2}), {.name = "table"});
  Sgd optimizer(std::vector<Variable>{table}, {.learning_rate = 1.0});
  strategy.run([&] {
    const ReplicaContext& replica = ReplicaContext::current();
    const Tensor rows =
        Tensor::from<std::int64_t>({2}, {replica.replica_id(), 3}, replica.device());
    GradientTape tape;
    optimizer.minimize(tape, reduce_sum(gather(table, rows)));
  });
  expect_tensor(table.value(), {4, 2}, {-1, -1, -1, -1, 0, 0, -2, -2});
}

TEST(MirroredOnGpus, CpusAmongGpusAndCompressionAreRefused) {
  expect_error(ErrorCode::kUnimplemented, {"mirrored", "cpu:0", "gpu:0"},
               [] { MirroredStrategy strategy(on_devices("cpu:0,gpu:0")); });
  LocalStrategyOptions options = on_devices("gpu:0-1");
  options.cross_device_ops.options.compression = WireCompression::kBFloat16;
  expect_error(ErrorCode::kUnimplemented, {"compression bfloat16", "gpu:0"},
               [&] { MirroredStrategy strategy(options); });
  options = on_devices("gpu:0-1");
  options.deterministic = true;
  EXPECT_EQ(MirroredStrategy(options).cross_device_ops().name(), "canonical");
}

TEST(MirroredOnGpus, AFailingReplicaIsNamedAndNothingHangs) {
  MirroredStrategy strategy(on_devices("gpu:0-1", "nccl"));
  auto scope = strategy.scope();
  Variable w(Tensor::from<float>({2}, {1, 1}), {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 1.0});
  const auto step = [&](bool fails) {
    strategy.run([&] {
      const ReplicaContext& replica = ReplicaContext::current();
      GradientTape tape;
      const Tensor loss = reduce_sum(w.value() * w.value());
      if (fails && replica.replica_id() == 1) fail(ErrorCode::kOutOfRange, "no more data");
      optimizer.minimize(tape, loss);
    });
  };
  EXPECT_ERROR(step(true), kOutOfRange, "replica 1, step 0", "no more data");
  expect_tensor(w.value(), {2}, {1, 1});
  step(false);
  expect_tensor(w.value(), {2}, {-3, -3});
}

}  // namespace
}  // namespace tutti

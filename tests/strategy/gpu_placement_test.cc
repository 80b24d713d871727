// Tests strategies without a list of devices, and the placement of central variables, with no, one
// and several GPUs.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/fake_gpu.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::strategy_tests::gpu_placement_test {

using testing::FakeGpus;

/// Avoids a choice that depends on NCCL's view of simulated GPUs.
LocalStrategyOptions in_canonical_order() {
  LocalStrategyOptions options;
  options.deterministic = true;
  return options;
}

std::vector<Device> first_gpus(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({DeviceType::kGpu, i});
  return devices;
}

/// Returns the devices of the replicas' tensors.
std::vector<Device> computing_devices(Strategy& strategy) {
  std::vector<Device> devices;
  for (const Tensor& tensor : strategy.run([] { return num(1.0); })) {
    devices.push_back(tensor.device());
  }
  return devices;
}

TEST(GpuPlacement, MirroredStrategyDefaultsToAllGpus) {
  for (const int count : {0, 1, 2, 5}) {
    SCOPED_TRACE(count);
    const FakeGpus gpus(count);
    MirroredStrategy strategy(in_canonical_order());
    EXPECT_EQ(strategy.num_replicas_in_sync(), std::max(count, 1));
    const std::vector<Device> expected =
        count == 0 ? std::vector<Device>{Device{}} : first_gpus(count);
    EXPECT_EQ(strategy.worker_devices(), expected);
    EXPECT_EQ(computing_devices(strategy), expected);
  }
}

// The host cannot touch this memory: any access by it ends the program.
TEST(GpuPlacement, ShardsAreOnTheirGpusAndTheHostLeavesThemAlone) {
  const FakeGpus gpus(2);
  LocalStrategyOptions options = in_canonical_order();
  options.devices = "gpu:0-1";
  for (const int stage : {1, 2, 3}) {
    FullyShardedStrategy strategy({.local = options, .stage = stage, .min_shard_bytes = 0});
    const auto scope = strategy.scope();
    const Variable variable(Tensor::full({40, 2}, 3.0), {.name = "v"});
    Sgd sgd(std::vector<Variable>{variable}, {.learning_rate = 0.5});
    EXPECT_EQ(variable.storage().devices(), first_gpus(2));
    const auto read = strategy.run([&] {
      const AutocastScope types(DType::kBFloat16);
      GradientTape tape;
      const Tensor value = variable.value();
      sgd.minimize(tape, reduce_sum(cast(value, DType::kFloat32)));
      return value;
    });
    for (std::size_t r = 0; r < read.size(); ++r) {
      EXPECT_EQ(read[r].device(), first_gpus(2)[r]);
      EXPECT_EQ(numbers(read[r]), copies_of(3.0, 80));
    }
    EXPECT_EQ(numbers(variable.value()), copies_of(2.0, 80));
  }
}

TEST(GpuPlacement, CentralVariablesAreOnTheHostUnlessThereIsOneGpu) {
  for (const int count : {0, 1, 2}) {
    SCOPED_TRACE(count);
    const FakeGpus gpus(count);
    CentralStorageStrategy strategy({.local = in_canonical_order()});
    const auto scope = strategy.scope();
    const Variable variable(Tensor::ones({3}), {.name = "v"});
    const Device home = count == 1 ? Device{DeviceType::kGpu, 0} : Device{};
    EXPECT_EQ(strategy.parameter_devices(), std::vector<Device>{home});
    EXPECT_EQ(variable.storage().devices(), std::vector<Device>{home});
    const std::vector<Device> expected =
        count == 0 ? std::vector<Device>{Device{}} : first_gpus(count);
    EXPECT_EQ(computing_devices(strategy), expected);
    // Each replica reads the variable on its own device.
    const auto read = strategy.run([&] { return variable.value(); });
    for (std::size_t r = 0; r < read.size(); ++r) EXPECT_EQ(read[r].device(), expected[r]);
  }
}

}  // namespace tutti::strategy_tests::gpu_placement_test

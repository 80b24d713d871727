// What strategies take without a list of devices, and where central variables are: no GPU, one GPU,
// several.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/fake_gpu.h"

namespace tutti::strategy_tests {
namespace gpu_placement_test {

using testing::FakeGpus;

/// No choice by what NCCL says of GPUs that are none.
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

/// Where the replicas' tensors are.
std::vector<Device> computing_devices(Strategy& strategy) {
  std::vector<Device> devices;
  for (const Tensor& tensor : strategy.run([] { return num(1.0); })) {
    devices.push_back(tensor.device());
  }
  return devices;
}

TEST(GpuPlacement, S2_05_MIR_17_WithoutAListMirroredStrategyTakesEveryGpu) {
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

TEST(GpuPlacement, ShardsOnGpusAreRefusedByName) {
  const FakeGpus gpus(2);
  LocalStrategyOptions options = in_canonical_order();
  options.devices = "gpu:0-1";
  EXPECT_TUTTI_ERROR(FullyShardedStrategy{options}, ErrorCode::kUnimplemented,
                     "fully_sharded: replicas on gpu:0; expected devices of CPUs");
}

TEST(GpuPlacement, S2_16_CentralVariablesAreOnTheHostUnlessThereIsOneGpu) {
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
    // Each replica reads it where it computes.
    const auto read = strategy.run([&] { return variable.value(); });
    for (std::size_t r = 0; r < read.size(); ++r) EXPECT_EQ(read[r].device(), expected[r]);
  }
}

}  // namespace gpu_placement_test
}  // namespace tutti::strategy_tests

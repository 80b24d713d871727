// GPUs of this test program: two simulated ones, unless the environment names a module.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tests/gpu/gpu_helpers.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {
namespace {

class SimulatedGpus final : public ::testing::Environment {
 public:
  void SetUp() override {
    ::setenv("TUTTI_CUDA_MODULE", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
    ::setenv("TUTTI_SIMULATED_GPUS", "2", /*overwrite=*/0);
    // The module also contains the simulated NCCL; the real library detects no GPU here.
    ::setenv("TUTTI_NCCL_LIBRARY", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
    ASSERT_GE(logical_gpus().size(), 2u) << gpu_unavailable_reason();
  }
};

const ::testing::Environment* const kSimulatedGpus =
    ::testing::AddGlobalTestEnvironment(std::make_unique<SimulatedGpus>().release());

TEST(SimulatedGpus, AreWhatStrategiesTakeByDefault) {
  ASSERT_NE(kSimulatedGpus, nullptr);
  const std::vector<Device> devices = default_devices();
  ASSERT_EQ(devices.size(), logical_gpus().size());
  EXPECT_EQ(devices.front(), gpu_tests::kGpu);
}

}  // namespace
}  // namespace tutti

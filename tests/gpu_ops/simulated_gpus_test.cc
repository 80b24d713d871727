// Where the tests of reductions on GPUs have their four GPUs and their NCCL from.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <memory>

#include "gtest/gtest.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {
namespace {

/// Simulated, unless the environment names other ones.
class SimulatedMachine final : public ::testing::Environment {
 public:
  void SetUp() override {
    ::setenv("TUTTI_CUDA_MODULE", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
    ::setenv("TUTTI_NCCL_LIBRARY", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
    ::setenv("TUTTI_SIMULATED_GPUS", "4", /*overwrite=*/0);
  }
};

const ::testing::Environment* const kMachine =
    ::testing::AddGlobalTestEnvironment(std::make_unique<SimulatedMachine>().release());

TEST(SimulatedMachine, HasFourGpus) {
  ASSERT_NE(kMachine, nullptr);
  EXPECT_GE(logical_gpus().size(), 4u) << gpu_unavailable_reason();
}

}  // namespace
}  // namespace tutti

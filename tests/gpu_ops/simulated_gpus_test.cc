// Where the tests of reductions on GPUs have their four GPUs and their NCCL from.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "gtest/gtest.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {
namespace {

/// Set before anything looks for GPUs; what the environment says counts more.
const bool kMachineIsSet = [] {
  ::setenv("TUTTI_CUDA_MODULE", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
  ::setenv("TUTTI_NCCL_LIBRARY", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
  ::setenv("TUTTI_SIMULATED_GPUS", "4", /*overwrite=*/0);
  return true;
}();

TEST(SimulatedMachine, HasFourGpus) {
  ASSERT_TRUE(kMachineIsSet);
  EXPECT_GE(logical_gpus().size(), 4u) << gpu_unavailable_reason();
}

}  // namespace
}  // namespace tutti

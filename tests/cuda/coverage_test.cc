// GPUs have a kernel for everything that the CPU computes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "tests/cuda/device_call.h"

namespace tutti {
namespace cuda_coverage_test {

TEST(CudaKernels, CoverEveryOperationAndTypeOfTheCpu) {
  std::string missing;
  for (int number = 0; number < static_cast<int>(OpId::kCount); ++number) {
    const OpId op = static_cast<OpId>(number);
    for (const DType dtype : kAllDTypes) {
      if (!testing::cpu_has(op, dtype) || testing::device_kernels().find(op, dtype)) continue;
      missing += concat(to_string(op), " ", dtype, "\n");
    }
  }
  EXPECT_EQ(missing, "");
}

}  // namespace cuda_coverage_test
}  // namespace tutti

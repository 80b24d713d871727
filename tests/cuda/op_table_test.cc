// The table of operations on simulated GPUs.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/op_table.h"

#include "tests/cuda/device_call.h"

namespace tutti {
namespace cuda_op_table_test {

using testing::device_kernels;
using testing::OpBackend;
using testing::run_on_device;

bool cuda_has(OpId op, DType dtype) { return device_kernels().find(op, dtype) != nullptr; }

std::vector<std::vector<Tensor>> run_on_gpu(std::span<const OpCall> calls) {
  std::vector<std::vector<Tensor>> results;
  for (const OpCall& call : calls) results.push_back(run_on_device(call));
  return results;
}

/// All tensors of a call begin 1, 2 or 3 elements behind an aligned address.
std::vector<std::vector<Tensor>> run_off_alignment(std::span<const OpCall> calls) {
  std::vector<std::vector<Tensor>> results;
  for (const OpCall& call : calls) {
    results.push_back(run_on_device(call, {.misalignment = 1 + results.size() % 3}));
  }
  return results;
}

const OpBackend kCuda{"cuda", cuda_has, run_on_gpu};
const OpBackend kUnaligned{"cuda, not aligned", cuda_has, run_off_alignment};

class CudaKernels : public testing::OpTableTest {};

TEST_P(CudaKernels, AgreeWithTheReference) { expect_agreement(kCuda, GetParam()); }

TEST_P(CudaKernels, AgreeOnTensorsThatAreNotAligned) { expect_agreement(kUnaligned, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Operations, CudaKernels, ::testing::ValuesIn(testing::op_families()),
                         testing::family_name);

TEST(CudaOpTable, CoversEveryOperationAndTypeOfTheCpu) {
  expect_cases_of_all_kernels(kCuda);
  std::string missing;
  for (int number = 0; number < static_cast<int>(OpId::kCount); ++number) {
    const OpId op = static_cast<OpId>(number);
    for (const DType dtype : kAllDTypes) {
      if (!testing::reference_has(op, dtype) || cuda_has(op, dtype)) continue;
      missing += concat(to_string(op), " ", dtype, "\n");
    }
  }
  EXPECT_EQ(missing, "");
}

}  // namespace cuda_op_table_test
}  // namespace tutti

// The table of operations on the kernels of cpu devices.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/op_table.h"

#include <algorithm>

#include "tensor/kernel_table.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace cpu_op_table_test {

using testing::OpBackend;
using testing::OpCase;
using testing::reference_has;

bool cpu_has(OpId op, DType dtype) {
  return cpu_kernels().find(op, dtype) != nullptr ||
         (is_half(dtype) && cpu_kernels().find(op, DType::kFloat32) != nullptr);
}

std::vector<std::vector<Tensor>> run_on_cpu(std::span<const OpCall> calls) {
  std::vector<std::vector<Tensor>> results;
  for (const OpCall& call : calls) results.push_back(run_kernel(cpu_kernels(), call));
  return results;
}

/// All but these give the bits of the reference kernels: they add in the same order.
double cpu_ulps(const OpCase& c) {
  const auto is_between = [&](OpId first, OpId last) {
    return c.call.op >= first && c.call.op <= last;
  };
  if (is_between(OpId::kMatMul, OpId::kBiasGrad) ||
      is_between(OpId::kBatchNormTraining, OpId::kGroupNormGrad) ||
      is_between(OpId::kAttention, OpId::kAttentionGrad))
    return c.ulps;
  return c.has_special_numbers ? std::min(c.ulps, 1.0) : 0.0;
}

const OpBackend kCpu{"cpu", cpu_has, run_on_cpu, cpu_ulps};

class CpuKernels : public testing::OpTableTest {};

TEST_P(CpuKernels, AgreeWithTheReference) { expect_agreement(kCpu, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Operations, CpuKernels, ::testing::ValuesIn(testing::op_families()),
                         testing::family_name);

/// For these families float64 has the reference kernels alone, so the table compares it with
/// itself.
TEST(ReferenceKernels, AgreeInFloat32AndFloat64) {
  for (const char* family : {"products", "convolutions", "pooling", "normalization", "attention"}) {
    for (const OpCase& c : testing::op_family(family).cases()) {
      if (c.call.inputs[0].dtype() != DType::kFloat32) continue;
      SCOPED_TRACE(c.name());
      OpCall wide = c.call;
      for (Tensor& input : wide.inputs) input = cast(input, DType::kFloat64);
      for (TensorSpec& output : wide.outputs) output.dtype = DType::kFloat64;
      const std::vector<Tensor> expected = run_kernel(reference_kernels(), wide);
      const std::vector<Tensor> actual = run_kernel(reference_kernels(), c.call);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t k = 0; k < expected.size(); ++k) {
        testing::expect_close(actual[k], cast(expected[k], DType::kFloat32), c.ulps);
      }
    }
  }
}

TEST(OpTable, HasCasesOfEveryOperationAndType) {
  expect_cases_of_all_kernels(kCpu);
  for (int number = 0; number < static_cast<int>(OpId::kCount); ++number) {
    const OpId op = static_cast<OpId>(number);
    EXPECT_TRUE(std::ranges::any_of(kAllDTypes, [&](DType dtype) {
      return reference_has(op, dtype) && cpu_has(op, dtype);
    })) << to_string(op);
  }
}

}  // namespace cpu_op_table_test
}  // namespace tutti

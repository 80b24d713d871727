// Runs the table of operations as steps that XLA compiles.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/op_table.h"

#include <algorithm>

#include "tensor/xla/emitters.h"
#include "tests/xla/xla_test_support.h"
#include "tutti/tensor/dispatch.h"

namespace tutti {
namespace xla_op_table_test {

using testing::OpBackend;
using testing::OpCase;

/// Omits float16, which XLA handles like bfloat16, to save compile time.
bool xla_has(OpId op, DType dtype) {
  if (dtype == DType::kFloat16) return false;
  const bool is_of_floats = op == OpId::kPower || op == OpId::kFloorDivide || op == OpId::kFloorMod;
  if (is_of_floats && !is_floating(dtype)) return false;
  return internal::find_emitter(op) != nullptr && testing::reference_has(op, dtype);
}

std::vector<std::vector<Tensor>> run_on_xla(std::span<const OpCall> calls) {
  TpuStrategy strategy;
  std::vector<std::vector<Tensor>> results;
  strategy.run([&] {
    for (const OpCall& call : calls) results.push_back(dispatch(call));
  });
  return results;
}

/// XLA has its own functions, and its own order of additions.
double xla_ulps(const OpCase& c) { return std::max(4.0 * c.ulps, 200.0); }

/// XLA flushes the smallest numbers to 0, and functions of NaN are unspecified; but NaN wins in a
/// maximum or minimum.
bool xla_leaves_out(const OpCase& c) {
  constexpr OpId kOfNan[] = {OpId::kRelu,      OpId::kMaximum,   OpId::kMinimum,
                             OpId::kReduceMax, OpId::kReduceMin, OpId::kMaxPool};
  if (c.has_special_numbers) return std::ranges::find(kOfNan, c.call.op) == std::end(kOfNan);
  const auto* const upsampling = std::get_if<UpsampleAttributes>(&c.call.attributes);
  return upsampling != nullptr && upsampling->interpolation == Interpolation::kBilinear;
}

const OpBackend kXla{"xla",    xla_has,        run_on_xla,
                     xla_ulps, xla_leaves_out, 2};  // limits compile time

class XlaKernels : public testing::OpTableTest {};

TEST_P(XlaKernels, AgreeWithTheReference) { expect_agreement(kXla, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Operations, XlaKernels, ::testing::ValuesIn(testing::op_families()),
                         testing::family_name);

TEST(XlaOpTable, HasCasesOfAllThatXlaComputes) { expect_cases_of_all_kernels(kXla); }

}  // namespace xla_op_table_test
}  // namespace tutti

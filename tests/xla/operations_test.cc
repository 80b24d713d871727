// Tests operations and their gradients in steps that XLA compiles, against the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "tests/autograd/gradient_check.h"
#include "tests/support/tensor_matchers.h"
#include "tests/xla/xla_test_support.h"

namespace tutti {
namespace {

using gradient_check::Case;

/// Returns at most two cases of each operation, evenly chosen, to save compile time.
std::vector<Case> some_cases(const testing::OpFamily& family) {
  std::map<OpId, std::vector<Case>> by_op;
  for (const Case& c : gradient_check::cases_of(family)) {
    const auto* const upsample = std::get_if<UpsampleAttributes>(&c.call.attributes);
    if (upsample && upsample->interpolation == Interpolation::kBilinear) continue;
    by_op[c.call.op].push_back(c);
  }
  std::vector<Case> chosen;
  for (const auto& [op, cases] : by_op) {
    const std::size_t count = std::min<std::size_t>(cases.size(), 2);
    for (std::size_t i = 0; i < count; ++i) chosen.push_back(cases[i * cases.size() / count]);
  }
  return chosen;
}

class XlaGradients : public testing::OpTableTest {};

TEST_P(XlaGradients, AgreeWithTheCpu) {
  const std::vector<Case> cases = some_cases(GetParam());
  TpuStrategy strategy;
  std::vector<std::vector<Tensor>> results;
  strategy.run([&] {
    for (const Case& c : cases) results.push_back(value_and_gradients(c, Device{}));
  });
  for (std::size_t i = 0; i < cases.size(); ++i) expect_near_cpu(cases[i], results[i], 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Operations, XlaGradients, ::testing::ValuesIn(testing::op_families()),
                         testing::family_name);

TEST(XlaOperations, OfEqualElementsTheFirstHasTheGradientAndNanIsTheLargest) {
  const Tensor x = Tensor::from<float>({1, 4, 2, 1}, {1, 1, 1, 0, 2, std::nanf(""), 3, 1});
  const Tensor dy = Tensor::from<float>({1, 2, 1, 1}, {5, 7});
  TpuStrategy strategy;
  Tensor got;
  strategy.run([&] { got = max_pool2d_grad(x, dy, {}); });
  testing::expect_tensor(got, x.shape(), {5, 0, 0, 0, 0, 7, 0, 0});
}

TEST(XlaOperations, SixteenBitsAreRoundedAsOnTheCpu) {
  const Tensor x = random_normal({3, 5}, RandomKey{1});
  const auto rounded = [&] {
    const Tensor half = cast(x, DType::kBFloat16);
    return cast(half * half + half, DType::kFloat32);
  };
  TpuStrategy strategy;
  Tensor got;
  strategy.run([&] { got = rounded(); });
  testing::expect_tensor(got, x.shape(), rounded().to_doubles(), 2e-5);
}

}  // namespace
}  // namespace tutti

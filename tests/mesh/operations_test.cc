// Operations on sharded tensors: every operation has the values of one device, whatever the
// shardings of its inputs.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <functional>
#include <map>

#include "strategy/mesh/mesh_position.h"
#include "tests/mesh/mesh_helpers.h"
#include "tests/support/op_cases.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::mesh_tests {
namespace {

using internal::MeshPosition;
using internal::Sharding;

/// Returns the tolerance for an element; sums over parts round otherwise than one kernel.
double tolerance(const OpCall& call, DType dtype, double value) {
  const bool sums_squares = call.op == OpId::kBatchNormTraining || call.op == OpId::kBatchNormGrad;
  const double unit = dtype == DType::kFloat64 ? 1e-11 : sums_squares ? 5e-4 : 5e-5;
  return unit * (1.0 + std::abs(value));
}

/// Returns a sharding that cuts dimensions which the axes divide, each axis at most once.
Sharding random_sharding(const Shape& shape,
                         const std::function<std::uint64_t(std::uint64_t)>& below) {
  Sharding sharding;
  for (int axis = 0; axis < 2; ++axis) {
    if (shape.rank() == 0 || below(4) == 0) continue;
    const int d = static_cast<int>(below(static_cast<std::uint64_t>(shape.rank())));
    const std::int64_t cuts = sharding[d] != 0 ? 4 : 2;
    if (shape.dim(d) > 0 && shape.dim(d) % cuts == 0) {
      sharding[d] |= static_cast<internal::AxisSet>(1 << axis);
    }
  }
  return sharding;
}

class ShardedOperations : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedOperations, MatchOneDevice) {
  MeshStrategy strategy(on_mesh({{"a", 2}, {"b", 2}}));
  const RandomStream stream(RandomKey{.seed = 7, .purpose = kUserPurpose});
  std::uint64_t num_drawn = 0;
  const auto below = [&](std::uint64_t bound) { return stream.below(num_drawn++, bound); };
  std::map<OpId, int> sharded;
  for (const testing::OpCase& c : testing::op_family(GetParam()).cases()) {
    if (is_half(c.call.inputs[0].dtype()) || c.has_special_numbers) continue;
    sharded.try_emplace(c.call.op, 0);
    std::vector<Sharding> shardings;
    bool any = false;
    for (const Tensor& input : c.call.inputs) {
      shardings.push_back(random_sharding(input.shape(), below));
      any = any || !shardings.back().is_whole();
    }
    if (!any) continue;
    ++sharded[c.call.op];
    const std::vector<Tensor> expected = dispatch(c.call);
    std::vector<std::vector<double>> results(expected.size());
    strategy.run([&] {
      MeshPosition& position = *MeshPosition::current();
      OpCall call = c.call;
      for (std::size_t i = 0; i < call.inputs.size(); ++i) {
        call.inputs[i] = position.relayout(call.inputs[i], shardings[i]);
      }
      const std::vector<Tensor> outputs = dispatch(call);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const std::vector<double> values = outputs[i].to_doubles();
        if (position.number() == 3) results[i] = values;
      }
    });
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::vector<double> wanted = expected[i].to_doubles();
      ASSERT_EQ(results[i].size(), wanted.size()) << c.name();
      for (std::size_t k = 0; k < wanted.size(); ++k) {
        const double limit = tolerance(c.call, expected[i].dtype(), wanted[k]);
        const bool are_nan = std::isnan(results[i][k]) && std::isnan(wanted[k]);
        if (are_nan || std::abs(results[i][k] - wanted[k]) <= limit) continue;
        ADD_FAILURE() << c.name() << ": output " << i << ", element " << k << ": " << results[i][k]
                      << ", expected " << wanted[k];
        break;
      }
    }
  }
  for (const auto& [op, count] : sharded) {
    // The table's cases of clip have odd sizes; its rule is that of the other unary operations.
    EXPECT_TRUE(count > 0 || op == OpId::kClip) << to_string(op);
  }
}

std::vector<const char*> family_names() {
  std::vector<const char*> names;
  for (const testing::OpFamily& family : testing::op_families()) names.push_back(family.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, ShardedOperations, ::testing::ValuesIn(family_names()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tutti::mesh_tests

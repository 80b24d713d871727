// Tests operations on tensors with random layouts: outputs and gradients equal those computed on
// one device.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/mesh/op_calls.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::mesh_tests {
namespace {

using internal::AxisSet;
using internal::MeshGrid;
using internal::MeshPosition;
using internal::Sharding;

/// Elements of each output, followed by those of each gradient; empty for a missing gradient.
using Numbers = std::vector<std::vector<double>>;

/// Generator of random numbers that are the same in every run.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : stream_({.seed = seed, .purpose = kUserPurpose}) {}
  std::size_t below(std::size_t bound) { return stream_.below(num_drawn_++, bound); }

 private:
  RandomStream stream_;
  std::uint64_t num_drawn_ = 0;
};

/// Returns a sharding in which each mesh axis evenly splits a dimension, splits the value into
/// terms of a sum, or is unused.
Sharding random_sharding(const MeshGrid& grid, const Tensor& x, Draws& draws) {
  Sharding sharding;
  for (std::size_t axis = 0; axis < grid.mesh().axes().size(); ++axis) {
    const auto bit = static_cast<AxisSet>(1 << axis);
    if (grid.size(bit) == 1) continue;
    std::vector<AxisSet*> choices;
    for (int d = 0; d < x.rank(); ++d) {
      const int parts = grid.size(static_cast<AxisSet>(sharding[d] | bit));
      if (x.shape().dim(d) > 0 && x.shape().dim(d) % parts == 0) choices.push_back(&sharding[d]);
    }
    if (is_floating(x.dtype()) || x.dtype() == DType::kInt64) choices.push_back(&sharding.partial);
    const std::size_t choice = draws.below(choices.size() + 1);
    if (choice < choices.size()) *choices[choice] |= bit;
  }
  return sharding;
}

/// A call with a sharding for each of its inputs.
struct Drawn {
  const MeshCall* call;
  std::vector<Sharding> shardings;

  std::string name(const MeshGrid& grid) const {
    std::string text = concat(grid.mesh().to_string(), ": ", call->name, ":");
    for (std::size_t i = 0; i < shardings.size(); ++i) {
      text += concat(" ", grid.describe(shardings[i], call->call.inputs[i].rank()));
    }
    return text;
  }
};

std::vector<Drawn> draw(const std::map<OpId, std::vector<MeshCall>>& calls, const MeshGrid& grid) {
  constexpr int kOfGradients = 12, kOfValues = 6;  // number of calls per operation and mesh
  Draws draws(static_cast<std::uint64_t>(grid.size(1)));
  std::vector<Drawn> drawn;
  for (const auto& [op, all] : calls) {
    for (const bool is_differentiated : {true, false}) {
      std::vector<const MeshCall*> some;
      for (const MeshCall& call : all) {
        if (call.is_differentiated == is_differentiated) some.push_back(&call);
      }
      const bool any_gradients = internal::find_gradient(op) != nullptr;
      int count = is_differentiated || !any_gradients ? kOfGradients : kOfValues;
      for (; count > 0 && !some.empty(); --count) {
        Drawn& each = drawn.emplace_back(Drawn{some[draws.below(some.size())], {}});
        for (const Tensor& input : each.call->call.inputs) {
          each.shardings.push_back(random_sharding(grid, input, draws));
        }
      }
    }
  }
  return drawn;
}

/// Returns the outputs of a call, and the gradients of a weighted sum of all output elements.
Numbers values_and_gradients(const MeshCall& c, const std::vector<Tensor>& inputs) {
  GradientTape tape;
  OpCall call = c.call;
  call.inputs = inputs;
  const std::vector<Tensor> sources = gradient_check::sources_among(inputs);
  if (c.is_differentiated) {
    for (const Tensor& source : sources) tape.watch(source);
  }
  const std::vector<Tensor> outputs = dispatch(call);
  std::vector<Gradient> gradients;
  if (c.is_differentiated) {
    std::vector<Tensor> results = outputs;
    results.resize(c.num_results);
    gradients = tape.gradient(gradient_check::weighted_sum(results, 1), sources);
  }
  Numbers numbers;
  for (const Tensor& output : outputs) numbers.push_back(output.to_doubles());
  for (const Gradient& each : gradients) {
    numbers.push_back(each.is_none() ? std::vector<double>() : each.to_dense().to_doubles());
  }
  return numbers;
}

/// Expects each number to differ from the expected one by at most 1e-12 times the larger of 1 and
/// the largest expected magnitude.
void expect_close(const Numbers& found, const Numbers& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found[i].size(), expected[i].size()) << "output or gradient " << i;
    double scale = 1.0;
    for (const double x : expected[i])
      scale = std::isfinite(x) ? std::max(scale, std::abs(x)) : scale;
    for (std::size_t k = 0; k < expected[i].size(); ++k) {
      const double x = found[i][k], wanted = expected[i][k];
      if (x == wanted || (std::isnan(x) && std::isnan(wanted))) continue;
      if (std::abs(x - wanted) <= 1e-12 * scale) continue;
      ADD_FAILURE() << "output or gradient " << i << ", element " << k << ": " << x << ", expected "
                    << wanted;
      return;
    }
  }
}

class ShardedOperations : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedOperations, MatchOneDevice) {
  const auto calls = calls_of(testing::op_family(GetParam()));
  for (const auto& [op, all] : calls) EXPECT_FALSE(all.empty()) << to_string(op);
  for (const DeviceMesh& mesh : {DeviceMesh{{"a", 1}, {"b", 2}}, DeviceMesh{{"a", 2}, {"b", 1}},
                                 DeviceMesh{{"a", 2}, {"b", 2}}, DeviceMesh{{"a", 4}}}) {
    const MeshGrid grid(mesh, mesh);
    const std::vector<Drawn> drawn = draw(calls, grid);
    std::vector<std::vector<Numbers>> of_positions(static_cast<std::size_t>(grid.num_positions()));
    MeshStrategy strategy(on_mesh(mesh));
    strategy.run([&] {
      MeshPosition& position = *MeshPosition::current();
      for (const Drawn& each : drawn) {
        std::vector<Tensor> inputs;
        for (std::size_t i = 0; i < each.shardings.size(); ++i) {
          inputs.push_back(in_sharding(position, each.call->call.inputs[i], each.shardings[i]));
        }
        try {
          of_positions[static_cast<std::size_t>(position.number())].push_back(
              values_and_gradients(*each.call, inputs));
        } catch (const Error& error) {
          throw error.with_context(each.name(grid));
        }
      }
    });
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      SCOPED_TRACE(drawn[i].name(grid));
      const Numbers expected = values_and_gradients(*drawn[i].call, drawn[i].call->call.inputs);
      for (const std::vector<Numbers>& of_position : of_positions) {
        expect_close(of_position[i], expected);
      }
    }
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

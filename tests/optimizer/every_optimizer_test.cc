// What holds for every optimizer by name: bits of any partition, sparse gradients, state, defaults.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

/// A run of elements of one variable, with slots: what a rule sees.
template <class T>
struct Elements {
  std::vector<T> w, g, direction;
  std::vector<std::vector<T>> slots;

  Elements(const UpdateRule& rule, std::size_t count) : w(count), g(count), direction(count) {
    const RandomStream stream(RandomKey{8, kUserPurpose});
    std::uint64_t n = 0;
    for (T& each : w) each = static_cast<T>(stream.normal(n++));
    for (T& each : g) each = static_cast<T>(stream.normal(n++));
    slots.resize(rule.slots().size(), std::vector<T>(count));
    for (auto& slot : slots) {
      for (T& each : slot) each = static_cast<T>(0.1 + stream.uniform64(n++));
    }
  }

  UpdateArgs part(std::size_t first, std::size_t count, std::vector<void*>& pointers) {
    pointers.clear();
    for (auto& slot : slots) pointers.push_back(&slot[first]);
    return {dtype_of<T>(),
            count,
            &w[first],
            pointers,
            &g[first],
            {.learning_rate = 0.05, .iteration = 6, .gradient_scale = 0.5, .weight_decay = 0.02}};
  }

  void apply(const UpdateRule& rule, const std::vector<std::size_t>& ends) {
    std::vector<void*> pointers;
    std::size_t first = 0;
    for (const std::size_t end : ends) {
      UpdateArgs args = part(first, end - first, pointers);
      if (rule.uses_norms()) {
        rule.direct(args, &direction[first]);
        args.gradient_data = &direction[first];
        args.scalars.weight_norm = 3.25;  // of the whole, whatever the part
        args.scalars.direction_norm = 1.75;
      }
      rule.apply(args);
      first = end;
    }
  }
};

template <class T>
void expect_bits_of_any_partition(const UpdateRule& rule) {
  constexpr std::size_t kCount = 1003;
  Elements<T> whole(rule, kCount), parts(rule, kCount);
  whole.apply(rule, {kCount});
  parts.apply(rule, {1, 4, 501, 509, 1002, kCount});
  EXPECT_EQ(whole.w, parts.w) << rule.name();
  EXPECT_EQ(whole.slots, parts.slots) << rule.name();
  EXPECT_NE(whole.w, (Elements<T>(rule, kCount).w)) << rule.name();
}

class EveryOptimizer : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Optimizer> make(const Variable& variable) const {
    return make_optimizer(GetParam(), std::vector{variable});
  }
};

TEST_P(EveryOptimizer, AnyPartitionGivesTheSameBits) {
  const auto optimizer = make(variable(doubles({1.0}), "w"));
  expect_bits_of_any_partition<float>(optimizer->rule());
  expect_bits_of_any_partition<double>(optimizer->rule());
}

TEST_P(EveryOptimizer, Float32IsNearFloat64) {
  const std::vector<double> start = {0.5, -1.0, 2.0, 0.25, 1e-3};
  std::vector<float> start_32(start.begin(), start.end());
  const auto in_64 = make(variable(doubles(start), "w"));
  const auto in_32 = make(variable(floats(start_32), "w"));
  const auto steps = gradients_of_steps(20, start.size());
  const auto expected = weights_after(*in_64, steps);
  for (const auto& step : steps) {
    const Gradient gradient(floats(std::vector<float>(step.begin(), step.end())));
    in_32->apply_gradients({&gradient, 1});
  }
  expect_near_all(in_32->variables()[0].value().to_doubles(), expected, 2e-5);
}

TEST_P(EveryOptimizer, SparseGradientsGiveTheBitsOfDenseOnes) {
  expect_sparse_equals_dense([this](const Variable& variable) { return make(variable); });
}

TEST_P(EveryOptimizer, StateContinuesWhereItStopped) {
  const auto steps = gradients_of_steps(6, 3);
  const auto first = decltype(steps)(steps.begin(), steps.begin() + 3);
  const auto rest = decltype(steps)(steps.begin() + 3, steps.end());
  const auto whole = make(variable(doubles({1, 2, 3}), "w"));
  const auto expected = weights_after(*whole, steps);
  const auto before = make(variable(doubles({1, 2, 3}), "w"));
  weights_after(*before, first);
  const auto after = make(variable(doubles({0, 0, 0}), "w"));
  copy_state(*before, *after);
  EXPECT_EQ(weights_after(*after, rest), expected);
}

TEST_P(EveryOptimizer, IsNamedAsItIsSpelled) {
  const auto optimizer = make(variable(doubles({1.0}), "w"));
  EXPECT_EQ(optimizer->name(), GetParam());
  const auto slots = optimizer->rule().slots();
  const auto state = optimizer->state_variables();
  ASSERT_EQ(state.size(), 2 + slots.size());
  EXPECT_EQ(state[0].name(), GetParam() + "/iteration");
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(state[2 + i].name(), GetParam() + "/w/" + slots[i].name);
    EXPECT_EQ(state[2 + i].value().item_double(), slots[i].initial_value);
  }
}

TEST_P(EveryOptimizer, FindsTheMinimumOfABowl) {
  // f(w) = |w - c|^2 / 2, gradient w - c, from far enough that steps matter.
  const std::vector<double> center = {1.0, -1.0};
  const Variable w = variable(doubles({1.3, -0.8}), "w");
  const auto optimizer = make(w);
  const double before = std::hypot(0.3, 0.2);
  for (int step = 0; step < 300; ++step) {
    const auto at = w.value().to_doubles();
    const Gradient gradient(doubles({at[0] - center[0], at[1] - center[1]}));
    optimizer->apply_gradients({&gradient, 1});
  }
  const auto at = w.value().to_doubles();
  const double now = std::hypot(at[0] - center[0], at[1] - center[1]);
  if (GetParam() == "ftrl") {
    EXPECT_LT(now, std::hypot(1.0, 1.0));  // its weights begin anew at 0
  } else {
    EXPECT_LT(now, before);
  }
}

INSTANTIATE_TEST_SUITE_P(Names, EveryOptimizer, ::testing::ValuesIn(optimizer_names()),
                         [](const auto& info) { return info.param; });

TEST(OptimizerNames, RatesAndSlotsAreKerass) {
  const std::map<std::string, double> rates = {
      {"adadelta", 0.001}, {"adagrad", 0.001}, {"adam", 0.001}, {"adamw", 0.001},
      {"ftrl", 0.001},     {"lamb", 0.001},    {"lars", 0.1},   {"lion", 0.001},
      {"nadam", 0.001},    {"rmsprop", 0.001}, {"sgd", 0.01}};
  const std::map<std::string, std::string> slots = {
      {"adadelta", "accumulated_grad accumulated_delta_var "},
      {"adagrad", "accumulator "},
      {"adam", "momentum velocity "},
      {"adamw", "momentum velocity "},
      {"ftrl", "accumulator linear "},
      {"lamb", "momentum velocity "},
      {"lars", "momentum "},
      {"lion", "momentum "},
      {"nadam", "momentum velocity "},
      {"rmsprop", "velocity "},
      {"sgd", ""}};
  ASSERT_EQ(optimizer_names().size(), rates.size());
  for (const std::string& name : optimizer_names()) {
    const auto optimizer = make_optimizer(name, std::vector{variable(doubles({1.0}), "w")});
    EXPECT_EQ(optimizer->learning_rate(), rates.at(name)) << name;
    std::string names;
    for (const SlotSpec& slot : optimizer->rule().slots()) names += slot.name + " ";
    EXPECT_EQ(names, slots.at(name)) << name;
  }
}

}  // namespace
}  // namespace tutti

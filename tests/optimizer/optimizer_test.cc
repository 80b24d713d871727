// The optimizer around the rule: order of a step, reduction, state, errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizer.h"

#include <algorithm>

#include "tests/optimizer/optimizer_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

using namespace optimizer_tests;
using Calls = std::vector<std::string>;

TEST(OptimizerTest, MinimizeWithoutReducerUsesLocalGradients) {
  const Variable x = variable(doubles({3.0, -2.0}), "x");
  Sgd optimizer(std::vector{x}, {.learning_rate = 0.5});
  GradientTape tape;
  optimizer.minimize(tape, square(x.value()));  // gradient 2 x
  expect_tensor(x.value(), {2}, {0.0, 0.0}, 1e-15);
  EXPECT_EQ(optimizer.iterations().value().item_int(), 1);
}

TEST(OptimizerTest, ATapeMadeAfterTheForwardPassIsAskedAbout) {
  const Variable x = variable(doubles({3.0}), "x of a late tape");
  Sgd optimizer(std::vector{x}, 0.5);
  const auto lines = thrown::warnings_of([&] {
    const Tensor loss = square(x.value());
    GradientTape tape;
    optimizer.minimize(tape, loss);
  });
  EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
    return line.find("variable 'x of a late tape' has no gradient") != std::string::npos &&
           line.find("was the tape made before the forward pass?") != std::string::npos;
  })) << ::testing::PrintToString(lines);
}

TEST(OptimizerTest, MinimizeTellsTheReducerOfEachGradient) {
  RecordingReducer reducer(2);
  const GradientReducerScope scope(&reducer);
  const Variable a = variable(doubles({1.0}), "a");
  const Variable b = variable(doubles({5.0}), "b");
  Sgd optimizer(std::vector{a, b}, {.learning_rate = 0.1});
  GradientTape tape;
  optimizer.minimize(tape, a.value() * b.value());  // gradients 5 and 1, times two replicas
  ASSERT_EQ(reducer.calls.size(), 5u);
  EXPECT_EQ(reducer.calls.front(), "begin 2");
  EXPECT_EQ(std::ranges::count(reducer.calls, "ready 0"), 1);
  EXPECT_EQ(std::ranges::count(reducer.calls, "ready 1"), 1);
  EXPECT_EQ(Calls(reducer.calls.end() - 2, reducer.calls.end()), (Calls{"finish", "updates_done"}));
  expect_tensor(a.value(), {1}, {0.0}, 1e-15);
  expect_tensor(b.value(), {1}, {4.8}, 1e-15);
}

TEST(OptimizerTest, GradientsAreSummedNotAveraged) {
  RecordingReducer reducer(3);
  const GradientReducerScope scope(&reducer);
  Sgd optimizer(std::vector{variable(doubles({0.0, 0.0}), "v")}, {.learning_rate = 0.1});
  expect_near_all(weights_after(optimizer, {{1.0, 1.0}}), {-0.3, -0.3}, 1e-15);
  EXPECT_EQ(reducer.calls, (Calls{"begin 1", "ready 0", "finish", "updates_done"}));
}

TEST(OptimizerTest, OneDeviceUsesTheGradientUnchanged) {
  for (const auto aggregation : {GradientAggregation::kSum, GradientAggregation::kNone}) {
    const Variable v = variable(doubles({0.0, 0.0}), "v");
    Sgd optimizer(std::vector{v}, {.learning_rate = 0.1});
    const Gradient gradient(doubles({1.0, 1.0}));
    optimizer.apply_gradients({&gradient, 1}, {aggregation});
    expect_tensor(v.value(), {2}, {-0.1, -0.1}, 1e-15);
  }
}

TEST(OptimizerTest, GradientsThatWereReducedAreNotReducedAgain) {
  RecordingReducer reducer(3);
  const GradientReducerScope scope(&reducer);
  const Variable v = variable(doubles({0.0}), "v");
  Sgd optimizer(std::vector{v}, {.learning_rate = 0.1});
  const Gradient gradient(doubles({1.0}));
  optimizer.apply_gradients({&gradient, 1}, {.aggregation = GradientAggregation::kNone});
  expect_tensor(v.value(), {1}, {-0.1}, 1e-15);
  EXPECT_EQ(reducer.calls, (Calls{"begin 0", "finish", "updates_done"}));  // replicas still meet
}

TEST(OptimizerTest, UpdatesHappenBetweenFinishAndUpdatesDone) {
  RecordingReducer reducer(1);
  const GradientReducerScope scope(&reducer);
  const Variable v = variable(doubles({1.0}), "v");
  Sgd optimizer(std::vector{v}, {.learning_rate = PiecewiseConstantDecay({0}, {0.5, 100.0})});
  reducer.on_finish = [&] {
    EXPECT_EQ(v.value().item_double(), 1.0);
    EXPECT_EQ(optimizer.iterations().value().item_int(), 0);
    // Another replica of the device may count first: this one must have read its scalars before.
    optimizer.iterations().storage().assign_replicated(AssignOp::kAdd,
                                                       Tensor::scalar(7, DType::kInt64));
  };
  reducer.on_updates_done = [&] {
    EXPECT_EQ(v.value().item_double(), 0.5);
    EXPECT_EQ(optimizer.iterations().value().item_int(), 8);
  };
  expect_near_all(weights_after(optimizer, {{1.0}}), {0.5}, 0.0);
  EXPECT_EQ(reducer.calls.back(), "updates_done");
}

TEST(OptimizerTest, ApplyIsRefusedInCrossReplicaContext) {
  const Variable v = variable(doubles({1.0}), "v");
  Sgd optimizer(std::vector{v});
  const ReplicaGroupScope nowhere(nullptr);
  const Gradient gradient(doubles({1.0}));
  EXPECT_ERROR(optimizer.apply_gradients({&gradient, 1}), kFailedPrecondition,
               "sgd.apply_gradients", "cannot be called in cross-replica context");
  expect_error(ErrorCode::kFailedPrecondition,
               {"sgd.minimize", "cannot be called in cross-replica context"}, [&] {
                 GradientTape tape;
                 optimizer.minimize(tape, v.value());
               });
  expect_tensor(v.value(), {1}, {1.0});
  EXPECT_EQ(optimizer.iterations().value().item_int(), 0);
}

TEST(OptimizerTest, GradientsMustFitTheVariables) {
  const Variable a = variable(doubles({1.0, 2.0}), "a");
  const Variable b = variable(doubles({3.0}), "b");
  Adam optimizer(std::vector{a, b});
  const auto apply = [&](std::vector<Gradient> gradients) { optimizer.apply_gradients(gradients); };
  EXPECT_ERROR(apply({doubles({1, 1})}), kInvalidArgument, "adam.apply_gradients",
               "each of the 2 variables", "got 1");
  EXPECT_ERROR(apply({doubles({1, 1}), doubles({1, 1})}), kInvalidArgument, "'b'",
               "shape [1] of float64", "got [2] of float64", "variables()");
  EXPECT_ERROR(apply({doubles({1, 1}), floats({1})}), kInvalidArgument, "'b'", "float64",
               "[1] of float32");
  const IndexedSlices rows{doubles({1}), Tensor::from<std::int64_t>({1}, {0}), {5}};
  EXPECT_ERROR(apply({rows, doubles({1})}), kInvalidArgument, "'a'", "[2]", "[5]");
  expect_tensor(a.value(), {2}, {1.0, 2.0});  // nothing was updated
  EXPECT_EQ(optimizer.iterations().value().item_int(), 0);
}

TEST(OptimizerTest, AVariableWithoutGradientStaysAndIsNamedOnce) {
  const Variable used = variable(doubles({1.0}), "used");
  const Variable idle = variable(doubles({2.0}), "never_used_by_the_loss");
  Adam optimizer(std::vector{used, idle});
  const auto lines = thrown::warnings_of([&] {
    for (int step = 0; step < 3; ++step) {
      GradientTape tape;
      optimizer.minimize(tape, square(used.value()));
    }
  });
  EXPECT_LT(used.value().item_double(), 1.0);
  EXPECT_EQ(idle.value().item_double(), 2.0);
  ASSERT_EQ(std::ranges::count_if(
                lines, [](const auto& l) { return l.find("never_used_by_the_loss") < l.size(); }),
            1);
}

TEST(OptimizerTest, SparseGradientsUnderMomentumGiveTheBitsOfDenseOnes) {
  expect_sparse_equals_dense([](const Variable& v) {
    return std::make_unique<Sgd>(std::vector{v}, SgdOptions{.learning_rate = 0.1, .momentum = 0.9});
  });
}

TEST(OptimizerTest, StateIsNamedAfterOptimizerVariableAndSlot) {
  const Sgd optimizer(std::vector{variable(doubles({1}), "kernel"), variable(doubles({1}), "bias")},
                      {.momentum = 0.9, .name = "slow"});
  Calls names;
  for (const Variable& state : optimizer.state_variables()) {
    names.push_back(state.name());
    EXPECT_FALSE(state.trainable()) << state.name();
  }
  EXPECT_EQ(names, (Calls{"slow/iteration", "slow/learning_rate", "slow/kernel/momentum",
                          "slow/bias/momentum"}));
  EXPECT_EQ(optimizer.iterations().dtype(), DType::kInt64);
}

TEST(OptimizerTest, VariablesMustBeThereOnceAndFloating) {
  const Variable v = variable(doubles({1}), "v");
  EXPECT_ERROR(Sgd(std::vector<Variable>{}), kInvalidArgument, "sgd", "nothing to train");
  EXPECT_ERROR(Sgd(std::vector{v, v}), kInvalidArgument, "'v'", "given twice");
  const Variable counter(Tensor::scalar(0, DType::kInt32), {.name = "counter"});
  EXPECT_ERROR(Adam(std::vector{counter}), kInvalidArgument, "'counter'", "float32", "int32");
  const Variable half(Tensor::scalar(0, DType::kFloat16), {.name = "half"});
  EXPECT_ERROR(Adam(std::vector{half}), kInvalidArgument, "'half'", "float16",
               "try the policy mixed_bfloat16");
  EXPECT_ERROR(Optimizer(std::vector{v}, nullptr, {}), kInvalidArgument, "UpdateRule");
}

/// w -= g, for whatever rate.
class SubtractRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "subtract"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  void apply(const UpdateArgs& args) const override {
    for (std::size_t i = 0; i < args.count; ++i) {
      args.weights<double>()[i] -= args.gradient<double>()[i];
    }
  }
};

TEST(OptimizerTest, ARuleOfTheUserIsAnOptimizer) {
  Optimizer optimizer(std::vector{variable(doubles({1, 2}), "w")}, std::make_unique<SubtractRule>(),
                      {});
  EXPECT_EQ(optimizer.name(), "subtract");
  expect_near_all(weights_after(optimizer, {{1, 1}, {1, 1}}), {-1, 0}, 0.0);
}

TEST(OptimizerSpecTest, NamesOptionsAndFunctions) {
  const std::vector<Variable> variables = {variable(doubles({1}), "w")};
  EXPECT_EQ(make_optimizer("adam", variables)->name(), "adam");
  EXPECT_EQ(make_optimizer("adam", variables)->learning_rate(), 0.001);
  EXPECT_EQ(make_optimizer("sgd", variables)->learning_rate(), 0.01);
  EXPECT_EQ(make_optimizer(SgdOptions{.learning_rate = 0.3}, variables)->learning_rate(), 0.3);
  EXPECT_EQ(make_optimizer(AdamOptions{.name = "second"}, variables)->name(), "second");
  const OptimizerSpec own(OptimizerSpec::Factory([](std::span<const Variable> given) {
    return std::make_unique<Optimizer>(given, std::make_unique<SubtractRule>(), OptimizerOptions{});
  }));
  EXPECT_EQ(make_optimizer(own, variables)->name(), "subtract");
  EXPECT_EQ(OptimizerSpec().make(variables)->name(), "sgd");
}

TEST(OptimizerSpecTest, AnUnknownNameListsTheNames) {
  EXPECT_ERROR(OptimizerSpec("adamax"), kInvalidArgument, "'adamax'", "adam, adamw",
               "rmsprop, sgd");
}

TEST(GradientReducerTest, ScopesNest) {
  EXPECT_EQ(GradientReducer::current(), nullptr);
  RecordingReducer outer(1), inner(1);
  {
    const GradientReducerScope outer_scope(&outer);
    EXPECT_EQ(GradientReducer::current(), &outer);
    {
      const GradientReducerScope inner_scope(&inner);
      EXPECT_EQ(GradientReducer::current(), &inner);
      const GradientReducerScope none(nullptr);
      EXPECT_EQ(GradientReducer::current(), nullptr);
    }
    EXPECT_EQ(GradientReducer::current(), &outer);
  }
  EXPECT_EQ(GradientReducer::current(), nullptr);
}

}  // namespace
}  // namespace tutti

// Tests features that all optimizers share: the order within a step, reduction, accumulation,
// state, errors, and learning-rate schedules.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/optimizer/optimizer_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/optimizer/learning_rate_schedules.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::optimizer_test {

using Calls = std::vector<std::string>;

TEST(OptimizerTest, MinimizeWithoutReducerUsesLocalGradients) {
  const Variable x = variable(doubles({3.0, -2.0}), "x");
  Sgd optimizer(std::vector{x}, {.learning_rate = 0.5});
  GradientTape tape;
  optimizer.minimize(tape, square(x.value()));  // the gradient is 2 x
  expect_tensor(x.value(), {2}, {0.0, 0.0}, 1e-15);
  EXPECT_EQ(optimizer.iterations().value().item_int(), 1);
}

TEST(OptimizerTest, WarnsWhenTapeStartsAfterForwardPass) {
  const Variable x = variable(doubles({3.0}), "x of a late tape");
  Sgd optimizer(std::vector{x}, 0.5);
  const auto lines = warnings_of([&] {
    const Tensor loss = square(x.value());
    GradientTape tape;
    optimizer.minimize(tape, loss);
  });
  EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
    return line.find("variable 'x of a late tape' has no gradient") != std::string::npos &&
           line.find("was the tape made before the forward pass?") != std::string::npos;
  })) << PrintToString(lines);
}

TEST(OptimizerTest, MinimizePassesEachGradientToTheReducer) {
  RecordingReducer reducer(2);
  const GradientReducerScope scope(&reducer);
  const Variable a = variable(doubles({1.0}), "a");
  const Variable b = variable(doubles({5.0}), "b");
  Sgd optimizer(std::vector{a, b}, {.learning_rate = 0.1});
  GradientTape tape;
  optimizer.minimize(tape, a.value() * b.value());  // the gradients are 5 and 1, times two replicas
  ASSERT_EQ(reducer.calls.size(), 5u);
  EXPECT_EQ(reducer.calls.front(), "begin 2");
  EXPECT_EQ(std::ranges::count(reducer.calls, "ready 0"), 1);
  EXPECT_EQ(std::ranges::count(reducer.calls, "ready 1"), 1);
  EXPECT_EQ(Calls(reducer.calls.end() - 2, reducer.calls.end()), (Calls{"finish", "updates_done"}));
  expect_tensor(a.value(), {1}, {0.0}, 1e-15);
  expect_tensor(b.value(), {1}, {4.8}, 1e-15);
}

TEST(OptimizerTest, ReducedGradientsAreNotReducedAgain) {
  RecordingReducer reducer(3);
  const GradientReducerScope scope(&reducer);
  const Variable v = variable(doubles({0.0}), "v");
  Sgd optimizer(std::vector{v}, {.learning_rate = 0.1});
  const Gradient gradient(doubles({1.0}));
  optimizer.apply_gradients({&gradient, 1}, {.aggregation = GradientAggregation::kNone});
  expect_tensor(v.value(), {1}, {-0.1}, 1e-15);
  // Replicas still synchronize, but do not exchange gradients.
  EXPECT_EQ(reducer.calls, (Calls{"begin 0", "finish", "updates_done"}));
}

TEST(OptimizerTest, AppliesUpdatesAfterFinishAndBeforeUpdatesDone) {
  RecordingReducer reducer(1);
  const GradientReducerScope scope(&reducer);
  const Variable v = variable(doubles({1.0}), "v");
  Sgd optimizer(std::vector{v}, {.learning_rate = PiecewiseConstantDecay({0}, {0.5, 100.0})});
  reducer.on_finish = [&] {
    EXPECT_EQ(v.value().item_double(), 1.0);
    EXPECT_EQ(optimizer.iterations().value().item_int(), 0);
    // Another replica on the device may increment `iterations` first, so this replica must read its
    // learning rate before finish().
    optimizer.iterations().storage().assign_replicated(AssignOp::kAdd,
                                                       Tensor::scalar(7, DType::kInt64));
  };
  reducer.on_updates_done = [&] {
    EXPECT_EQ(v.value().item_double(), 0.5);
    EXPECT_EQ(optimizer.iterations().value().item_int(), 8);
  };
  expect_near(weights_after(optimizer, {{1.0}}), {0.5}, 0.0);
  EXPECT_EQ(reducer.calls.back(), "updates_done");
}

TEST(OptimizerTest, ApplyGradientsIsRefusedInCrossReplicaContext) {
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

TEST(OptimizerTest, GradientsMustMatchVariables) {
  const Variable a = variable(doubles({1.0, 2.0}), "a");
  const Variable b = variable(doubles({3.0}), "b");
  Adam optimizer(std::vector{a, b});
  const auto apply = [&](std::vector<Gradient> gradients) { optimizer.apply_gradients(gradients); };
  EXPECT_INVALID(apply({doubles({1, 1})}), "adam.apply_gradients", "each of the 2 variables",
                 "got 1");
  EXPECT_INVALID(apply({doubles({1, 1}), doubles({1, 1})}), "'b'", "shape [1] of float64",
                 "got [2] of float64", "variables()");
  EXPECT_INVALID(apply({doubles({1, 1}), floats({1})}), "'b'", "float64", "[1] of float32");
  const IndexedSlices rows{doubles({1}), Tensor::from<std::int64_t>({1}, {0}), {5}};
  EXPECT_INVALID(apply({rows, doubles({1})}), "'a'", "[2]", "[5]");
  expect_tensor(a.value(), {2}, {1.0, 2.0});  // no variable was updated
  EXPECT_EQ(optimizer.iterations().value().item_int(), 0);
}

TEST(OptimizerTest, MissingGradientLeavesVariableUnchangedAndWarnsOnce) {
  const Variable used = variable(doubles({1.0}), "used");
  const Variable idle = variable(doubles({2.0}), "never_used_by_the_loss");
  Adam optimizer(std::vector{used, idle});
  const auto lines = warnings_of([&] {
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

TEST(OptimizerTest, SparseMomentumUpdateMatchesDenseBitwise) {
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

TEST(OptimizerTest, RejectsMissingDuplicateAndNonFloatingVariables) {
  const Variable v = variable(doubles({1}), "v");
  EXPECT_INVALID(Sgd(std::vector<Variable>{}), "sgd", "nothing to train");
  EXPECT_INVALID(Sgd(std::vector{v, v}), "'v'", "given twice");
  const Variable counter(Tensor::scalar(0, DType::kInt32), {.name = "counter"});
  EXPECT_INVALID(Adam(std::vector{counter}), "'counter'", "float32", "int32");
  const Variable half(Tensor::scalar(0, DType::kFloat16), {.name = "half"});
  EXPECT_INVALID(Adam(std::vector{half}), "'half'", "float16", "use the policy mixed_bfloat16");
  EXPECT_INVALID(Optimizer(std::vector{v}, nullptr, {}), "UpdateRule");
}

/// Rule that applies w -= g at any learning rate.
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

TEST(OptimizerSpecTest, AcceptsNamesOptionsAndFactories) {
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

TEST(OptimizerSpecTest, UnknownNameErrorListsNames) {
  EXPECT_INVALID(OptimizerSpec("adamax"), "'adamax'", "adam, adamw", "rmsprop, sgd");
}

TEST(GradientReducerTest, ScopesCanNest) {
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

using Steps = std::vector<std::vector<double>>;

TEST(GradientAccumulation, ReducesOncePerUpdate) {
  RecordingReducer reducer(2);
  const GradientReducerScope scope(&reducer);
  const Variable x = variable(doubles({3.0}), "x");
  Sgd sgd(std::vector{x}, {.learning_rate = 0.1, .gradient_accumulation_steps = 2});
  const auto step = [&] {
    GradientTape tape;
    sgd.minimize(tape, square(x.value()));
  };
  step();
  // Replicas synchronize, but do not exchange gradients.
  EXPECT_EQ(reducer.calls, (std::vector<std::string>{"begin 0", "finish", "updates_done"}));
  EXPECT_EQ(x.value().item_double(), 3.0);
  reducer.calls.clear();
  step();
  EXPECT_EQ(reducer.calls,
            (std::vector<std::string>{"begin 1", "ready 0", "finish", "updates_done"}));
  // The mean of two gradients of 6 is summed over 2 replicas.
  EXPECT_NEAR(x.value().item_double(), 3.0 - 0.1 * 2 * 6.0, 1e-15);
}

TEST(GradientAccumulation, ClipsMeanGradient) {
  Sgd sgd(std::vector{variable(doubles({0.0, 0.0}), "w")},
          {.learning_rate = 1.0, .clipping = {.clipnorm = 5.0}, .gradient_accumulation_steps = 2});
  expect_near(weights_after(sgd, {{6.0, 0.0}, {0.0, 8.0}}), {-3.0, -4.0}, 1e-15);
}

TEST(GradientAccumulation, AccumulatesSparseRowsAndMissingGradients) {
  const Variable table(Tensor::zeros({3, 1}, DType::kFloat64), {.name = "table"});
  const Variable sometimes = variable(doubles({1.0}), "sometimes");
  const Variable never = variable(doubles({1.0}), "never");
  Sgd sgd(std::vector{table, sometimes, never},
          {.learning_rate = 1.0, .weight_decay = 0.5, .gradient_accumulation_steps = 2});
  const auto rows = [](std::int64_t row) {
    return Gradient(IndexedSlices{
        Tensor::from<double>({1, 1}, {2.0}), Tensor::from<std::int64_t>({1}, {row}), {3, 1}});
  };
  std::vector<Gradient> gradients = {rows(0), doubles({4.0}), Gradient()};
  sgd.apply_gradients(gradients);
  gradients = {rows(2), Gradient(), Gradient()};
  sgd.apply_gradients(gradients);
  expect_tensor(table.value(), {3, 1}, {-1.0, 0.0, -1.0});
  EXPECT_EQ(sometimes.value().item_double(), 0.5 - 2.0);
  EXPECT_EQ(never.value().item_double(), 1.0);  // a variable without a gradient does not decay
}

// In 3 rounds of 3 calls, a variable has a gradient in only some calls. Tests all 2^9 choices of
// these calls, including rounds without any gradient after rounds with one.
TEST(GradientAccumulation, EarlierGradientsAreNotAppliedAgain) {
  constexpr int kRounds = 3, kCalls = 3;
  for (unsigned pattern = 0; pattern < 1u << (kRounds * kCalls); ++pattern) {
    const Variable always = variable(doubles({0.0}), "always");
    const Variable sometimes = variable(doubles({0.0}), "sometimes");
    Sgd sgd(std::vector{always, sometimes},
            {.learning_rate = 1.0, .gradient_accumulation_steps = kCalls});
    double expected = 0.0;
    for (int call = 0; call < kRounds * kCalls; ++call) {
      // Each subset of calls has a different sum. Sums are multiples of 3, so dividing by 3 is
      // exact.
      const double g = 3.0 * (1 << call);
      const bool has_gradient = (pattern >> call & 1) != 0;
      const std::vector<Gradient> gradients = {doubles({3.0}),
                                               has_gradient ? Gradient(doubles({g})) : Gradient()};
      sgd.apply_gradients(gradients);
      if (has_gradient) expected -= g / kCalls;
    }
    ASSERT_EQ(sometimes.value().item_double(), expected) << "pattern " << pattern;
    ASSERT_EQ(always.value().item_double(), -1.0 * kRounds * kCalls);
  }
}

TEST(GradientAccumulation, SkippedUpdateDropsAccumulatedGradients) {
  Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
          {.learning_rate = 1.0,
           .dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 8.0},
           .gradient_accumulation_steps = 2});
  const double bad = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(weights_after(sgd, {{bad}, {8.0}})[0], 0.0);
  EXPECT_EQ(sgd.loss_scale(), 4.0);
  EXPECT_EQ(weights_after(sgd, {{4.0}, {12.0}})[0], -2.0);
  EXPECT_EQ(sgd.iterations().value().item_int(), 1);
}

TEST(GradientAccumulation, LearningRateSchedulesCountCallsNotUpdates) {
  Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
          {.learning_rate = PiecewiseConstantDecay({0, 1, 2}, {1.0, 0.1, 0.01, 0.001}),
           .gradient_accumulation_steps = 2});
  // As in Keras, the update uses the rate of the second call.
  EXPECT_EQ(weights_after(sgd, {{1.0}, {1.0}})[0], -0.1);
  EXPECT_EQ(sgd.learning_rate(), 0.01);
  EXPECT_EQ(weights_after(sgd, {{1.0}, {1.0}})[0], -0.101);
}

TEST(GradientAccumulation, ResumesMidAccumulation) {
  const auto steps = gradients_of_steps(9, 3);
  const auto make = [](const std::vector<double>& start) {
    return std::make_unique<Adam>(std::vector{variable(doubles(start), "w")},
                                  AdamOptions{.gradient_accumulation_steps = 3});
  };
  const auto whole = make({1, 2, 3});
  const auto expected = weights_after(*whole, steps);
  for (const std::ptrdiff_t stop : {1, 3, 5, 8}) {
    const auto before = make({1, 2, 3}), after = make({0, 0, 0});
    weights_after(*before, Steps(steps.begin(), steps.begin() + stop));
    copy_state(*before, *after);
    EXPECT_EQ(after->state_variables()[2].name(), "adam/accumulated_steps");
    EXPECT_EQ(after->state_variables().back().name(), "adam/w/gradient_accumulator");
    EXPECT_EQ(weights_after(*after, Steps(steps.begin() + stop, steps.end())), expected) << stop;
  }
}

/// Returns an optimizer with learning rate 1 for a variable "w" whose value is 0, so that an update
/// with gradient 1 changes the variable by -1.
std::unique_ptr<Sgd> of_rate_one(std::int64_t accumulation_steps) {
  return std::make_unique<Sgd>(
      std::vector{variable(doubles({0.0}), "w")},
      SgdOptions{.learning_rate = 1.0, .gradient_accumulation_steps = accumulation_steps});
}

TEST(GradientAccumulation, ResumingWithDifferentStepCountDividesByAccumulatedCalls) {
  for (const std::int64_t saved : {2, 3, 4, 6}) {
    for (const std::int64_t resumed : {2, 3, 5}) {
      for (std::int64_t num_held = 0; num_held < saved; ++num_held) {
        const auto before = of_rate_one(saved), after = of_rate_one(resumed);
        weights_after(*before, Steps(static_cast<std::size_t>(num_held), {1.0}));
        copy_state(*before, *after);
        for (std::int64_t update = 1; update <= 3; ++update) {
          while (after->iterations().value().item_int() < update) weights_after(*after, {{1.0}});
          EXPECT_DOUBLE_EQ(after->variables()[0].value().item_double(),
                           -static_cast<double>(update))
              << saved << " -> " << resumed << " with " << num_held << " accumulated";
        }
      }
    }
  }
}

TEST(GradientAccumulation, RejectsZeroSteps) {
  EXPECT_INVALID(
      Sgd(std::vector{variable(doubles({0.0}), "w")}, {.gradient_accumulation_steps = 0}), "sgd",
      "gradient_accumulation_steps", "0");
}

TEST(LearningRateScheduleTest, PiecewiseIntervalsIncludeUpperBoundary) {
  // the example in Keras's documentation
  const PiecewiseConstantDecay decay({100, 110}, {1.0, 0.5, 0.1});
  EXPECT_EQ(decay(0), 1.0);
  EXPECT_EQ(decay(100), 1.0);
  EXPECT_EQ(decay(101), 0.5);
  EXPECT_EQ(decay(110), 0.5);
  EXPECT_EQ(decay(111), 0.1);
  EXPECT_EQ(PiecewiseConstantDecay({}, {0.3})(5), 0.3);
  EXPECT_INVALID(PiecewiseConstantDecay({1, 2}, {0.1, 0.2}), "PiecewiseConstantDecay", "[1, 2]",
                 "2 values");
  EXPECT_INVALID(PiecewiseConstantDecay({2, 2}, {0.1, 0.2, 0.3}), "ascending", "[2, 2]");
  EXPECT_INVALID(ExponentialDecay({.decay_steps = 0}), "ExponentialDecay", "decay_steps", "0");
  EXPECT_INVALID(ExponentialDecay({.decay_rate = 0.0}), "decay_rate");
}

TEST(LearningRateScheduleTest, OptimizerEvaluatesScheduleAtEachIteration) {
  Sgd optimizer(std::vector{variable(doubles({0.0}), "w")},
                {.learning_rate = PiecewiseConstantDecay({0, 1}, {1.0, 0.1, 0.01})});
  EXPECT_EQ(optimizer.learning_rate(), 1.0);
  const std::vector<std::vector<double>> one = {{1.0}};
  EXPECT_DOUBLE_EQ(weights_after(optimizer, one)[0], -1.0);
  EXPECT_EQ(optimizer.learning_rate(), 0.1);
  EXPECT_DOUBLE_EQ(weights_after(optimizer, one)[0], -1.1);
  EXPECT_DOUBLE_EQ(weights_after(optimizer, one)[0], -1.11);
  EXPECT_ERROR(optimizer.set_learning_rate(0.5), kFailedPrecondition, "sgd.set_learning_rate",
               "schedule");
}

TEST(LearningRateScheduleTest, RejectsNegativeOrNonFiniteRates) {
  const std::vector variables{variable(doubles({1.0}), "w")};
  const std::vector<double> wrong = {-0.1, std::numeric_limits<double>::quiet_NaN(),
                                     std::numeric_limits<double>::infinity()};
  Sgd optimizer(variables, 0.5);
  for (const double rate : wrong) {
    EXPECT_INVALID(Sgd(variables, rate), "sgd", "learning_rate >= 0", concat(rate));
    EXPECT_INVALID(optimizer.set_learning_rate(rate), "sgd", "learning_rate");
    Sgd later(variables, PiecewiseConstantDecay({0}, {1.0, rate}));
    (void)weights_after(later, {{0.0}});
    EXPECT_INVALID((void)weights_after(later, {{1.0}}), "sgd", "learning_rate");
    EXPECT_EQ(variables[0].value().item_double(), 1.0);
  }
  EXPECT_EQ(optimizer.learning_rate(), 0.5);
  EXPECT_EQ(Sgd(variables, 0.0).learning_rate(), 0.0);
}

TEST(LearningRateScheduleTest, ConstantRateCanBeChanged) {
  Sgd optimizer(std::vector{variable(doubles({0.0}), "w")}, {.learning_rate = 0.5});
  optimizer.set_learning_rate(0.25);
  EXPECT_EQ(optimizer.learning_rate(), 0.25);
  EXPECT_DOUBLE_EQ(weights_after(optimizer, {{1.0}})[0], -0.25);
  // The rate is a state variable, so restoring that variable by any means changes the rate.
  optimizer.state_variables()[1].assign(0.125);
  EXPECT_EQ(optimizer.learning_rate(), 0.125);
}

TEST(LinearWarmUpTest, CanPrecedeAnySchedule) {
  const LinearWarmUp constant({.then = 0.8, .initial_learning_rate = 0.2, .warm_up_steps = 3});
  EXPECT_DOUBLE_EQ(constant(0), 0.2);
  EXPECT_DOUBLE_EQ(constant(1), 0.4);
  EXPECT_DOUBLE_EQ(constant(3), 0.8);
  EXPECT_DOUBLE_EQ(constant(100), 0.8);
  const LinearWarmUp cosine(
      {.then = CosineDecay({.initial_learning_rate = 1.0, .decay_steps = 10}), .warm_up_steps = 4});
  EXPECT_DOUBLE_EQ(cosine(0), 0.0);
  EXPECT_DOUBLE_EQ(cosine(2), 0.5);
  EXPECT_DOUBLE_EQ(cosine(4), 1.0);
  EXPECT_DOUBLE_EQ(cosine(9), 0.5);
  EXPECT_DOUBLE_EQ(LinearWarmUp({.then = 0.3})(0), 0.3);
}

TEST(WarmUpStableDecayTest, RisesStaysConstantAndDecays) {
  WarmUpStableDecayOptions options{.learning_rate = 1.0,
                                   .warm_up_steps = 4,
                                   .stable_steps = 10,
                                   .decay_steps = 4,
                                   .final_learning_rate = 0.2};
  const WarmUpStableDecay linear(options);
  EXPECT_DOUBLE_EQ(linear(0), 0.0);
  EXPECT_DOUBLE_EQ(linear(2), 0.5);
  for (const int iteration : {4, 9, 13, 14}) EXPECT_DOUBLE_EQ(linear(iteration), 1.0);
  EXPECT_DOUBLE_EQ(linear(15), 0.8);
  EXPECT_DOUBLE_EQ(linear(18), 0.2);
  EXPECT_DOUBLE_EQ(linear(1000), 0.2);
  options.shape = DecayShape::kCosine;
  EXPECT_DOUBLE_EQ(WarmUpStableDecay(options)(16), 0.6);
  options.shape = DecayShape::kOneMinusSquareRoot;
  EXPECT_DOUBLE_EQ(WarmUpStableDecay(options)(15), 0.6);
  EXPECT_DOUBLE_EQ(WarmUpStableDecay({.learning_rate = 1.0, .decay_steps = 0})(0), 0.0);
}

TEST(LearningRateSpecTest, CreatesEverySchedule) {
  const LearningRate cosine = make_learning_rate(
      "cosine_decay", {{"initial_learning_rate", 2.0}, {"decay_steps", 100}, {"alpha", 0.1}});
  EXPECT_DOUBLE_EQ(cosine.at(50), 1.1);
  EXPECT_DOUBLE_EQ(make_learning_rate("constant", {{"learning_rate", 0.3}}).at(7), 0.3);
  EXPECT_DOUBLE_EQ(make_learning_rate("exponential_decay", {{"initial_learning_rate", 1.0},
                                                            {"decay_steps", 10},
                                                            {"decay_rate", 0.5},
                                                            {"staircase", 1}})
                       .at(19),
                   0.5);
  EXPECT_DOUBLE_EQ(
      make_learning_rate("linear_warm_up", {{"learning_rate", 1.0}, {"warm_up_steps", 4}}).at(1),
      0.25);
  for (const std::string& name : learning_rate_schedule_names()) {
    EXPECT_GE(make_learning_rate(name, {}).at(0), 0.0) << name;
  }
}

TEST(LearningRateSpecTest, RefusesUnknownNamesAndInvalidOptions) {
  EXPECT_INVALID(make_learning_rate("cosine", {}), "'cosine'",
                 "constant, cosine_decay, cosine_decay_restarts");
  EXPECT_INVALID(make_learning_rate("polynomial_decay", {{"steps", 1.0}}), "'polynomial_decay'",
                 "'steps'", "decay_steps", "power, cycle");
  EXPECT_INVALID(make_learning_rate("polynomial_decay", {{"decay_steps", 1.5}}), "decay_steps",
                 "whole number", "1.5");
  EXPECT_INVALID(make_learning_rate("cosine_decay", {{"decay_steps", 0}}), "CosineDecay",
                 "decay_steps", "0");
  EXPECT_INVALID(CosineDecay({.warmup_steps = 3}), "CosineDecay", "warmup_target");
  EXPECT_INVALID(CosineDecayRestarts({.t_mul = 0.5}), "CosineDecayRestarts", "t_mul", "0.5");
  EXPECT_INVALID(PolynomialDecay({.decay_steps = 0}), "PolynomialDecay", "decay_steps");
  EXPECT_INVALID(InverseTimeDecay({.decay_rate = -1.0}), "InverseTimeDecay", "decay_rate");
  EXPECT_INVALID(LinearWarmUp({.warm_up_steps = -1}), "LinearWarmUp", "-1");
  EXPECT_INVALID(WarmUpStableDecay({.stable_steps = -5}), "WarmUpStableDecay", "-5");
}

}  // namespace tutti::testing::optimizer_test

// One update for the gradients of several steps.
// SPDX-License-Identifier: Apache-2.0
#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

using namespace optimizer_tests;
using Steps = std::vector<std::vector<double>>;

TEST(GradientAccumulation, LeavesWeightsAloneInBetween) {
  Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
          {.learning_rate = 1.0, .gradient_accumulation_steps = 3});
  EXPECT_EQ(weights_after(sgd, {{3.0}, {6.0}})[0], 0.0);
  EXPECT_EQ(sgd.iterations().value().item_int(), 0);
  EXPECT_EQ(weights_after(sgd, {{0.0}})[0], -3.0);
  EXPECT_EQ(weights_after(sgd, {{3.0}, {3.0}})[0], -3.0);  // nothing is left of before
  EXPECT_EQ(weights_after(sgd, {{3.0}})[0], -6.0);
}

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
  // Replicas meet; no gradient travels.
  EXPECT_EQ(reducer.calls, (std::vector<std::string>{"begin 0", "finish", "updates_done"}));
  EXPECT_EQ(x.value().item_double(), 3.0);
  reducer.calls.clear();
  step();
  EXPECT_EQ(reducer.calls,
            (std::vector<std::string>{"begin 1", "ready 0", "finish", "updates_done"}));
  EXPECT_NEAR(x.value().item_double(), 3.0 - 0.1 * 2 * 6.0, 1e-15);  // mean of 6 and 6, 2 replicas
}

TEST(GradientAccumulation, ClipsTheMean) {
  Sgd sgd(std::vector{variable(doubles({0.0, 0.0}), "w")},
          {.learning_rate = 1.0, .clipping = {.clipnorm = 5.0}, .gradient_accumulation_steps = 2});
  expect_near_all(weights_after(sgd, {{6.0, 0.0}, {0.0, 8.0}}), {-3.0, -4.0}, 1e-15);
}

TEST(GradientAccumulation, AddsRowsAndRemembersVariablesWithoutGradient) {
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
  EXPECT_EQ(never.value().item_double(), 1.0);  // no gradient: no decay either
}

// Which calls of 3 rounds of 3 give a variable a gradient: each of the 2^9 patterns, so that each
// call of a round, its first in particular, is without one after rounds that had one.
TEST(GradientAccumulation, GradientsOfEarlierRoundsAreNotAppliedAgain) {
  constexpr int kRounds = 3, kCalls = 3;
  for (unsigned pattern = 0; pattern < 1u << (kRounds * kCalls); ++pattern) {
    const Variable always = variable(doubles({0.0}), "always");
    const Variable sometimes = variable(doubles({0.0}), "sometimes");
    Sgd sgd(std::vector{always, sometimes},
            {.learning_rate = 1.0, .gradient_accumulation_steps = kCalls});
    double expected = 0.0;
    for (int call = 0; call < kRounds * kCalls; ++call) {
      const double g = 3.0 * (1 << call);  // no two sums are equal, and thirds are exact
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

TEST(GradientAccumulation, ASkippedUpdateDropsWhatWasHeld) {
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

TEST(GradientAccumulation, SchedulesCountCalls) {
  Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
          {.learning_rate = PiecewiseConstantDecay({0, 1, 2}, {1.0, 0.1, 0.01, 0.001}),
           .gradient_accumulation_steps = 2});
  EXPECT_EQ(weights_after(sgd, {{1.0}, {1.0}})[0], -0.1);  // the second call's rate, as Keras's
  EXPECT_EQ(sgd.learning_rate(), 0.01);
  EXPECT_EQ(weights_after(sgd, {{1.0}, {1.0}})[0], -0.101);
}

TEST(GradientAccumulation, StateContinuesInTheMiddle) {
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

/// An optimizer over "w" = 0 whose weight a call with gradient 1 and rate 1 changes by -1.
std::unique_ptr<Sgd> of_rate_one(std::int64_t accumulation_steps) {
  return std::make_unique<Sgd>(
      std::vector{variable(doubles({0.0}), "w")},
      SgdOptions{.learning_rate = 1.0, .gradient_accumulation_steps = accumulation_steps});
}

TEST(GradientAccumulation, DividesByHeldCallsWhenStepsChangeOnResume) {
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
              << saved << " -> " << resumed << " with " << num_held << " held";
        }
      }
    }
  }
}

TEST(GradientAccumulation, NeedsAStep) {
  EXPECT_ERROR(Sgd(std::vector{variable(doubles({0.0}), "w")}, {.gradient_accumulation_steps = 0}),
               kInvalidArgument, "sgd", "gradient_accumulation_steps", "0");
}

}  // namespace
}  // namespace tutti

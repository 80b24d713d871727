// Weight decay, moving averages and loss scaling around any rule.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "optimizer/optimizer_state.h"
#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

const double kSharedNaN = std::numeric_limits<double>::quiet_NaN();
const double kSharedInfinity = std::numeric_limits<double>::infinity();

std::vector<std::string> names_of(const std::vector<Variable>& variables) {
  std::vector<std::string> names;
  for (const Variable& variable : variables) names.push_back(variable.name());
  return names;
}

TEST(WeightDecay, IsOfTheBlocksOfALongVariable) {
  std::vector<double> start = gradients_of_steps(1, 5003)[0];
  const auto steps = gradients_of_steps(3, start.size());
  const Variable w = variable(doubles(start), "w");
  Adam adam(std::vector{w}, {.weight_decay = 0.3});
  AdamW adamw(std::vector{variable(doubles(start), "w")}, {.weight_decay = 0.3});
  std::vector<double> without = start;
  const auto with = weights_after(adam, steps);
  EXPECT_EQ(with, weights_after(adamw, steps));
  // Element by element the same as a variable of its own.
  for (const std::size_t i : {0UL, 2047UL, 2048UL, 5002UL}) {
    AdamW alone(std::vector{variable(doubles({start[i]}), "w")}, {.weight_decay = 0.3});
    const auto weights = weights_after(alone, {{steps[0][i]}, {steps[1][i]}, {steps[2][i]}});
    EXPECT_EQ(weights[0], with[i]) << i;
  }
}

TEST(WeightDecay, ReachesRowsWithoutGradient) {
  const Variable table(Tensor::from<double>({2, 1}, {1.0, 1.0}), {.name = "table"});
  Sgd sgd(std::vector{table}, {.learning_rate = 1.0, .weight_decay = 0.25});
  const Gradient rows(IndexedSlices{
      Tensor::from<double>({1, 1}, {0.5}), Tensor::from<std::int64_t>({1}, {1}), {2, 1}});
  sgd.apply_gradients({&rows, 1});
  expect_tensor(table.value(), {2, 1}, {0.75, 0.25});
}

TEST(WeightDecay, ExcludesVariablesByPartsOfTheirNames) {
  const Variable kernel = variable(doubles({1.0}), "dense/kernel");
  const Variable bias = variable(doubles({1.0}), "dense/bias");
  Sgd sgd(std::vector{kernel, bias}, {.learning_rate = 1.0, .weight_decay = 0.5});
  EXPECT_ERROR(sgd.exclude_from_weight_decay({"gamma"}), kInvalidArgument,
               "sgd.exclude_from_weight_decay", "'gamma'", "dense/kernel, dense/bias");
  sgd.exclude_from_weight_decay({"bias"});
  const std::vector<Gradient> gradients = {doubles({0.0}), doubles({0.0})};
  sgd.apply_gradients(gradients);
  EXPECT_EQ(kernel.value().item_double(), 0.5);
  EXPECT_EQ(bias.value().item_double(), 1.0);
  EXPECT_ERROR(Sgd(std::vector{kernel}, {.weight_decay = -0.1}), kInvalidArgument, "sgd",
               "weight_decay", "-0.1");
}

TEST(MovingAverage, BeginsWithTheFirstUpdateAndFollows) {
  Sgd sgd(std::vector{variable(doubles({1.0}), "w")},
          {.learning_rate = 1.0, .ema = EmaOptions{.momentum = 0.9}});
  EXPECT_EQ(names_of(sgd.state_variables()),
            (std::vector<std::string>{"sgd/iteration", "sgd/learning_rate", "sgd/w/average"}));
  double w = 1.0, average = 0.0;
  const auto steps = gradients_of_steps(5, 1);
  for (std::size_t t = 0; t < steps.size(); ++t) {
    w -= steps[t][0];
    average = t == 0 ? w : 0.9 * average + 0.1 * w;
    EXPECT_NEAR(weights_after(sgd, {steps[t]})[0], w, 1e-14);
    EXPECT_NEAR(sgd.state_variables()[2].value().item_double(), average, 1e-14);
  }
  sgd.finalize_variable_values();
  EXPECT_NEAR(sgd.variables()[0].value().item_double(), average, 1e-14);
}

TEST(MovingAverage, IsAlsoOfVariablesWithoutGradient) {
  const Variable used = variable(doubles({1.0}), "used"), idle = variable(doubles({5.0}), "idle");
  Sgd sgd(std::vector{used, idle}, {.ema = EmaOptions{}});
  const std::vector<Gradient> gradients = {doubles({1.0}), Gradient()};
  for (int step = 0; step < 3; ++step) sgd.apply_gradients(gradients);
  sgd.finalize_variable_values();
  EXPECT_NEAR(idle.value().item_double(), 5.0, 1e-14);
}

TEST(MovingAverage, RefusesWhatIsNoAverage) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_ERROR(Sgd(w, {.ema = EmaOptions{.momentum = 1.5}}), kInvalidArgument, "sgd",
               "ema momentum", "1.5");
  EXPECT_ERROR(Sgd(w, {.ema = EmaOptions{.overwrite_frequency = 0}}), kInvalidArgument,
               "overwrite_frequency", "0");
}

TEST(FixedLossScale, DividesGradientsOfTheScaledLoss) {
  const Variable x = variable(doubles({3.0}), "x");
  Sgd sgd(std::vector{x}, {.learning_rate = 0.5, .loss_scale_factor = 1024.0});
  EXPECT_EQ(sgd.loss_scale(), 1024.0);
  {
    GradientTape tape;
    sgd.minimize(tape, square(x.value()));
  }
  EXPECT_EQ(x.value().item_double(), 0.0);
  x.storage().assign_replicated(AssignOp::kAssign, doubles({3.0}));
  GradientTape tape;
  const Tensor loss = sgd.scale_loss(square(x.value()));
  EXPECT_EQ(loss.to_doubles()[0], 9.0 * 1024.0);
  sgd.apply_gradients(tape.gradient(loss, sgd.variables()));
  EXPECT_EQ(x.value().item_double(), 0.0);
}

TEST(FixedLossScale, LimitsAreForGradientsWithoutScale) {
  Sgd sgd(std::vector{variable(doubles({0.0, 0.0}), "w")},
          {.learning_rate = 1.0, .clipping = {.clipnorm = 5.0}, .loss_scale_factor = 8.0});
  expect_near_all(weights_after(sgd, {{24.0, 32.0}}), {-3.0, -4.0}, 1e-15);  // norm 5: untouched
  EXPECT_ERROR(Sgd(std::vector{variable(doubles({0.0}), "w")}, {.loss_scale_factor = 0.0}),
               kInvalidArgument, "loss_scale_factor", "0");
}

TEST(AllFinite, LooksAtEveryElement) {
  EXPECT_TRUE(all_finite(Gradient()));
  EXPECT_TRUE(all_finite(Gradient(doubles({}))));
  EXPECT_TRUE(all_finite(Gradient(doubles({1e308, -1e308, 0.0}))));
  EXPECT_TRUE(all_finite(Gradient(floats({std::numeric_limits<float>::max()}))));
  for (const double bad : {kSharedNaN, kSharedInfinity, -kSharedInfinity}) {
    for (const std::size_t place : {0UL, 5UL, 99UL}) {
      std::vector<double> values(100, 1.0);
      values[place] = bad;
      EXPECT_FALSE(all_finite(Gradient(doubles(values)))) << bad << " at " << place;
    }
  }
  const IndexedSlices rows{
      Tensor::from<double>({1, 1}, {kSharedNaN}), Tensor::from<std::int64_t>({1}, {2}), {4, 1}};
  EXPECT_FALSE(all_finite(Gradient(rows)));
}

TEST(DynamicLossScaleTest, SkipsTheWholeUpdateOnce) {
  const Variable a = variable(doubles({1.0}), "a"), b = variable(doubles({1.0}), "b");
  Adam adam(std::vector{a, b}, {.learning_rate = 0.1,
                                .weight_decay = 0.5,
                                .ema = EmaOptions{},
                                .dynamic_loss_scale = DynamicLossScaleOptions{}});
  const std::vector<Gradient> gradients = {doubles({1.0}), doubles({kSharedInfinity})};
  adam.apply_gradients(gradients);
  EXPECT_EQ(a.value().item_double(), 1.0);
  EXPECT_EQ(b.value().item_double(), 1.0);
  EXPECT_EQ(adam.iterations().value().item_int(), 0);
  EXPECT_EQ(adam.loss_scale(), 16384.0);
  const auto state = adam.state_variables();
  ASSERT_EQ(state.size(), 10U);  // 4 numbers, then 3 slots of each variable
  for (std::size_t i = 4; i < state.size(); ++i) {
    EXPECT_EQ(state[i].value().item_double(), 0.0) << state[i].name();
  }
}

TEST(DynamicLossScaleTest, LetsTrainingGoOnAsWithout) {
  const auto steps = gradients_of_steps(10, 3);
  Adam plain(std::vector{variable(doubles({1, 2, 3}), "w")});
  const auto expected = weights_after(plain, steps);
  Adam scaled(
      std::vector{variable(doubles({1, 2, 3}), "w")},
      {.dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 4.0, .growth_steps = 3}});
  for (const auto& step : steps) {
    std::vector<double> gradient = step;
    for (double& g : gradient) g *= scaled.loss_scale();  // powers of 2: exact
    weights_after(scaled, {gradient});
    weights_after(scaled, {{0.0, kSharedNaN, 1.0}});  // changes nothing but the scale
    scaled.state_variables()[2].assign(scaled.loss_scale() * 4.0);
  }
  EXPECT_EQ(scaled.variables()[0].value().to_doubles(), expected);
}

TEST(DynamicLossScaleTest, StateIsNamedAsKerasNamesIt) {
  const Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
                {.dynamic_loss_scale = DynamicLossScaleOptions{}});
  const auto state = sgd.state_variables();
  EXPECT_EQ(names_of(state), (std::vector<std::string>{"sgd/iteration", "sgd/learning_rate",
                                                       "sgd/dynamic_scale", "sgd/step_counter"}));
  EXPECT_EQ(state[2].value().item_double(), 32768.0);
  EXPECT_EQ(state[2].dtype(), DType::kFloat32);
}

TEST(DynamicLossScaleTest, StateContinuesWhereItStopped) {
  const DynamicLossScaleOptions options{.initial_scale = 8.0, .growth_steps = 3};
  const auto make = [&] {
    return std::make_unique<Sgd>(std::vector{variable(doubles({0.0}), "w")},
                                 SgdOptions{.dynamic_loss_scale = options});
  };
  const auto before = make(), after = make();
  weights_after(*before, {{1.0}, {kSharedNaN}, {1.0}, {1.0}});
  copy_state(*before, *after);
  EXPECT_EQ(after->loss_scale(), 4.0);
  weights_after(*after, {{1.0}});  // the third good one in a row
  EXPECT_EQ(after->loss_scale(), 8.0);
}

/// Two replicas, of which the other one has `num_bad` bad gradients.
class GroupWithAnotherReplica final : public ReplicaGroup {
 public:
  explicit GroupWithAnotherReplica(std::int64_t num_bad) : num_bad_(num_bad) {}
  int replica_id() const override { return 0; }
  int num_replicas() const override { return 2; }
  int num_local_replicas() const override { return 1; }
  Tensor all_reduce(ReduceOp, const Tensor& own) override {
    return Tensor::scalar(static_cast<double>(own.item_int() + num_bad_), own.dtype());
  }
  Tensor all_gather(const Tensor& value, int) override { return value; }

 private:
  std::int64_t num_bad_;
};

TEST(DynamicLossScaleTest, ABadGradientOfAnotherReplicaSkipsTheUpdate) {
  for (const std::int64_t num_bad : {0, 1}) {
    GroupWithAnotherReplica group(num_bad);
    const ReplicaGroupScope scope(&group);
    Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
            {.learning_rate = 1.0,
             .dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 8.0}});
    EXPECT_EQ(weights_after(sgd, {{8.0}})[0], num_bad == 0 ? -1.0 : 0.0);
    EXPECT_EQ(sgd.loss_scale(), num_bad == 0 ? 8.0 : 4.0);
    EXPECT_EQ(sgd.iterations().value().item_int(), num_bad == 0 ? 1 : 0);
  }
}

TEST(DynamicLossScaleTest, BySpecForAnyOptimizer) {
  const OptimizerSpec spec = with_dynamic_loss_scale("lion", {.initial_scale = 64.0});
  const auto lion = make_optimizer(spec, std::vector{variable(doubles({0.0}), "w")});
  EXPECT_EQ(lion->name(), "lion");
  EXPECT_EQ(lion->loss_scale(), 64.0);
}

TEST(DynamicLossScaleTest, RefusesTwoScalesAndBadOptions) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_ERROR(Sgd(w, {.loss_scale_factor = 2.0, .dynamic_loss_scale = DynamicLossScaleOptions{}}),
               kFailedPrecondition, "sgd", "loss_scale_factor", "dynamic_loss_scale");
  const auto make = [&](const DynamicLossScaleOptions& options) {
    Sgd(w, {.dynamic_loss_scale = options});
  };
  EXPECT_ERROR(make({.initial_scale = 0.5}), kInvalidArgument, "initial_scale", "0.5");
  EXPECT_ERROR(make({.growth_steps = 0}), kInvalidArgument, "growth_steps");
  EXPECT_ERROR(make({.multiplier = 1.0}), kInvalidArgument, "multiplier");
}

}  // namespace
}  // namespace tutti

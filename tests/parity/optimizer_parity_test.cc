// Compares optimizers with Keras's over 20 steps, and learning-rate schedules over 40, in float64.
// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/parity_record.h"
#include "tutti/optimizer/learning_rate_schedules.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti::parity {
namespace {

template <class Options>
Options with_betas(Options options = {}) {
  options.learning_rate = 1.0 / 64;
  options.beta_1 = 7.0 / 8;
  options.beta_2 = 31.0 / 32;
  return options;
}

SgdOptions with_rate(const LearningRate& rate) {
  SgdOptions options;
  options.learning_rate = rate;
  return options;
}

/// The optimizers of optimizer_cases.py.
const std::map<std::string, OptimizerSpec>& optimizer_table() {
  static const std::map<std::string, OptimizerSpec> table = {
      {"sgd", "sgd"},
      {"sgd_momentum", SgdOptions{.learning_rate = 1.0 / 16, .momentum = 7.0 / 8}},
      {"sgd_nesterov",
       SgdOptions{.learning_rate = 1.0 / 16, .momentum = 7.0 / 8, .nesterov = true}},
      {"sgd_clipnorm", SgdOptions{.learning_rate = 0.1, .clipping = {.clipnorm = 0.5}}},
      {"sgd_clipvalue", SgdOptions{.learning_rate = 0.1, .clipping = {.clipvalue = 0.3}}},
      {"sgd_global_clipnorm",
       SgdOptions{.learning_rate = 0.1, .clipping = {.global_clipnorm = 0.7}}},
      {"sgd_exponential_decay", SgdOptions{.learning_rate = ExponentialDecay({1.0 / 8, 5, 0.5})}},
      {"sgd_exponential_decay_staircase",
       SgdOptions{.learning_rate = ExponentialDecay({1.0 / 8, 5, 0.5, true})}},
      {"sgd_piecewise_constant_decay",
       SgdOptions{.learning_rate = PiecewiseConstantDecay({4, 11}, {1.0 / 8, 1.0 / 32, 1.0 / 64})}},
      {"adam", "adam"},
      {"adam_options", AdamOptions{.learning_rate = 1.0 / 64,
                                   .beta_1 = 7.0 / 8,
                                   .beta_2 = 31.0 / 32,
                                   .epsilon = 1.0 / 1024}},
      {"adam_amsgrad",
       AdamOptions{
           .learning_rate = 1.0 / 64, .beta_1 = 7.0 / 8, .beta_2 = 31.0 / 32, .amsgrad = true}},
      {"adamw", with_betas<AdamWOptions>({.weight_decay = 5.0 / 16})},
      {"rmsprop", RmspropOptions{.learning_rate = 1.0 / 64, .rho = 7.0 / 8}},
      {"rmsprop_momentum",
       RmspropOptions{.learning_rate = 1.0 / 64, .rho = 7.0 / 8, .momentum = 13.0 / 16}},
      {"rmsprop_centered",
       RmspropOptions{
           .learning_rate = 1.0 / 64, .rho = 7.0 / 8, .epsilon = 1.0 / 1024, .centered = true}},
      {"rmsprop_centered_momentum", RmspropOptions{.learning_rate = 1.0 / 64,
                                                   .rho = 7.0 / 8,
                                                   .momentum = 13.0 / 16,
                                                   .epsilon = 1.0 / 1024,
                                                   .centered = true}},
      {"adagrad", AdagradOptions{.learning_rate = 1.0 / 8, .initial_accumulator_value = 1.0 / 8}},
      {"adadelta", AdadeltaOptions{.learning_rate = 1.0, .rho = 15.0 / 16}},
      {"nadam", with_betas<NadamOptions>()},
      {"ftrl", FtrlOptions{.learning_rate = 1.0 / 8, .initial_accumulator_value = 1.0 / 8}},
      {"ftrl_options", FtrlOptions{.learning_rate = 1.0 / 8,
                                   .learning_rate_power = -11.0 / 16,
                                   .initial_accumulator_value = 3.0 / 16,
                                   .l1_regularization_strength = 1.0 / 8,
                                   .l2_regularization_strength = 3.0 / 16,
                                   .l2_shrinkage_regularization_strength = 3.0 / 64,
                                   .beta = 5.0 / 16}},
      {"lion", LionOptions{.learning_rate = 1.0 / 64, .beta_1 = 7.0 / 8, .beta_2 = 63.0 / 64}},
      {"lamb", with_betas<LambOptions>({.epsilon = 1e-7, .weight_decay = 0.0})},
      {"sgd_weight_decay",
       SgdOptions{.learning_rate = 1.0 / 8, .momentum = 0.5, .weight_decay = 3.0 / 64}},
      {"adam_ema",
       with_betas<AdamOptions>({.ema = EmaOptions{.momentum = 7.0 / 8, .overwrite_frequency = 6}})},
      {"adam_accumulation",
       with_betas<AdamOptions>({.clipping = {.clipnorm = 0.5}, .gradient_accumulation_steps = 3})},
      {"sgd_accumulation_cosine",
       SgdOptions{.learning_rate = CosineDecay(
                      {.initial_learning_rate = 1.0 / 8, .decay_steps = 16, .alpha = 1.0 / 8}),
                  .weight_decay = 1.0 / 8,
                  .gradient_accumulation_steps = 2}},
      {"rmsprop_loss_scale",
       RmspropOptions{.learning_rate = 1.0 / 64, .rho = 7.0 / 8, .loss_scale_factor = 7.0}},
      {"sgd_cosine_decay", with_rate(CosineDecay({.initial_learning_rate = 1.0 / 64,
                                                  .decay_steps = 10,
                                                  .alpha = 1.0 / 8,
                                                  .warmup_target = 0.5,
                                                  .warmup_steps = 5}))},
      {"sgd_cosine_decay_restarts", with_rate(CosineDecayRestarts({.initial_learning_rate = 1.0 / 8,
                                                                   .first_decay_steps = 3,
                                                                   .t_mul = 2.0,
                                                                   .m_mul = 13.0 / 16,
                                                                   .alpha = 1.0 / 16}))},
      {"sgd_polynomial_decay", with_rate(PolynomialDecay({.initial_learning_rate = 1.0 / 8,
                                                          .decay_steps = 7,
                                                          .end_learning_rate = 1.0 / 128,
                                                          .power = 1.5,
                                                          .cycle = true}))},
      {"sgd_inverse_time_decay", with_rate(InverseTimeDecay({.initial_learning_rate = 1.0 / 8,
                                                             .decay_steps = 4,
                                                             .decay_rate = 11.0 / 16,
                                                             .staircase = true}))},
  };
  return table;
}

/// Returns row `step` of a tensor of all steps.
Tensor of_step(const Tensor& all, std::int64_t step) {
  const Shape& shape = all.shape();
  return all.detached_rows(step, 1).detached_reshape(
      Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end())));
}

/// Keras takes powers of its default betas, and of decay rates, in float32, and rounds Nadam's 0.96
/// to it.
double tolerance_of_optimizer(const std::string& name) {
  if (name == "adam") return 2e-7;
  if (name == "nadam") return 2e-8;
  return name == "sgd_exponential_decay" ? 1e-7 : 1e-9;
}

class OptimizerParity : public ::testing::TestWithParam<std::string> {};

TEST_P(OptimizerParity, IsKerasStepByStep) {
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("optimizers");
  std::vector<Variable> variables;
  for (const Tensor& initial : record.list(prefix + "initial")) {
    variables.emplace_back(initial, VariableOptions{.name = concat("v", variables.size())});
  }
  const std::vector<Tensor> all_gradients = record.list(prefix + "gradients");
  const std::vector<Tensor> all_after = record.list(prefix + "after");
  const auto optimizer = make_optimizer(optimizer_table().at(GetParam()), variables);
  for (std::int64_t step = 0; step < all_after[0].shape()[0]; ++step) {
    std::vector<Gradient> gradients;
    for (const Tensor& all : all_gradients) gradients.emplace_back(of_step(all, step));
    optimizer->apply_gradients(gradients);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      expect_close(variables[i].value(), of_step(all_after[i], step),
                   tolerance_of_optimizer(GetParam()),
                   concat("variable ", i, " after step ", step));
    }
  }
}

TUTTI_PARITY_CASES(OptimizerParity, optimizer_table(), "optimizers");

constexpr double kRate = 1.0 / 8;

std::map<std::string, LearningRate> decaying_schedules() {
  return {
      {"exponential_decay", ExponentialDecay({kRate, 5, 0.5})},
      {"exponential_decay_staircase", ExponentialDecay({kRate, 6, 0.75, /*staircase=*/true})},
      {"piecewise_constant_decay",
       PiecewiseConstantDecay({4, 11, 30}, {1.0 / 8, 1.0 / 32, 1.0 / 64, 1.0 / 4})},
      {"polynomial_decay", PolynomialDecay({kRate, 17, 1.0 / 128})},
      {"polynomial_decay_power", PolynomialDecay({kRate, 17, 1.0 / 128, /*power=*/0.5})},
      {"polynomial_decay_cycle",
       PolynomialDecay({kRate, 7, 1.0 / 128, /*power=*/1.5, /*cycle=*/true})},
      {"inverse_time_decay", InverseTimeDecay({kRate, 4, 11.0 / 16})},
      {"inverse_time_decay_staircase", InverseTimeDecay({kRate, 4, 11.0 / 16, /*staircase=*/true})},
  };
}

/// The schedules of schedule_cases.py.
const std::map<std::string, LearningRate>& schedule_table() {
  static const std::map<std::string, LearningRate> table = [] {
    std::map<std::string, LearningRate> all = decaying_schedules();
    all.insert({
        {"cosine_decay", CosineDecay({.initial_learning_rate = kRate, .decay_steps = 25})},
        {"cosine_decay_alpha",
         CosineDecay({.initial_learning_rate = kRate, .decay_steps = 25, .alpha = 1.0 / 8})},
        {"cosine_decay_warm_up", CosineDecay({.initial_learning_rate = 1.0 / 64,
                                              .decay_steps = 20,
                                              .alpha = 1.0 / 8,
                                              .warmup_target = 0.5,
                                              .warmup_steps = 9})},
        {"cosine_decay_restarts",
         CosineDecayRestarts({.initial_learning_rate = kRate, .first_decay_steps = 4})},
        {"cosine_decay_restarts_options", CosineDecayRestarts({.initial_learning_rate = kRate,
                                                               .first_decay_steps = 5,
                                                               .t_mul = 1.5,
                                                               .m_mul = 13.0 / 16,
                                                               .alpha = 1.0 / 16})},
        {"cosine_decay_restarts_equal",
         CosineDecayRestarts(
             {.initial_learning_rate = kRate, .first_decay_steps = 6, .t_mul = 1.0, .m_mul = 0.5})},
    });
    return all;
  }();
  return table;
}

class ScheduleParity : public ::testing::TestWithParam<std::string> {};

TEST_P(ScheduleParity, IsKerasStepByStep) {
  const LearningRate& schedule = schedule_table().at(GetParam());
  const std::vector<double> rates = record_of("schedules").at(GetParam() + "/rates").to_doubles();
  for (std::size_t step = 0; step < rates.size(); ++step) {
    EXPECT_NEAR(schedule.at(static_cast<std::int64_t>(step)), rates[step], 1e-9 * rates[step])
        << "step " << step;
  }
}

TUTTI_PARITY_CASES(ScheduleParity, schedule_table(), "schedules");

}  // namespace
}  // namespace tutti::parity

// Optimizers and schedules against what Keras itself gave.
// SPDX-License-Identifier: Apache-2.0
#include "tests/optimizer/keras_record.h"

#include <cmath>
#include <map>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/cosine_decay.h"
#include "tutti/optimizer/optimizer_spec.h"
#include "tutti/optimizer/polynomial_decay.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

constexpr double kRecordRate = 0.0078125;

template <class Options>
Options with_record_betas(Options options = {}) {
  options.learning_rate = kRecordRate;
  options.beta_1 = 0.875;
  options.beta_2 = 0.9921875;
  return options;
}

SgdOptions with_rate(const LearningRate& rate) {
  SgdOptions options;
  options.learning_rate = rate;
  return options;
}

std::map<std::string, OptimizerSpec> optimizers_of_records() {
  return {
      {"sgd", SgdOptions{.learning_rate = kRecordRate}},
      {"sgd_nesterov", SgdOptions{.learning_rate = 0.046875, .momentum = 0.875, .nesterov = true}},
      {"adam", with_record_betas<AdamOptions>()},
      {"adam_amsgrad", with_record_betas<AdamOptions>({.amsgrad = true})},
      {"adamw", with_record_betas<AdamWOptions>({.weight_decay = 0.3125})},
      {"rmsprop", RmspropOptions{.learning_rate = kRecordRate, .rho = 0.875}},
      {"rmsprop_centered", RmspropOptions{.learning_rate = kRecordRate,
                                          .rho = 0.875,
                                          .momentum = 0.8125,
                                          .epsilon = 0.0009765625,
                                          .centered = true}},
      {"adagrad", AdagradOptions{.learning_rate = 0.125, .initial_accumulator_value = 0.125}},
      {"adadelta", AdadeltaOptions{.learning_rate = 1.0, .rho = 0.9375}},
      {"nadam", with_record_betas<NadamOptions>()},
      {"ftrl", FtrlOptions{.learning_rate = 0.125, .initial_accumulator_value = 0.125}},
      {"ftrl_regularized", FtrlOptions{.learning_rate = 0.125,
                                       .learning_rate_power = -0.6875,
                                       .initial_accumulator_value = 0.1875,
                                       .l1_regularization_strength = 0.125,
                                       .l2_regularization_strength = 0.1875,
                                       .l2_shrinkage_regularization_strength = 0.046875,
                                       .beta = 0.3125}},
      {"lion", LionOptions{.learning_rate = kRecordRate, .beta_1 = 0.875, .beta_2 = 0.984375}},
      {"lamb", with_record_betas<LambOptions>({.epsilon = 1e-7, .weight_decay = 0.0})},
      {"weight_decay",
       SgdOptions{.learning_rate = 0.125, .momentum = 0.5, .weight_decay = 0.046875}},
      {"clipnorm", with_record_betas<AdamOptions>({.clipping = {.clipnorm = 0.5}})},
      {"global_clipnorm", with_record_betas<AdamOptions>({.clipping = {.global_clipnorm = 0.5}})},
      {"clipvalue", with_record_betas<AdamOptions>({.clipping = {.clipvalue = 0.1875}})},
      {"ema", with_record_betas<AdamOptions>(
                  {.ema = EmaOptions{.momentum = 0.875, .overwrite_frequency = 5}})},
      {"accumulation",
       SgdOptions{.learning_rate = CosineDecay(
                      {.initial_learning_rate = 0.125, .decay_steps = 20, .alpha = 0.125}),
                  .weight_decay = 0.125,
                  .clipping = {.clipnorm = 1.0},
                  .gradient_accumulation_steps = 3}},
      {"loss_scale_factor",
       RmspropOptions{.learning_rate = kRecordRate, .rho = 0.875, .loss_scale_factor = 7.0}},
      {"cosine_decay", with_rate(CosineDecay({.initial_learning_rate = 0.015625,
                                              .decay_steps = 10,
                                              .alpha = 0.125,
                                              .warmup_target = 0.5,
                                              .warmup_steps = 5}))},
      {"cosine_decay_restarts", with_rate(CosineDecayRestarts({.initial_learning_rate = 0.5,
                                                               .first_decay_steps = 3,
                                                               .t_mul = 2.0,
                                                               .m_mul = 0.8125,
                                                               .alpha = 0.0625}))},
      {"polynomial_decay", with_rate(PolynomialDecay({.initial_learning_rate = 0.5,
                                                      .decay_steps = 7,
                                                      .end_learning_rate = 0.0078125,
                                                      .power = 1.5,
                                                      .cycle = true}))},
      {"inverse_time_decay", with_rate(InverseTimeDecay({.initial_learning_rate = 0.5,
                                                         .decay_steps = 4,
                                                         .decay_rate = 0.6875,
                                                         .staircase = true}))},
      {"exponential_decay",
       with_rate(ExponentialDecay(
           {.initial_learning_rate = 0.5, .decay_steps = 4, .decay_rate = 0.6875}))}};
}

/// The formula of optimizer_record.py, exact in any floating type.
double gradient_of_record(int step, int element) {
  return ((step * 37 + element * 101 + step * element * 11) % 64 - 31) / 16.0;
}

std::vector<double> train_as_recorded(const OptimizerSpec& spec) {
  const Variable kernel = variable(doubles({0.5, -1.0, 2.0, 0.25, 0.0009765625}), "kernel");
  const Variable bias = variable(doubles({0.6875, -0.3125}), "bias");
  const auto optimizer = spec.make(std::vector{kernel, bias});
  for (int step = 0; step < 24; ++step) {
    std::vector<double> values;
    for (int element = 0; element < 7; ++element)
      values.push_back(gradient_of_record(step, element));
    const std::vector<Gradient> gradients = {doubles({values.begin(), values.begin() + 5}),
                                             doubles({values.begin() + 5, values.end()})};
    optimizer->apply_gradients(gradients);
  }
  std::vector<double> weights = kernel.value().to_doubles();
  for (const double each : bias.value().to_doubles()) weights.push_back(each);
  return weights;
}

TEST(KerasRecordTest, EveryRuleAndScheduleGivesKerassWeights) {
  const auto optimizers = optimizers_of_records();
  EXPECT_EQ(optimizers.size(), keras_records().size());
  for (const KerasRecord& record : keras_records()) {
    SCOPED_TRACE(record.name);
    // Keras rounds Nadam's 0.96 to float32.
    const double tolerance = record.name == std::string("nadam") ? 1e-8 : 1e-12;
    expect_near_all(train_as_recorded(optimizers.at(record.name)), record.weights, tolerance);
  }
}

}  // namespace
}  // namespace tutti

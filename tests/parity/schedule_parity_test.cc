// Learning-rate schedules against Keras's, over 40 steps.
// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/parity_record.h"
#include "tutti/optimizer/learning_rate_schedules.h"

namespace tutti::parity {
namespace {

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

// Moving averages by TensorFlow's rule, against closed forms.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/exponential_moving_average.h"

#include <cmath>

#include "tests/optimizer/optimizer_helpers.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

TEST(ExponentialMovingAverage, AverageOfANumberHasItsClosedForm) {
  ExponentialMovingAverage averages({.decay = 0.9, .name = "avg"});
  averages.track_number("total_loss");
  EXPECT_EQ(averages.average("total_loss").name(), "total_loss/avg");
  // It begins at 0: after n times 4.68 it is 4.68 * (1 - 0.9^n).
  for (int n = 1; n <= 20; ++n) {
    EXPECT_NEAR(averages.apply_number("total_loss", 4.68), 4.68 * (1.0 - std::pow(0.9, n)), 1e-5);
  }
}

TEST(ExponentialMovingAverage, TheAverageOfAVariableBeginsAtItsValue) {
  Variable w = variable(doubles({1.0, -2.0}), "w");
  ExponentialMovingAverage averages({.decay = 0.75});
  averages.track({&w, 1});
  const Variable& average = averages.average("w");
  EXPECT_EQ(average.name(), "w/ExponentialMovingAverage");
  EXPECT_FALSE(average.trainable());
  EXPECT_EQ(average.value().to_doubles(), (std::vector<double>{1.0, -2.0}));
  w.assign(doubles({5.0, 2.0}));
  averages.apply();
  averages.apply();
  // 5 - 4 * 0.75^2, 2 - 4 * 0.75^2: all of these are exact.
  EXPECT_EQ(average.value().to_doubles(), (std::vector<double>{2.75, -0.25}));
  EXPECT_EQ(w.value().to_doubles(), (std::vector<double>{5.0, 2.0}));
  averages.assign_averages();
  EXPECT_EQ(w.value().to_doubles(), (std::vector<double>{2.75, -0.25}));
}

TEST(ExponentialMovingAverage, WithANumberOfUpdatesItBeginsQuickly) {
  const ExponentialMovingAverage averages;
  EXPECT_EQ(averages.decay_after(std::nullopt), 0.9999);
  EXPECT_EQ(averages.decay_after(0), 0.1);
  EXPECT_EQ(averages.decay_after(8), 0.5);
  EXPECT_EQ(averages.decay_after(89'989), 89'990.0 / 89'999.0);  // the last below 0.9999
  EXPECT_EQ(averages.decay_after(1'000'000), 0.9999);
  Variable w = variable(doubles({0.0}), "w");
  ExponentialMovingAverage moving;
  moving.track({&w, 1});
  w.assign(1.0);
  moving.apply(8);
  EXPECT_EQ(moving.average("w").value().item_double(), 0.5);
}

TEST(ExponentialMovingAverage, ListsVariablesThenNumbersForCheckpoints) {
  const std::vector<Variable> variables = {variable(floats({1}), "a"), variable(floats({2}), "b")};
  ExponentialMovingAverage averages({.name = "avg"});
  averages.track_number("loss");
  averages.track(variables);
  std::vector<std::string> names;
  for (const Variable& each : averages.averages()) names.push_back(each.name());
  EXPECT_EQ(names, (std::vector<std::string>{"a/avg", "b/avg", "loss/avg"}));
}

TEST(ExponentialMovingAverage, BadUseIsNamed) {
  expect_error(kInvalid, {"decay in [0, 1]", "1.5"},
               [] { ExponentialMovingAverage({.decay = 1.5}); });
  expect_error(kInvalid, {"name"}, [] { ExponentialMovingAverage({.name = ""}); });
  ExponentialMovingAverage averages;
  const Variable w = variable(floats({1}), "w");
  averages.track({&w, 1});
  averages.track_number("loss");
  expect_error(ErrorCode::kAlreadyExists, {"'w'"}, [&] { averages.track({&w, 1}); });
  expect_error(ErrorCode::kAlreadyExists, {"'loss'"}, [&] { averages.track_number("loss"); });
  expect_error(ErrorCode::kNotFound, {"'lost'", "[w, loss]"}, [&] { averages.average("lost"); });
  const Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
  expect_error(kInvalid, {"'count'", "int64"}, [&] { averages.track({&count, 1}); });
}

}  // namespace
}  // namespace tutti

// The run of Keras's correctness test, with and without a strategy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "tests/model/model_helpers.h"

namespace tutti::model_tests {

/// The network of Keras's correctness test, in the scope of `strategy` (nullptr: none).
inline Sequential correctness_model(Strategy* strategy, Loss loss = "mse") {
  set_random_seed(7);
  std::optional<Scope> scope;
  if (strategy) scope.emplace(strategy->scope());
  Sequential model(Input{{1}}, Dense(10, {.activation = "relu"}),
                   Dense(10, {.kernel_regularizer = regularizers::l2(1e-4)}), Dense(1));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.05}, .loss = loss, .metrics = {"mse"}});
  return model;
}

/// What a run of the correctness test gives.
struct Outcome {
  std::vector<double> loss, mse, validation, weights, evaluation, predictions, again;
};

inline Outcome correctness_run(Strategy* strategy, std::int64_t rows, bool as_dataset,
                               bool validate) {
  Sequential model = correctness_model(strategy);
  const Tensor x = alternating(rows);
  const Tensor few = alternating(rows / 10);
  FitOptions options{.epochs = 2, .verbose = kSilent, .shuffle = false};
  if (!as_dataset) options.batch_size = 64;
  if (validate) options.validation_data = {few, few};
  auto fit = [&] {
    return as_dataset ? model.fit(Dataset::from_tensor_slices({x, x}).batch(64), options)
                      : model.fit(x, x, options);
  };
  auto evaluate = [&] {
    const Logs logs = model.evaluate(few, few, {.batch_size = 64});
    return std::vector<double>{logs["loss"], logs["mse"]};
  };
  Outcome outcome;
  const History history = fit();
  outcome.loss = history["loss"];
  outcome.mse = history["mse"];
  if (validate) outcome.validation = history["val_loss"];
  outcome.weights = weights_of(model);
  outcome.evaluation = evaluate();
  outcome.predictions = model.predict(few, {.batch_size = 64}).to_doubles();
  outcome.again = fit()["loss"];
  for (const double value : evaluate()) outcome.again.push_back(value);
  return outcome;
}

inline void expect_equal_outcomes(const Outcome& actual, const Outcome& expected,
                                  double tolerance) {
  expect_near(actual.loss, expected.loss, tolerance);
  expect_near(actual.mse, expected.mse, tolerance);
  expect_near(actual.validation, expected.validation, tolerance);
  expect_near(actual.weights, expected.weights, 1e-4);
  expect_near(actual.evaluation, expected.evaluation, tolerance);
  expect_near(actual.predictions, expected.predictions, 1e-4);
  expect_near(actual.again, expected.again, tolerance);
}

}  // namespace tutti::model_tests

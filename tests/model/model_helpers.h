// Helpers for tests of models: strategies, small datasets and models, and runs of Keras's
// correctness test for distribution strategies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/test_folder.h"
#include "tutti/model/callbacks.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/fully_sharded_strategy.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing {

inline constexpr Verbosity kSilent = Verbosity::kSilent;

inline std::unique_ptr<Strategy> mirrored(const char* devices, int replicas = 0) {
  return std::make_unique<MirroredStrategy>(
      LocalStrategyOptions{.devices = devices, .replicas = replicas});
}

inline std::unique_ptr<Strategy> central(const char* devices) {
  return std::make_unique<CentralStorageStrategy>(
      CentralStorageOptions{.local = {.devices = devices}});
}

/// Returns a strategy that shards even small variables.
inline std::unique_ptr<Strategy> fully_sharded(const char* devices, int stage = 3) {
  return std::make_unique<FullyShardedStrategy>(
      FullyShardedOptions{.local = {.devices = devices}, .stage = stage, .min_shard_bytes = 0});
}

/// Returns several single-process strategies, with 1 to 4 replicas.
inline std::vector<std::unique_ptr<Strategy>> several_strategies() {
  std::vector<std::unique_ptr<Strategy>> strategies;
  strategies.push_back(std::make_unique<OneDeviceStrategy>("cpu:0"));
  strategies.push_back(mirrored("cpu:0-1"));
  strategies.push_back(mirrored("cpu:0-2"));
  strategies.push_back(mirrored("cpu:0-1", 4));
  strategies.push_back(central("cpu:0-1"));
  strategies.push_back(fully_sharded("cpu:0-1"));
  return strategies;
}

inline std::string label_of(const Strategy& strategy) {
  return concat(strategy.name(), " with ", strategy.num_replicas_in_sync());
}

inline std::vector<double> weights_of(const Model& model) {
  std::vector<double> all;
  for (const Variable& variable : model.variables())
    for (const double value : variable.value().to_doubles()) all.push_back(value);
  return all;
}

/// Returns a [rows, 1] tensor of 0, 1, 0, 1, ...
inline Tensor alternating(std::int64_t rows) {
  std::vector<float> values(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 2);
  return Tensor::from({rows, 1}, values);
}

/// Returns features [rows, 4], and learnable labels [rows] in 0 .. 2.
inline Dataset three_classes(std::int64_t rows) {
  const Tensor x = random_uniform({rows, 4}, {.seed = 11}, -1.0, 1.0);
  const Tensor y = argmax(slice(x, {0, 0}, {-1, 3}), 1);
  return Dataset::from_tensor_slices({x, y});
}

inline Sequential small_model() {
  set_random_seed(8);
  Sequential model(Input{{1}}, Dense(4, {.activation = "tanh"}), Dense(1));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.1, .momentum = 0.9}, .loss = "mse"});
  return model;
}

/// Returns a model with metrics to maximize, a metric to minimize (mae), and a metric without a
/// direction (true_positives).
inline Sequential watched_model() {
  Sequential model = small_model();
  model.compile({.loss = "mse",
                 .metrics = {"accuracy", "auc", "precision", "mae", "true_positives"},
                 .weighted_metrics = {"mae"}});
  return model;
}

inline Logs one_value(const std::string& name, double value) {
  Logs logs;
  logs.set(name, value);
  return logs;
}

/// Returns the network of Keras's correctness test, created in the scope of `strategy` unless
/// `strategy` is null.
inline Sequential correctness_model(Strategy* strategy, Loss loss = "mse") {
  set_random_seed(7);
  std::optional<Scope> scope;
  if (strategy) scope.emplace(strategy->scope());
  Sequential model(Input{{1}}, Dense(10, {.activation = "relu"}),
                   Dense(10, {.kernel_regularizer = regularizers::l2(1e-4)}), Dense(1));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.05}, .loss = loss, .metrics = {"mse"}});
  return model;
}

/// Results of a run of the correctness test.
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

}  // namespace tutti::testing

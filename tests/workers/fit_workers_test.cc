// fit() on two workers whose callbacks evaluate, and of which one stops alone.
// SPDX-License-Identifier: Apache-2.0
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/multi_process_runner.h"
#include "tutti/tutti.h"

namespace tutti::fit_workers_tests {
namespace {

using testing::MultiProcessRunner;
using testing::this_process;

/// Predicts 0 and never learns: the loss is the mean of squared labels.
Sequential constant_model() {
  Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "zeros"}));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.0}, .loss = "mse"});
  return model;
}

TUTTI_PROCESS_FUNCTION(fit_that_evaluates) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment(),
                                       MultiWorkerOptions{.local = {.devices = "cpu:0"}});
  const auto scope = strategy.scope();
  Sequential model = constant_model();
  const Tensor x = Tensor::ones({8, 1});
  const History history =
      model.fit(x, x * 3.0f,
                {.epochs = 2,
                 .batch_size = 4,
                 .callbacks = {LambdaCallback({.on_train_batch_end =
                                                   [&](std::int64_t, const Logs&) {
                                                     model.evaluate(x, x * 100.0f);
                                                     model.predict(x);
                                                   }})},
                 .verbose = Verbosity::kSilent});
  return Json::array_of(history["loss"]);
}

TEST(FitWorkers, EvaluateInACallbackLeavesTheLossOfFitAlone) {
  MultiProcessRunner runner("fit_that_evaluates", {.num_workers = 2});
  runner.start();
  for (const Json& losses : runner.join().return_values) {
    ASSERT_EQ(losses.as_array().size(), 2u);
    for (const Json& loss : losses.as_array()) EXPECT_NEAR(loss.as_double(), 9.0, 1e-5);
  }
}

TUTTI_PROCESS_FUNCTION(fit_that_one_worker_stops) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment(),
                                       MultiWorkerOptions{.local = {.devices = "cpu:0"}});
  const auto scope = strategy.scope();
  Sequential model = constant_model();
  const Tensor x = Tensor::ones({8, 1});
  const bool stops = this_process().index == 1;
  LambdaCallbackOptions callback;
  if (arguments.at("moment").as_string() == "epoch") {
    callback.on_epoch_end = [&](std::int64_t, const Logs&) {
      if (stops) model.stop_training();
    };
  } else {
    callback.on_train_batch_end = [&](std::int64_t, const Logs&) {
      if (stops) model.stop_training();
    };
  }
  try {
    model.fit(x, x,
              {.epochs = 3,
               .batch_size = 2,
               .callbacks = {LambdaCallback(callback)},
               .verbose = Verbosity::kSilent});
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(FitWorkers, AStopOfOneWorkerAloneIsNamed) {
  for (const std::string moment : {"epoch", "batch"}) {
    Json arguments = Json::object();
    arguments.set("moment", moment);
    MultiProcessRunner runner("fit_that_one_worker_stops", {.num_workers = 2}, arguments);
    runner.start();
    for (const Json& error : runner.join().return_values) {
      EXPECT_THAT(error.as_string(), ::testing::HasSubstr("stop_training()")) << moment;
      if (moment == "batch") continue;
      EXPECT_THAT(error.as_string(),
                  ::testing::HasSubstr("in epoch 0 on worker 1, not on worker 0"));
    }
  }
}

}  // namespace
}  // namespace tutti::fit_workers_tests

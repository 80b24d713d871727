// Calls that callbacks may make while fit() runs, and calls that are refused.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "core/file.h"
#include "tests/model/model_helpers.h"

namespace tutti::fit_callbacks_tests {
namespace {

using namespace model_tests;

/// Predicts 0 and never learns: losses follow from labels alone.
Sequential zero_model() {
  Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "zeros"}));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.0}, .loss = "mse", .metrics = {"mae"}});
  return model;
}

/// [rows, 1]: `first`, `first` + 1, ...
Tensor numbers_from(double first, std::int64_t rows) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows; ++i) values.push_back(static_cast<float>(first + i));
  return Tensor::from({rows, 1}, values);
}

/// Means of the squares and of the magnitudes of numbers_from(first, rows).
std::pair<double, double> expected_of(double first, std::int64_t rows) {
  double squares = 0.0, magnitudes = 0.0;
  for (std::int64_t i = 0; i < rows; ++i) {
    squares += (first + i) * (first + i);
    magnitudes += std::abs(first + i);
  }
  return {squares / rows, magnitudes / rows};
}

/// Calls a function at one of the moments of a callback, in the second epoch or batch.
class At : public Callback {
 public:
  At(std::string moment, std::function<void()> action)
      : moment_(std::move(moment)), action_(std::move(action)) {}
  void on_train_begin() override { call("train_begin"); }
  void on_epoch_begin(std::int64_t) override { call("epoch_begin"); }
  void on_train_batch_begin(std::int64_t) override { call("train_batch_begin"); }
  void on_train_batch_end(std::int64_t, const Logs&) override { call("train_batch_end"); }
  void on_test_begin() override { call("test_begin"); }
  void on_test_batch_end(std::int64_t, const Logs&) override { call("test_batch_end"); }
  void on_test_end(const Logs&) override { call("test_end"); }
  void on_epoch_end(std::int64_t, const Logs&) override { call("epoch_end"); }
  void on_train_end(const Logs&) override { call("train_end"); }

 private:
  void call(const std::string& moment) {
    const bool comes_once = moment == "train_begin" || moment == "train_end";
    if (moment == moment_ && (comes_once || ++count_ == 2)) action_();
  }

  const std::string moment_;
  const std::function<void()> action_;
  int count_ = 0;
};

const std::vector<std::string> kMoments = {"train_begin",     "epoch_begin", "train_batch_begin",
                                           "train_batch_end", "test_begin",  "test_end",
                                           "test_batch_end",  "epoch_end",   "train_end"};

TEST(FitCallbacks, WhatTheyCallLeavesLossesAndMetricsOfFitAlone) {
  const std::string folder = ::testing::TempDir() + "/tutti_fit_callbacks";
  std::filesystem::create_directories(folder);
  const Tensor x = Tensor::ones({10, 1});
  const Tensor labels = numbers_from(-3.0, 10), other_labels = numbers_from(100.0, 10);
  const auto [loss, mae] = expected_of(-3.0, 10);
  const auto [val_loss, val_mae] = expected_of(20.0, 6);
  for (const auto& strategy : several_strategies()) {
    const auto scope = strategy->scope();
    Sequential model = zero_model(), other = zero_model();
    const FitOptions nested{.batch_size = 4,
                            .callbacks = {At("train_batch_end", [&] { model.stop_training(); })},
                            .verbose = kSilent};
    const std::vector<std::pair<std::string, std::function<void()>>> actions = {
        {"evaluate", [&] { model.evaluate(x, other_labels, {.batch_size = 3}); }},
        {"predict", [&] { model.predict(x, {.batch_size = 3}); }},
        {"fit", [&] { model.fit(x, other_labels, nested); }},
        {"fit of another", [&] { other.fit(x, other_labels, {.verbose = kSilent}); }},
        {"evaluate of another", [&] { other.evaluate(x, other_labels); }},
        {"failing evaluate",
         [&] {
           const At failing("test_batch_end", [] { fail(ErrorCode::kCancelled, "no"); });
           EXPECT_EQ(error_of([&] {
                       model.evaluate(x, other_labels, {.batch_size = 4, .callbacks = {failing}});
                     }),
                     "no");
         }},
        {"save and load",
         [&] {
           model.save(folder + "/model.safetensors");
           model.load_weights(folder + "/model.safetensors");
           EXPECT_EQ(load_model(folder + "/model.safetensors")->predict(x).shape(), x.shape());
         }},
    };
    for (const auto& [name, action] : actions) {
      for (const std::string& moment : kMoments) {
        if (strategy->num_replicas_in_sync() != 2 && moment != "train_batch_end") continue;
        SCOPED_TRACE(concat(label_of(*strategy), ", ", name, " at ", moment));
        const History history =
            model.fit(x, labels,
                      {.epochs = 3,
                       .batch_size = 4,
                       .validation_data = {Tensor::ones({6, 1}), numbers_from(20.0, 6)},
                       .callbacks = {At(moment, action)},
                       .verbose = kSilent});
        ASSERT_EQ(history.epochs().size(), 3u);
        for (std::size_t epoch = 0; epoch < 3; ++epoch) {
          EXPECT_NEAR(history["loss"][epoch], loss, 1e-5);
          EXPECT_NEAR(history["mae"][epoch], mae, 1e-5);
          EXPECT_NEAR(history["val_loss"][epoch], val_loss, 1e-3);
          EXPECT_NEAR(history["val_mae"][epoch], val_mae, 1e-5);
        }
      }
    }
  }
}

TEST(FitCallbacks, StopRequestOutlastsANestedFit) {
  Sequential model = zero_model();
  const Tensor x = Tensor::ones({8, 1});
  const auto stop_then_fit = [&] {
    model.stop_training();
    model.fit(x, x, {.verbose = kSilent});
  };
  const History history = model.fit(
      x, x, {.epochs = 5, .callbacks = {At("epoch_end", stop_then_fit)}, .verbose = kSilent});
  EXPECT_EQ(history.epochs().size(), 2u);
}

TEST(FitCallbacks, CompileIsRefusedByNameAtEveryMoment) {
  const Tensor x = Tensor::ones({8, 1});
  Sequential model = zero_model();
  for (const std::string& moment : kMoments) {
    SCOPED_TRACE(moment);
    const auto compiling = At(moment, [&] { model.compile({.optimizer = "adam", .loss = "mae"}); });
    EXPECT_ERROR(model.fit(x, x,
                           {.epochs = 2,
                            .batch_size = 2,
                            .validation_data = {x, x},
                            .callbacks = {compiling},
                            .verbose = kSilent}),
                 kFailedPrecondition, "Model::compile: called in a callback of Model::fit()",
                 "stop_training()");
  }
  EXPECT_ERROR(model.evaluate(
                   x, x,
                   {.batch_size = 2,
                    .callbacks = {At("test_batch_end", [&] { model.compile({.loss = "mae"}); })}}),
               kFailedPrecondition, "called in a callback of Model::evaluate()");
  model.compile({.loss = "mae"});  // after a call that failed, too
  EXPECT_EQ(model.evaluate(x, x).entries().size(), 1u);
}

TEST(FitCallbacks, AssigningAnotherModelToTheTrainedOneIsRefused) {
  const Tensor x = Tensor::ones({8, 1});
  for (const std::string moment : {"train_batch_begin", "train_batch_end", "epoch_begin"}) {
    Sequential model = zero_model();
    EXPECT_ERROR(model.fit(x, x,
                           {.epochs = 3,
                            .batch_size = 2,
                            .callbacks = {At(moment, [&] { model = zero_model(); })},
                            .verbose = kSilent}),
                 kFailedPrecondition, "assigned another model");
  }
}

// A run with and without validation, evaluate() and predict() is the same training.
TEST(FitCallbacks, InferenceChangesNoBitOfTrainingWithDropout) {
  const Tensor x = random_uniform({24, 2}, {.seed = 3}, -1.0, 1.0);
  const Tensor y = reduce_sum(x, {{1}, true});
  for (const auto& strategy : several_strategies()) {
    const auto scope = strategy->scope();
    const auto train = [&](FitOptions fit, const std::function<void(Model&)>& before,
                           const std::function<void(Model&)>& in_batches) {
      set_random_seed(5);
      Json state = strategy->save_state();
      strategy->restore_state(state.set("step", 0).set("random_step", 0));
      Sequential model(Input{{2}}, Dense(8, "relu"), Dropout(0.5), GaussianNoise(0.1), Dense(1));
      model.compile({.optimizer = AdamOptions{.learning_rate = 0.01}, .loss = "mse"});
      if (before) before(model);
      fit.epochs = 3;
      fit.batch_size = 8;
      fit.verbose = kSilent;
      if (in_batches) {
        fit.callbacks.push_back(LambdaCallback(
            {.on_train_batch_end = [&](std::int64_t, const Logs&) { in_batches(model); }}));
      }
      model.fit(x, y, fit);
      return std::pair(hash_variables(model.variables()),
                       strategy->save_state().at("random_step").as_int());
    };
    SCOPED_TRACE(label_of(*strategy));
    const auto plain = train({}, {}, {});
    EXPECT_EQ(plain.second, 9) << "batches that were trained";
    EXPECT_EQ(train({.validation_data = {x, y}}, {}, {}), plain);
    EXPECT_EQ(train({}, {}, [&](Model& model) { model.predict(x); }), plain);
    const auto infer = [&](Model& model) {
      model.evaluate(x, y);
      model.predict(x);
    };
    EXPECT_EQ(train({}, infer, {}), plain);
  }
}

}  // namespace
}  // namespace tutti::fit_callbacks_tests

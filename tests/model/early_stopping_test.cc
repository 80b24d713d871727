// Early stopping, what it restores, and which values of a name are better.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <limits>
#include <map>

#include "tests/model/model_helpers.h"
#include "tutti/core/json.h"
#include "tutti/model/functional.h"

namespace tutti {
namespace {

using namespace model_tests;
using ::testing::HasSubstr;

/// Feeds `values` of `monitor` to `callback`; the epoch in which it stopped, or -1.
std::int64_t stopped_at(EarlyStopping callback, const std::string& monitor,
                        const std::vector<double>& values) {
  Sequential model = watched_model();
  callback.set_model(model);
  callback.on_train_begin();
  for (std::size_t epoch = 0; epoch < values.size(); ++epoch) {
    callback.on_epoch_end(static_cast<std::int64_t>(epoch), one_value(monitor, values[epoch]));
    if (callback.stopped_epoch()) return *callback.stopped_epoch();
  }
  return -1;
}

TEST(EarlyStoppingTest, StopsWhenTheValueStaysWorseForItsPatience) {
  EXPECT_EQ(stopped_at(EarlyStopping(), "val_loss", {3, 2, 2.5, 1}), 2);
  EXPECT_EQ(stopped_at(EarlyStopping({.patience = 2}), "val_loss", {3, 2, 2.5, 1, 1.5, 1.2, 0}), 5);
  EXPECT_EQ(stopped_at(EarlyStopping({.min_delta = 0.5}), "val_loss", {3, 2, 1.6}), 2);
  EXPECT_EQ(
      stopped_at(EarlyStopping({.monitor = "val_accuracy"}), "val_accuracy", {0.5, 0.6, 0.7, 0.7}),
      3);
  EXPECT_EQ(stopped_at(EarlyStopping({.mode = MonitorMode::kMax}), "val_loss", {1, 2, 3}), -1);
  EXPECT_EQ(stopped_at(EarlyStopping({.patience = 1, .baseline = 1.0}), "val_loss", {3, 2.9}), 1);
  EXPECT_EQ(stopped_at(EarlyStopping(), "loss", {1, 2, 3}), -1) << "a missing name only warns";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(stopped_at(EarlyStopping({.patience = 2}), "val_loss", {nan, 2, 3, 1, 2, 3}), 5)
      << "a number is better than none";
  EXPECT_EQ(stopped_at(EarlyStopping({.start_from_epoch = 2}), "val_loss", {1, 2, 3, 2, 3}), 4);
  EXPECT_EQ(stopped_at(EarlyStopping({.start_from_epoch = 2}), "val_loss", {1, 2, 3, 4, 2}), 3)
      << "epoch 2 is the first that counts, epoch 3 is worse";
  EXPECT_EQ(stopped_at(EarlyStopping({.start_from_epoch = 2}), "val_loss", {3, 1, 2, 1.5, 1.6}), 4)
      << "epoch 1 is not compared with";
  EXPECT_EQ(stopped_at(EarlyStopping({.min_delta = 0.25, .patience = 3, .baseline = 1.0}),
                       "val_loss", {2, 1.5, 0.875, 0.5}),
            2)
      << "0.875 is not better than the baseline by min_delta";
}

TEST(EarlyStoppingTest, RestoresTheWeightsOfTheBestEpoch) {
  Sequential model = small_model();
  EarlyStopping callback({.patience = 2, .restore_best_weights = true});
  callback.set_model(model);
  callback.on_train_begin();
  callback.on_epoch_end(0, one_value("val_loss", 1.0));
  const std::vector<double> best = weights_of(model);
  for (std::int64_t epoch = 1; epoch <= 2; ++epoch) {
    model.fit(alternating(8), alternating(8), {.verbose = kSilent});
    ASSERT_NE(weights_of(model), best);
    callback.on_epoch_end(epoch, one_value("val_loss", 2.0));
  }
  EXPECT_EQ(callback.stopped_epoch(), 2);
  EXPECT_EQ(callback.best_epoch(), 0);
  ASSERT_NE(weights_of(model), best) << "fit may write averages before it ends";
  callback.on_train_end({});
  EXPECT_EQ(weights_of(model), best);
}

/// Everything that the variables save, replica by replica.
std::map<std::string, std::vector<double>> components_of(const Model& model) {
  std::map<std::string, std::vector<double>> all;
  for (const Variable& variable : model.variables())
    for (const NamedTensor& part : variable.storage().save())
      all[part.name] = part.value.to_doubles();
  return all;
}

TEST(EarlyStoppingTest, RestoresEachReplicasMovingAveragesAlsoWhenNothingStopped) {
  for (const std::int64_t patience : {1, 50}) {
    auto strategy = model_tests::mirrored("cpu:0-1");
    auto scope = strategy->scope();
    set_random_seed(3);
    Sequential model(Input{{4}}, Dense(6), BatchNormalization(), Dense(3));
    model.compile(
        {.optimizer = SgdOptions{.learning_rate = 0.1}, .loss = "sparse_categorical_crossentropy"});
    // The loss of training falls, so that the first epoch has the largest.
    auto stopping =
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "loss",
                                                             .patience = patience,
                                                             .mode = MonitorMode::kMax,
                                                             .restore_best_weights = true});
    std::vector<std::map<std::string, std::vector<double>>> after_epochs;
    const LambdaCallback notes({.on_epoch_end = [&](std::int64_t, const Logs&) {
      after_epochs.push_back(components_of(model));
    }});
    model.fit(model_tests::three_classes(21).batch(8),
              {.epochs = 4, .callbacks = {notes, stopping}, .verbose = kSilent});
    ASSERT_EQ(after_epochs.size(), patience == 1 ? 2u : 4u);
    ASSERT_EQ(stopping->best_epoch(), 0);
    EXPECT_EQ(components_of(model), after_epochs[0]) << "patience " << patience;
    const auto& mean = after_epochs[0];
    EXPECT_NE(mean.at("batch_normalization/moving_mean/replica_0"),
              mean.at("batch_normalization/moving_mean/replica_1"))
        << "replicas that agree would show nothing";
  }
}

TEST(EarlyStoppingTest, BestWeightsTravelWithTheStateOfTheCallback) {
  auto strategy = model_tests::mirrored("cpu:0-1");
  auto scope = strategy->scope();
  Sequential model(Input{{4}}, BatchNormalization(), Dense(3));
  model.compile({.loss = "sparse_categorical_crossentropy"});
  const EarlyStoppingOptions options{.monitor = "loss", .restore_best_weights = true};
  EarlyStopping first(options), second(options);
  for (EarlyStopping* callback : {&first, &second}) {
    callback->set_model(model);
    callback->on_train_begin();
  }
  model.fit(model_tests::three_classes(21).batch(8), {.verbose = kSilent});
  const auto best = components_of(model);
  first.on_epoch_end(0, one_value("loss", 1.0));
  model.fit(model_tests::three_classes(21).batch(8), {.verbose = kSilent});
  ASSERT_NE(components_of(model), best);
  second.restore_tensors(first.save_tensors());  // in the order of Checkpoint
  second.restore_state(Json::parse(first.save_state().dump()));
  second.on_train_end({});
  EXPECT_EQ(components_of(model), best);
}

TEST(MonitorTest, TheCompiledMetricSaysWhatIsBetter) {
  const auto best_of = [](const std::string& name, MonitorMode mode) {
    Sequential model = watched_model();
    ModelCheckpoint best(::testing::TempDir() + "/tutti_monitor_{epoch}",
                         {.save_best_only = true, .monitor = name, .mode = mode});
    best.set_model(model);
    best.on_train_begin();
    std::int64_t epoch = 0;
    for (const double value : {0.6, 0.9, 0.3, 0.7})
      best.on_epoch_end(epoch++, one_value(name, value));
    return std::filesystem::path(best.last_path()).filename().string();
  };
  for (const char* name : {"val_auc", "auc", "val_precision", "val_accuracy"})
    EXPECT_EQ(best_of(name, MonitorMode::kAuto), "tutti_monitor_2") << name;
  for (const char* name : {"val_loss", "loss", "mae", "val_weighted_mae"})
    EXPECT_EQ(best_of(name, MonitorMode::kAuto), "tutti_monitor_3") << name;
  EXPECT_EQ(best_of("val_true_positives", MonitorMode::kMax), "tutti_monitor_2");
  // Keras's numbers for these values: 6 epochs, the best is 3.
  EXPECT_EQ(stopped_at(EarlyStopping({.monitor = "val_auc", .patience = 2}), "val_auc",
                       {0.5, 0.6, 0.7, 0.9, 0.8, 0.85, 1.0}),
            5);
  EXPECT_EQ(watched_model().metric_direction("val_weighted_mae"), MetricDirection::kDown);
}

TEST(MonitorTest, OutputsAreFoundByTheNamesOfTheLogs) {
  const SymbolicTensor x = Input{{2}};
  Functional model({x}, {Dense(1, {.name = "left"})(x), Dense(1, {.name = "right"})(x)});
  model.compile({.losses = {"mse", "mse"}, .output_metrics = {{"auc"}, {"mae"}}});
  EXPECT_EQ(model.metric_direction("val_left_auc"), MetricDirection::kUp);
  EXPECT_EQ(model.metric_direction("right_mae"), MetricDirection::kDown);
  EXPECT_EQ(model.metric_direction("right_loss"), MetricDirection::kDown);
  EXPECT_EQ(model.metric_direction("auc"), MetricDirection::kUnknown);
}

TEST(MonitorTest, ANameWithoutDirectionIsRefusedBeforeTraining) {
  Sequential model = watched_model();
  const auto fit_error = [&](AnyCallback callback) {
    return error_of([&] {
      model.fit(alternating(4), alternating(4), {.callbacks = {callback}, .verbose = kSilent});
    });
  };
  const std::string text = fit_error(EarlyStopping({.monitor = "val_bleu"}));
  EXPECT_THAT(text, HasSubstr("EarlyStopping: whether larger values of 'val_bleu' are better"));
  EXPECT_THAT(text,
              HasSubstr("expected one of loss, accuracy, auc, precision, mae, weighted_mae "));
  EXPECT_THAT(text, HasSubstr("try .mode = MonitorMode::kMax or MonitorMode::kMin"));
  EXPECT_THAT(fit_error(ReduceLROnPlateau({.monitor = "val_true_positives"})),
              HasSubstr("ReduceLROnPlateau: whether larger"));
  EXPECT_THAT(fit_error(ModelCheckpoint("x", {.save_best_only = true, .monitor = "f1"})),
              HasSubstr("ModelCheckpoint: whether larger"));
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 0);
  const EarlyStopping told({.monitor = "val_bleu", .mode = MonitorMode::kMax});
  model.fit(alternating(4), alternating(4), {.callbacks = {told}, .verbose = kSilent});
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 1);
}

TEST(EarlyStoppingTest, EndsFit) {
  Sequential model = small_model();
  auto stopping =
      std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "loss", .min_delta = 10.0});
  const History history = model.fit(alternating(8), alternating(8),
                                    {.epochs = 9, .callbacks = {stopping}, .verbose = kSilent});
  EXPECT_EQ(history.epochs().size(), 2u);
  EXPECT_EQ(stopping->stopped_epoch(), 1);
}

}  // namespace
}  // namespace tutti

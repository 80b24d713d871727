// Tests callbacks: early stopping, learning rates, checkpoints, logs and NaN checks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/callbacks.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include "core/file.h"
#include "tests/model/model_helpers.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/warnings.h"
#include "tutti/core/json.h"
#include "tutti/model/functional.h"

namespace tutti::testing::callbacks_test {

TEST(LearningRateSchedulerTest, SetsTheRateOfEachEpoch) {
  Sequential model = small_model();
  std::vector<double> seen;
  const History history =
      model.fit(alternating(4), alternating(4),
                {.epochs = 3,
                 .callbacks = {LearningRateScheduler([&](std::int64_t epoch, double rate) {
                   seen.push_back(rate);
                   return epoch == 0 ? 0.5 : rate * 0.5;
                 })},
                 .verbose = kSilent});
  EXPECT_THAT(seen, ElementsAre(0.1, 0.5, 0.25));
  EXPECT_EQ(model.optimizer().learning_rate(), 0.125);
  EXPECT_THAT(history["learning_rate"], ElementsAre(0.5, 0.25, 0.125));
}

TEST(FitLogs, IncludeScheduledLearningRate) {
  Sequential model = small_model();
  const ExponentialDecayOptions halved{
      .initial_learning_rate = 0.4, .decay_steps = 1, .decay_rate = 0.5};
  model.compile(
      {.optimizer = SgdOptions{.learning_rate = ExponentialDecay(halved)}, .loss = "mse"});
  const History history =
      model.fit(alternating(4), alternating(4), {.epochs = 3, .batch_size = 4, .verbose = kSilent});
  EXPECT_THAT(history["learning_rate"], ElementsAre(0.2, 0.1, 0.05));
}

TEST(ModelCheckpointTest, SavesEachEpochToFormattedPathOrOnlyBest) {
  const std::string folder = empty_folder();
  Sequential model = small_model();
  ModelCheckpoint each(folder + "/{epoch}-{loss}.safetensors", {.save_weights_only = true});
  each.set_model(model);
  each.on_epoch_end(0, one_value("loss", 0.25));
  EXPECT_TRUE(std::filesystem::exists(folder + "/1-0.2500.safetensors"));
  EXPECT_THAT(error_of([&] {
                ModelCheckpoint bad(folder + "/{val_loss}", {});
                bad.set_model(model);
                bad.on_epoch_end(0, one_value("loss", 0.25));
              }),
              HasSubstr("there is no value 'val_loss'; expected one of loss"));
  ModelCheckpoint best(folder + "/best-{epoch}", {.save_best_only = true});
  best.set_model(model);
  std::vector<std::string> paths;
  for (const double value : {2.0, 3.0, 1.0}) {
    best.on_epoch_end(static_cast<std::int64_t>(paths.size()), one_value("val_loss", value));
    paths.push_back(std::filesystem::path(best.last_path()).filename());
  }
  EXPECT_THAT(paths, ElementsAre("best-1", "best-1", "best-3"));
}

TEST(ModelCheckpointTest, InvalidPathTemplateIsRejectedBeforeTraining) {
  EXPECT_INVALID(ModelCheckpoint("run/{epoch:02d}.safetensors"), "got {epoch:02d}", "use {epoch}");
  EXPECT_INVALID(ModelCheckpoint("{epoch}-{val_loss:.2f}.safetensors"), "use {val_loss}");
  const std::string folder = empty_folder();
  Sequential model = small_model();
  const Tensor x = alternating(8);
  const FitOptions fit{.callbacks = {ModelCheckpoint(folder + "/{val_loss}.safetensors")},
                       .verbose = kSilent};
  EXPECT_INVALID(model.fit(x, x, fit),
                 "the path contains {val_loss}, but fit() has no validation_data");
  EXPECT_EQ(model.epochs_trained(), 0);
}

TEST(ModelCheckpointTest, RestoredModelContinuesBitIdentically) {
  const std::string folder = empty_folder();
  for (const int replicas : {1, 2}) {
    auto train = [&](std::int64_t stop_after) {
      set_random_seed(9);  // a strategy reads the seed when it is constructed
      auto strategy = mirrored("cpu:0", replicas);
      auto scope = strategy->scope();
      Sequential model(Input{{4}}, Dense(8), BatchNormalization(), Dropout(0.3), Dense(3));
      model.compile({.optimizer = "adam", .loss = "sparse_categorical_crossentropy"});
      const Dataset data = three_classes(40).shuffle(40, 2).batch(16);
      const std::string path = concat(folder, "/checkpoint", replicas, ".safetensors");
      if (stop_after == 0) {  // resumes the stopped run
        model.checkpoint().restore(path);
        EXPECT_EQ(model.epochs_trained(), 2);
      }
      model.fit(data, {.epochs = stop_after == 0 ? 4 : stop_after,
                       .callbacks = {ModelCheckpoint(path)},
                       .initial_epoch = model.epochs_trained(),
                       .verbose = kSilent});
      return hash_variables(model.variables());
    };
    const std::string straight = train(4);
    EXPECT_NE(train(2), straight);
    EXPECT_EQ(train(0), straight);
  }
}

TEST(ModelTest, SavesAndLoadsWeightsAcrossStrategies) {
  const std::string path = empty_folder() + "/weights.safetensors";
  Sequential model = small_model();
  model.save_weights(path);
  auto strategy = mirrored("cpu:0-1");
  auto scope = strategy->scope();
  set_random_seed(123);
  Sequential other(Input{{1}}, Dense(4, {.activation = "tanh"}), Dense(1));
  ASSERT_NE(weights_of(other), weights_of(model));
  other.load_weights(path);
  EXPECT_EQ(weights_of(other), weights_of(model));
  Sequential different(Input{{1}}, Dense(5), Dense(1));
  EXPECT_INVALID(different.load_weights(path), "dense/kernel");
}

TEST(JsonLogTest, WritesOneLinePerEpoch) {
  const std::string folder = empty_folder();
  Sequential model = small_model();
  const Tensor x = alternating(8);
  const History history = model.fit(x, x,
                                    {.epochs = 2,
                                     .batch_size = 4,
                                     .validation_data = {x, x},
                                     .callbacks = {JsonLog(folder), TensorBoard(folder)},
                                     .verbose = kSilent});
  const std::string text = read_file(folder + "/log.jsonl");
  const std::size_t end_of_line = text.find('\n');
  const Json first = Json::parse(text.substr(0, end_of_line));
  const Json second = Json::parse(text.substr(end_of_line + 1));
  EXPECT_EQ(first.at("epoch").as_int(), 0);
  EXPECT_EQ(second.at("step").as_int(), 4);
  EXPECT_EQ(second.at("loss").as_double(), history["loss"][1]);
  EXPECT_EQ(second.at("val_loss").as_double(), history["val_loss"][1]);
  EXPECT_TRUE(std::filesystem::exists(folder + "/train"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/validation"));
}

TEST(LearningRateScalingTest, UsesFormulaOrTableOfBatchSizes) {
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 256, 1024), 0.4);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 256, 1024, LearningRateScaling::kSquareRoot), 0.2);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 256, 64), 0.025);
  EXPECT_INVALID(scaled_learning_rate(0.1, 0, 4), "positive batch sizes");
  const std::map<std::int64_t, double> rates = {{5, 0.1}, {10, 0.15}, {20, 0.175}};
  EXPECT_EQ(learning_rate_for_batch(rates, 5), 0.1);
  EXPECT_EQ(learning_rate_for_batch(rates, 10), 0.15);
  EXPECT_ERROR(learning_rate_for_batch(rates, 7), kNotFound,
               "no rate for a global batch of 7; expected one of 5, 10, 20");
}

TEST(LogsTest, UnknownNameErrorListsKnownNames) {
  Logs logs;
  logs.set("loss", 1.0);
  logs.set("loss", 2.0);
  EXPECT_EQ(logs["loss"], 2.0);
  EXPECT_ERROR(logs.at("accuracy"), kNotFound, "expected one of loss");
  History history;
  history.append(0, logs);
  EXPECT_ERROR(history.at("val_loss"), kNotFound, "expected one of loss");
}

TEST(CsvLoggerTest, WritesReadableLinePerEpoch) {
  const std::string path = empty_folder() + "/runs/log.csv";
  Sequential model = small_model();
  const Tensor x = alternating(8);
  auto train = [&](CsvLoggerOptions options, FitOptions fit) {
    fit.callbacks = {CsvLogger(path, options)};
    fit.verbose = kSilent;
    fit.validation_data = {x, x};
    return model.fit(x, x, fit);
  };
  const History history = train({}, {.epochs = 2, .validation_freq = 2});
  const std::string first = read_file(path);
  EXPECT_EQ(first.substr(0, first.find(',')), "epoch");
  EXPECT_THAT(first, StartsWith("epoch,loss,val_loss\n0,"));
  EXPECT_EQ(std::stod(first.substr(first.find("\n0,") + 3)), history["loss"][0]);
  EXPECT_THAT(first.substr(0, first.find("\n1,")), EndsWith(",NA"));
  EXPECT_EQ(std::stod(first.substr(first.rfind(',') + 1)), history["val_loss"][0]);
  const History more = train({.mode = CsvMode::kAppend}, {.epochs = 4, .initial_epoch = 2});
  const std::string all = read_file(path);
  EXPECT_EQ(all.substr(0, first.size()), first);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 5) << "one header and four epochs";
  EXPECT_EQ(std::stod(all.substr(all.find("\n3,") + 3)), more["loss"][1]);
  train({.separator = ";"}, {.epochs = 1});
  EXPECT_THAT(read_file(path), StartsWith("epoch;loss;val_loss\n0;"));
}

TEST(CsvLoggerTest, WarnsAboutValuesWithoutColumn) {
  const std::string path = empty_folder() + "/log.csv";
  Sequential model = small_model();
  const Tensor x = alternating(8);
  model.fit(x, x, {.callbacks = {CsvLogger(path)}, .verbose = kSilent});
  const auto warnings = warnings_of([&] {
    model.fit(x, x,
              {.epochs = 3,
               .validation_data = {x, x},
               .callbacks = {CsvLogger(path, {.mode = CsvMode::kAppend})},
               .initial_epoch = 1,
               .verbose = kSilent});
  });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("no column 'val_loss'"));
}

TEST(CsvLoggerTest, MarksMissingValues) {
  const std::string path = empty_folder() + "/log.csv";
  CsvLogger logger(path);
  logger.on_train_begin();
  Logs both = one_value("loss", 0.5);
  both.set("accuracy", 0.25);
  logger.on_epoch_end(0, both);
  logger.on_epoch_end(1, one_value("loss", 0.125));
  EXPECT_EQ(read_file(path), "epoch,accuracy,loss\n0,0.25,0.5\n1,NA,0.125\n");
  EXPECT_THAT(error_of([] {
                CsvLogger bad("/dev/null/log.csv");
                bad.on_epoch_end(0, one_value("loss", 1.0));
              }),
              HasSubstr("CsvLogger: cannot write /dev/null/log.csv"));
}

TEST(TerminateOnNaNTest, ReportsReplicaAndStep) {
  auto strategy = mirrored("cpu:0-2");
  auto scope = strategy->scope();
  Sequential model = small_model();
  // Each batch has 3 rows, one per replica; row 7 is in batch 2, on replica 1.
  std::vector<float> values(12, 1.0f);
  values[7] = std::numeric_limits<float>::infinity();
  const Tensor labels = Tensor::from({12, 1}, values);
  auto guard = std::make_shared<TerminateOnNaN>();
  model.fit(
      Tensor::ones({12, 1}), labels,
      {.epochs = 3, .batch_size = 3, .callbacks = {guard}, .verbose = kSilent, .shuffle = false});
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 3);
  EXPECT_THAT(guard->reason(), HasSubstr("in epoch 0, batch 2 (step 2)"));
  EXPECT_THAT(guard->reason(), HasSubstr("the loss of replica 1 is not finite"));
  Sequential sound = small_model();
  sound.fit(alternating(6), alternating(6), {.callbacks = {guard}, .verbose = kSilent});
  EXPECT_EQ(guard->reason(), "");
}

/// Returns the warnings logged by two epochs of fit() in which row 7 of 12 has an infinite loss: in
/// step 2, and on replica 1 if there are three.
std::vector<std::string> warnings_of_infinite_loss(const char* devices) {
  auto strategy = mirrored(devices);
  auto scope = strategy->scope();
  Sequential model = small_model();
  std::vector<float> values(12, 1.0f);
  values[7] = std::numeric_limits<float>::infinity();
  return warnings_of([&] {
    model.fit(Tensor::ones({12, 1}), Tensor::from({12, 1}, values),
              {.epochs = 2, .batch_size = 3, .verbose = kSilent, .shuffle = false});
  });
}

TEST(FitWarnings, NonFiniteLossWarnsOnceWithReplicaAndStep) {
  const auto lines = warnings_of_infinite_loss("cpu:0-2");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], StartsWith("replica 1, step 2: the step of 'mirrored' returned inf; "));
}

TEST(FitWarnings, NonFiniteGpuLossIsReportedAtEpochEnd) {
  FakeGpus gpus;
  const auto lines = warnings_of_infinite_loss("gpu:0");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("replica 0, step 4 or earlier: the loss of "
                                  "Model::fit is not finite; "));
}

/// Returns the learning rate after each epoch, given the values of `monitor`. The initial rate is
/// 0.1.
std::vector<double> plateau_rates(ReduceLROnPlateauOptions options,
                                  const std::vector<double>& values) {
  Sequential model = watched_model();
  model.optimizer().set_learning_rate(0.1);
  ReduceLROnPlateau callback(options);
  callback.set_model(model);
  callback.on_train_begin();
  std::vector<double> rates;
  for (std::size_t epoch = 0; epoch < values.size(); ++epoch) {
    callback.on_epoch_end(static_cast<std::int64_t>(epoch),
                          one_value(options.monitor, values[epoch]));
    rates.push_back(model.optimizer().learning_rate());
  }
  return rates;
}

TEST(ReduceLROnPlateauTest, LowersRateAfterPatience) {
  EXPECT_THAT(plateau_rates({.factor = 0.5, .patience = 2}, {3, 3, 3, 3, 3, 2}),
              ElementsAre(0.1, 0.1, 0.05, 0.05, 0.025, 0.025));
  EXPECT_THAT(plateau_rates({.factor = 0.5, .patience = 1, .cooldown = 2}, {3, 3, 3, 3, 3, 3}),
              ElementsAre(0.1, 0.05, 0.05, 0.025, 0.025, 0.0125));
  EXPECT_THAT(plateau_rates({.factor = 0.1, .patience = 1, .min_lr = 0.05}, {3, 3, 3}),
              ElementsAre(0.1, 0.05, 0.05));
  EXPECT_THAT(plateau_rates({.monitor = "val_accuracy", .factor = 0.5, .patience = 1}, {1, 2, 2}),
              ElementsAre(0.1, 0.1, 0.05));
  EXPECT_THAT(plateau_rates({.factor = 0.5, .patience = 1, .min_delta = 0.5}, {3, 2.6, 2.4}),
              ElementsAre(0.1, 0.05, 0.05));
  EXPECT_INVALID(ReduceLROnPlateau bad({.factor = 1.0}), "(0, 1), got 1");
}

TEST(ModelCheckpointTest, KeepsNewestOrBestCheckpoints) {
  const std::string folder = empty_folder();
  Sequential model = small_model();
  ModelCheckpoint newest(folder + "/new-{epoch}", {.max_to_keep = 2});
  ModelCheckpoint best(folder + "/best-{epoch}", {.save_best_only = true,
                                                  .monitor = "loss",
                                                  .max_to_keep = 2,
                                                  .initial_value_threshold = 5.0});
  std::int64_t epoch = 0;
  for (const double value : {6.0, 4.0, 4.5, 3.0, 2.0, 2.5}) {
    for (ModelCheckpoint* callback : {&newest, &best}) {
      callback->set_model(model);
      callback->on_epoch_end(epoch, one_value("loss", value));
    }
    ++epoch;
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path().filename());
  EXPECT_THAT(files, UnorderedElementsAre("new-5", "new-6", "best-4", "best-5"));
  EXPECT_THAT(best.paths(), ElementsAre(folder + "/best-4", folder + "/best-5"));
}

TEST(ModelCheckpointTest, SavesOnlyWhenBetterThanInitialThreshold) {
  // Returns the epochs in which the model is saved, given these values and a threshold of 5.
  const auto saved = [](ModelCheckpointOptions options, const std::vector<double>& values) {
    const std::string folder = empty_folder();
    Sequential model = small_model();
    options.save_best_only = true;
    options.initial_value_threshold = 5.0;
    ModelCheckpoint callback(folder + "/{epoch}", options);
    callback.set_model(model);
    callback.on_train_begin();
    std::vector<int> epochs;
    for (std::size_t epoch = 0; epoch < values.size(); ++epoch) {
      callback.on_epoch_end(static_cast<std::int64_t>(epoch),
                            one_value(options.monitor, values[epoch]));
      if (std::filesystem::exists(concat(folder, "/", epoch + 1)))
        epochs.push_back(static_cast<int>(epoch + 1));
    }
    return epochs;
  };
  EXPECT_THAT(saved({.monitor = "loss"}, {6.0, 5.0, 4.0, 4.5, 3.0}), ElementsAre(3, 5));
  EXPECT_THAT(saved({.monitor = "loss"}, {7.0, 6.0}), ElementsAre());
  EXPECT_THAT(saved({.monitor = "score", .mode = MonitorMode::kMax}, {4.0, 5.0, 6.0, 5.5, 7.0}),
              ElementsAre(3, 5));
}

TEST(ModelCheckpointTest, SavesEveryNBatches) {
  const std::string folder = empty_folder();
  Sequential model = small_model();
  model.fit(alternating(10), alternating(10),
            {.epochs = 2,
             .batch_size = 2,
             .callbacks = {ModelCheckpoint(folder + "/{epoch}-{batch}", {.save_freq = 3})},
             .verbose = kSilent});
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path().filename());
  EXPECT_THAT(files, UnorderedElementsAre("1-3", "2-1", "2-4"));
}

/// Reports `values` of `monitor` to `callback`, one per epoch. Returns the epoch at which
/// `callback` stopped training, or -1.
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

TEST(EarlyStoppingTest, StopsAfterPatienceWithoutImprovement) {
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
      << "a number is better than NaN";
  EXPECT_EQ(stopped_at(EarlyStopping({.start_from_epoch = 2}), "val_loss", {1, 2, 3, 2, 3}), 4);
  EXPECT_EQ(stopped_at(EarlyStopping({.start_from_epoch = 2}), "val_loss", {1, 2, 3, 4, 2}), 3)
      << "epoch 2 is the first that counts, epoch 3 is worse";
  EXPECT_EQ(stopped_at(EarlyStopping({.start_from_epoch = 2}), "val_loss", {3, 1, 2, 1.5, 1.6}), 4)
      << "epoch 1 precedes start_from_epoch";
  EXPECT_EQ(stopped_at(EarlyStopping({.min_delta = 0.25, .patience = 3, .baseline = 1.0}),
                       "val_loss", {2, 1.5, 0.875, 0.5}),
            2)
      << "0.875 is not better than the baseline by min_delta";
}

TEST(EarlyStoppingTest, RestoresWeightsOfBestEpoch) {
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
  ASSERT_NE(weights_of(model), best) << "weights must be restored only in on_train_end()";
  callback.on_train_end({});
  EXPECT_EQ(weights_of(model), best);
}

/// Returns the values saved for each variable, by name: one per replica for moving averages.
std::map<std::string, std::vector<double>> components_of(const Model& model) {
  std::map<std::string, std::vector<double>> all;
  for (const Variable& variable : model.variables())
    for (const NamedTensor& part : variable.storage().save())
      all[part.name] = part.value.to_doubles();
  return all;
}

TEST(EarlyStoppingTest, RestoresReplicaAveragesEvenWithoutEarlyStop) {
  for (const std::int64_t patience : {1, 50}) {
    auto strategy = mirrored("cpu:0-1");
    auto scope = strategy->scope();
    set_random_seed(3);
    Sequential model(Input{{4}}, Dense(6), BatchNormalization(), Dense(3));
    model.compile(
        {.optimizer = SgdOptions{.learning_rate = 0.1}, .loss = "sparse_categorical_crossentropy"});
    // The training loss falls, so under kMax the first epoch is the best.
    auto stopping =
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "loss",
                                                             .patience = patience,
                                                             .mode = MonitorMode::kMax,
                                                             .restore_best_weights = true});
    std::vector<std::map<std::string, std::vector<double>>> after_epochs;
    const LambdaCallback notes({.on_epoch_end = [&](std::int64_t, const Logs&) {
      after_epochs.push_back(components_of(model));
    }});
    model.fit(three_classes(21).batch(8),
              {.epochs = 4, .callbacks = {notes, stopping}, .verbose = kSilent});
    ASSERT_EQ(after_epochs.size(), patience == 1 ? 2u : 4u);
    ASSERT_EQ(stopping->best_epoch(), 0);
    EXPECT_EQ(components_of(model), after_epochs[0]) << "patience " << patience;
    const auto& mean = after_epochs[0];
    EXPECT_NE(mean.at("batch_normalization/moving_mean/replica_0"),
              mean.at("batch_normalization/moving_mean/replica_1"))
        << "this test needs replicas with different averages";
  }
}

TEST(EarlyStoppingTest, BestWeightsAreSavedInCallbackState) {
  auto strategy = mirrored("cpu:0-1");
  auto scope = strategy->scope();
  Sequential model(Input{{4}}, BatchNormalization(), Dense(3));
  model.compile({.loss = "sparse_categorical_crossentropy"});
  const EarlyStoppingOptions options{.monitor = "loss", .restore_best_weights = true};
  EarlyStopping first(options), second(options);
  for (EarlyStopping* callback : {&first, &second}) {
    callback->set_model(model);
    callback->on_train_begin();
  }
  model.fit(three_classes(21).batch(8), {.verbose = kSilent});
  const auto best = components_of(model);
  first.on_epoch_end(0, one_value("loss", 1.0));
  model.fit(three_classes(21).batch(8), {.verbose = kSilent});
  ASSERT_NE(components_of(model), best);
  second.restore_tensors(first.save_tensors());  // same call order as in Checkpoint
  second.restore_state(Json::parse(first.save_state().dump()));
  second.on_train_end({});
  EXPECT_EQ(components_of(model), best);
}

TEST(MonitorTest, CompiledMetricDeterminesDirection) {
  const auto best_of = [](const std::string& name, MonitorMode mode) {
    Sequential model = watched_model();
    ModelCheckpoint best(TempDir() + "/tutti_monitor_{epoch}",
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
  // As in Keras: training stops after 6 epochs, and epoch 3 is the best.
  EXPECT_EQ(stopped_at(EarlyStopping({.monitor = "val_auc", .patience = 2}), "val_auc",
                       {0.5, 0.6, 0.7, 0.9, 0.8, 0.85, 1.0}),
            5);
  EXPECT_EQ(watched_model().metric_direction("val_weighted_mae"), MetricDirection::kDown);
}

TEST(MonitorTest, ResolvesOutputMetricsByLogName) {
  const SymbolicTensor x = Input{{2}};
  Functional model({x}, {Dense(1, {.name = "left"})(x), Dense(1, {.name = "right"})(x)});
  model.compile({.losses = {"mse", "mse"}, .output_metrics = {{"auc"}, {"mae"}}});
  EXPECT_EQ(model.metric_direction("val_left_auc"), MetricDirection::kUp);
  EXPECT_EQ(model.metric_direction("right_mae"), MetricDirection::kDown);
  EXPECT_EQ(model.metric_direction("right_loss"), MetricDirection::kDown);
  EXPECT_EQ(model.metric_direction("auc"), MetricDirection::kUnknown);
}

TEST(MonitorTest, UnknownDirectionIsRejectedBeforeTraining) {
  Sequential model = watched_model();
  const auto fit_error = [&](AnyCallback callback) {
    return error_of([&] {
      model.fit(alternating(4), alternating(4), {.callbacks = {callback}, .verbose = kSilent});
    });
  };
  const std::string text = fit_error(EarlyStopping({.monitor = "val_bleu"}));
  EXPECT_THAT(
      text,
      HasSubstr("EarlyStopping: it is unknown whether larger values of 'val_bleu' are better"));
  EXPECT_THAT(text,
              HasSubstr("expected one of loss, accuracy, auc, precision, mae, weighted_mae "));
  EXPECT_THAT(text, HasSubstr("use .mode = MonitorMode::kMax or MonitorMode::kMin"));
  EXPECT_THAT(fit_error(ReduceLROnPlateau({.monitor = "val_true_positives"})),
              HasSubstr("ReduceLROnPlateau: it is unknown whether larger"));
  EXPECT_THAT(fit_error(ModelCheckpoint("x", {.save_best_only = true, .monitor = "f1"})),
              HasSubstr("ModelCheckpoint: it is unknown whether larger"));
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 0);
  const EarlyStopping told({.monitor = "val_bleu", .mode = MonitorMode::kMax});
  model.fit(alternating(4), alternating(4), {.callbacks = {told}, .verbose = kSilent});
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 1);
}

}  // namespace tutti::testing::callbacks_test

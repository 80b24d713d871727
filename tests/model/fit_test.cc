// Tests fit, evaluate and predict under strategies, and calls that callbacks make during fit.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/file.h"
#include "tests/model/model_helpers.h"
#include "tests/support/warnings.h"

namespace tutti::testing::fit_test {

TEST(FitTest, StrategyChangesOnlyRounding) {
  for (const bool as_dataset : {false, true}) {
    // TensorFlow's test also uses 10,000 rows. Fewer rows suffice for the dataset, because its data
    // are the same.
    const std::int64_t rows = as_dataset ? 1280 : 10'000;
    const Outcome expected = correctness_run(nullptr, rows, as_dataset, !as_dataset);
    EXPECT_LT(expected.loss[1], expected.loss[0]);
    auto strategies = several_strategies();
    for (const auto& strategy : strategies) {
      SCOPED_TRACE(label_of(*strategy));
      expect_equal_outcomes(correctness_run(strategy.get(), rows, as_dataset, !as_dataset),
                            expected, 1e-5);
    }
  }
}

TEST(FitTest, PartialLastBatchIsWeightedExactly) {
  // 10 batches of 64 rows and one of 3 rows: with 4 replicas, one replica gets no rows.
  const Outcome expected = correctness_run(nullptr, 643, false, true);
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    // TensorFlow's test uses a tolerance of 1e-3 and ignores the loss of the last batch; this test
    // compares all losses with a tolerance of 1e-5.
    expect_equal_outcomes(correctness_run(strategy.get(), 643, false, true), expected, 1e-5);
  }
}

TEST(FitTest, EvaluationAveragesOverExamplesWithPartialBatch) {
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    auto scope = strategy->scope();
    Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "ones"}));
    model.compile({.loss = "mse", .metrics = {"mae"}, .weighted_metrics = {MetricSpec("mse")}});
    // Errors are 0, 1, ..., 10; the batches have 4, 4 and 3 rows.
    std::vector<float> values(11);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const Tensor x = Tensor::from<float>({11, 1}, values);
    const Logs logs = model.evaluate(x, Tensor::zeros({11, 1}), {.batch_size = 4});
    EXPECT_NEAR(logs["loss"], 35.0, 1e-5);
    EXPECT_NEAR(logs["mae"], 5.0, 1e-6);
    // With weights, the loss is divided by the number of examples; weighted metrics are divided by
    // the sum of weights.
    std::vector<float> ones_and_zeros(11, 0.0f);
    ones_and_zeros[10] = ones_and_zeros[2] = 1.0f;
    const Logs weighted =
        model.evaluate(x, Tensor::zeros({11, 1}),
                       {.batch_size = 4, .sample_weight = Tensor::from({11}, ones_and_zeros)});
    EXPECT_NEAR(weighted["loss"], 104.0 / 11, 1e-5);
    EXPECT_NEAR(weighted["mse"], 52.0, 1e-5);
    EXPECT_NEAR(weighted["mae"], 5.0, 1e-6);
  }
}

TEST(FitTest, PerBatchLearningRateHasSameEffectUnderEveryStrategy) {
  auto run = [](Strategy* strategy) {
    Sequential model = correctness_model(strategy);
    const Tensor x = alternating(640);
    model.fit(x, x,
              {.epochs = 2,
               .batch_size = 32,
               .callbacks = {BatchLearningRateScheduler([](std::int64_t batch, double) {
                 return 0.001 * static_cast<double>(batch % 10);
               })},
               .verbose = kSilent,
               .shuffle = false});
    EXPECT_NEAR(model.optimizer().learning_rate(), 0.009, 1e-12);
    return weights_of(model);
  };
  const std::vector<double> expected = run(nullptr);
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    expect_near(run(strategy.get()), expected, 1e-5);
  }
}

TEST(FitTest, LossReductionsGiveSameHistoryWithAndWithoutStrategy) {
  using enum LossReduction;
  for (const LossReduction reduction : {kSumOverBatchSize, kSum, kAuto}) {
    auto run = [&](Strategy* strategy) {
      std::optional<Scope> scope;
      if (strategy) scope.emplace(strategy->scope());
      Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "zeros"}));
      model.compile({.optimizer = SgdOptions{.learning_rate = 0.001},
                     .loss = MeanSquaredError({.reduction = reduction})});
      const Tensor x = Tensor::ones({64, 1});
      return model.fit(x, x, {.epochs = 2, .batch_size = 32, .verbose = kSilent})["loss"];
    };
    const std::vector<double> expected = run(nullptr);
    EXPECT_NEAR(expected[0] > 10.0, reduction == kSum, 0) << reduction;
    for (const auto& strategy : several_strategies()) {
      SCOPED_TRACE(concat(label_of(*strategy), " ", reduction));
      expect_near(run(strategy.get()), expected, 1e-5);
    }
  }
}

/// Layer that adds a loss and a metric, like Keras's add_loss and add_metric.
class LossAndMetric : public Layer {
 protected:
  Shape build(const Shape& input) override {
    mean_ = std::make_shared<Mean>("activity");
    add_metric(mean_);
    return input;
  }
  Tensor call(const Tensor& input, CallContext context) const override {
    add_loss(context, reduce_mean(input) * 0.1);
    mean_->update_state(input);
    return input;
  }

 private:
  std::shared_ptr<Mean> mean_;
};

TEST(FitTest, AddedLossesAndMetricsAreEqualWithAndWithoutStrategy) {
  auto run = [](Strategy* strategy, std::optional<Loss> loss) {
    std::optional<Scope> scope;
    if (strategy) scope.emplace(strategy->scope());
    Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "ones"}), LossAndMetric());
    model.compile({.loss = loss});
    EXPECT_THAT(model.metrics_names(), ElementsAre("loss", "activity"));
    const Tensor x = alternating(64);
    const History history =
        model.fit(x, x, {.epochs = 2, .batch_size = 32, .verbose = kSilent, .shuffle = false});
    std::vector<double> values = history["loss"];
    for (const double value : history["activity"]) values.push_back(value);
    return values;
  };
  for (const std::optional<Loss>& loss : {std::optional<Loss>("mse"), std::optional<Loss>()}) {
    const std::vector<double> expected = run(nullptr, loss);
    for (const auto& strategy : several_strategies()) {
      // Three replicas get different numbers of rows from a batch of 32, so the mean of the
      // replicas' means differs from the mean of the batch.
      if (strategy->num_replicas_in_sync() == 3) continue;
      SCOPED_TRACE(label_of(*strategy));
      expect_near(run(strategy.get(), loss), expected, 1e-5);
    }
  }
}

/// Records the calls that it receives.
class Recorder : public Callback {
 public:
  void on_train_begin() override { events.push_back("train"); }
  void on_train_end(const Logs&) override { events.push_back("end"); }
  void on_epoch_begin(std::int64_t epoch) override { events.push_back(concat("epoch ", epoch)); }
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override {
    events.push_back(concat("epoch ", epoch, " ended", logs.has("val_loss") ? " validated" : ""));
  }
  void on_train_batch_begin(std::int64_t batch) override { begins.push_back(batch); }
  void on_train_batch_end(std::int64_t batch, const Logs& logs) override {
    ends.push_back(batch);
    EXPECT_TRUE(logs.has("loss"));
  }
  void on_test_begin() override { events.push_back("test"); }
  void on_test_batch_end(std::int64_t batch, const Logs&) override { test_ends.push_back(batch); }

  std::vector<std::string> events;
  std::vector<std::int64_t> begins, ends, test_ends;
};

TEST(FitTest, CallbacksSeeEachGlobalBatchOnce) {
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    Sequential model = correctness_model(strategy.get());
    auto recorder = std::make_shared<Recorder>();
    const Tensor x = alternating(20);
    model.fit(x, x,
              {.epochs = 2,
               .batch_size = 8,
               .validation_data = {x, x},
               .callbacks = {recorder},
               .verbose = kSilent});
    EXPECT_THAT(recorder->begins, ElementsAre(0, 1, 2, 0, 1, 2));
    EXPECT_EQ(recorder->ends, recorder->begins);
    EXPECT_EQ(recorder->test_ends, recorder->begins);
    EXPECT_THAT(recorder->events, ElementsAre("train", "epoch 0", "test", "epoch 0 ended validated",
                                              "epoch 1", "test", "epoch 1 ended validated", "end"));
  }
}

TEST(FitTest, ResultsAreBitIdenticalUnderDifferentStrategies) {
  set_random_seed(3);  // a strategy reads the seed when it is constructed
  auto train = [](Strategy& strategy) {
    set_random_seed(3);
    auto scope = strategy.scope();
    Sequential model(Input{{4}}, Dense(16), BatchNormalization(), Relu(), Dropout(0.2), Dense(3));
    model.compile(
        {.optimizer = "adam", .loss = "sparse_categorical_crossentropy", .metrics = {"accuracy"}});
    // 130 rows in batches of 32: the last batch is partial.
    model.fit(three_classes(130).shuffle(130, 5).batch(32), {.epochs = 2, .verbose = kSilent});
    return hash_variables(model.variables());
  };
  const std::string expected = train(*mirrored("cpu:0-3"));
  EXPECT_EQ(train(*central("cpu:0-3")), expected);
  EXPECT_EQ(train(*mirrored("cpu:0-1", 4)), expected);
  EXPECT_EQ(train(*mirrored("cpu:0", 4)), expected);
  EXPECT_EQ(train(*mirrored("cpu:0-3")), expected) << "a second run differs";
  EXPECT_EQ(train(*mirrored("cpu:0")), train(*std::make_unique<OneDeviceStrategy>("cpu:0")));
}

TEST(FitTest, RegularizationIsCountedOnceForAllReplicas) {
  auto run = [](Strategy* strategy) {
    std::optional<Scope> scope;
    if (strategy) scope.emplace(strategy->scope());
    Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = initializers::constant(2.0),
                                           .kernel_regularizer = regularizers::l2(0.1)}));
    model.compile({.optimizer = SgdOptions{.learning_rate = 0.1}, .loss = "mse"});
    const Tensor x = alternating(6);
    const double loss = model.fit(x, x, {.batch_size = 6, .verbose = kSilent})["loss"][0];
    EXPECT_NEAR(loss, 0.5 + 0.1 * 4, 1e-6);  // half of the rows have the loss (2x - x)^2 = 1
    return weights_of(model);
  };
  const std::vector<double> expected = run(nullptr);
  // The gradients are 2 * (2 - 1) / 2 + 0.2 * 2 for the kernel and 2 * 1 / 2 for the bias.
  expect_near(expected, {2 - 0.1 * (1 + 0.4), -0.1}, 1e-6);
  for (const auto& strategy : several_strategies())
    expect_near(run(strategy.get()), expected, 1e-6);
}

TEST(FitTest, ConstraintsAreAppliedUnderEveryStrategy) {
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    auto scope = strategy->scope();
    Sequential model(Input{{1}},
                     Dense(1, {.kernel_initializer = "ones", .kernel_constraint = "non_neg"}));
    model.compile({.optimizer = SgdOptions{.learning_rate = 0.1}, .loss = "mse"});
    // The optimal kernel is -3, which the constraint does not allow.
    const Tensor x = alternating(8) + 1.0;
    model.fit(x, x * -3.0, {.epochs = 3, .batch_size = 4, .verbose = kSilent});
    EXPECT_EQ(model.variables()[0].value().item(), 0.0f);
    EXPECT_LT(model.variables()[1].value().item(), 0.0f);
  }
}

TEST(FitTest, ClassWeightsMatchEquivalentSampleWeights) {
  const Tensor x = random_uniform({48, 4}, {.seed = 11}, -1.0, 1.0);
  const Tensor y = argmax(slice(x, {0, 0}, {-1, 3}), 1);
  const Tensor by_class = gather(Tensor::from<float>({3}, {1.0, 0.5, 3.0}), y);
  const Tensor sample_weight = random_uniform({48}, {.seed = 12});
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    auto run = [&](FitOptions options, const Tensor& labels, const char* loss) {
      set_random_seed(3);
      auto scope = strategy->scope();
      Sequential model(Input{{4}}, Dense(3));
      model.compile({.loss = loss, .metrics = {"accuracy"}, .weighted_metrics = {"accuracy"}});
      options.batch_size = 16;
      options.verbose = kSilent;
      const History history = model.fit(x, labels, options);
      std::vector<double> values = weights_of(model);
      values.push_back(history["loss"][0]);
      values.push_back(history["accuracy"][0]);
      return values;
    };
    const char* sparse = "sparse_categorical_crossentropy";
    const std::map<std::int64_t, double> weights = {{1, 0.5}, {2, 3.0}};
    const std::vector<double> expected = run({.sample_weight = by_class}, y, sparse);
    expect_near(run({.class_weight = weights}, y, sparse), expected, 1e-6);
    expect_near(run({.class_weight = weights}, one_hot(y, 3), "categorical_crossentropy"), expected,
                1e-6);
    expect_near(run({.sample_weight = sample_weight, .class_weight = weights}, y, sparse),
                run({.sample_weight = sample_weight * by_class}, y, sparse), 1e-6);
    EXPECT_GT(std::abs(run({}, y, sparse)[0] - expected[0]), 1e-4);
  }
}

TEST(FitTest, StepsPerExecutionAffectsOnlyCallbacks) {
  auto run = [](std::int64_t steps, std::shared_ptr<Recorder> recorder) {
    auto strategy = mirrored("cpu:0-1");
    set_random_seed(4);
    auto scope = strategy->scope();
    Sequential model(Input{{1}}, Dense(4), Dropout(0.5), Dense(1));
    model.compile({.loss = "mse", .steps_per_execution = steps});
    const Tensor x = alternating(14);
    model.fit(x, x, {.epochs = 2, .batch_size = 2, .callbacks = {recorder}, .verbose = kSilent});
    return weights_of(model);
  };
  auto each = std::make_shared<Recorder>(), third = std::make_shared<Recorder>();
  EXPECT_EQ(run(1, each), run(3, third));
  EXPECT_EQ(each->begins.size(), 14u);
  EXPECT_THAT(third->begins, ElementsAre(0, 3, 6, 0, 3, 6));
  EXPECT_THAT(third->ends, ElementsAre(2, 5, 6, 2, 5, 6));
  EXPECT_INVALID(run(0, each), "positive steps_per_execution, got 0");
}

/// Returns the examples per second from the last line that an epoch prints.
double printed_rate(const std::string& text) {
  const std::size_t end = text.rfind(" examples/s");
  if (end == std::string::npos) return -1.0;
  return std::stod(text.substr(text.rfind(' ', end - 1)));
}

TEST(FitTest, ProgressLineCountsEachStepOfAnExecution) {
  auto strategy = mirrored("cpu:0-1");
  auto scope = strategy->scope();
  Sequential model(Input{{1}}, Dense(1));
  model.compile({.loss = "mse", .steps_per_execution = 3});
  const Tensor x = alternating(24);
  TimePoint begin;
  double seconds = 0.0;
  LambdaCallback stopwatch(
      {.on_epoch_begin = [&](std::int64_t) { begin = Clock::system().now(); },
       .on_epoch_end =
           [&](std::int64_t, const Logs&) {
             seconds = seconds_between(begin, Clock::system().now());
           },
       // Makes steps take much longer than the rest of the epoch.
       .on_train_batch_begin =
           [](std::int64_t) { Clock::system().sleep_for(std::chrono::milliseconds(25)); }});
  ::testing::internal::CaptureStdout();
  model.fit(x, x, {.batch_size = 2, .callbacks = {stopwatch}});
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr(" 12/12 steps  loss "));
  // The line reports a shorter time than the callbacks measure; 0.5 allows for rounding.
  EXPECT_GE(printed_rate(text), 24.0 / seconds - 0.5) << text;
}

TEST(FitTest, ValidatesEveryNEpochs) {
  Sequential model = correctness_model(nullptr);
  auto recorder = std::make_shared<Recorder>();
  const Tensor x = alternating(4);
  model.fit(x, x,
            {.epochs = 4,
             .validation_data = {x, x},
             .callbacks = {recorder},
             .verbose = kSilent,
             .validation_freq = 2});
  EXPECT_EQ(std::count(recorder->events.begin(), recorder->events.end(), "test"), 2);
  EXPECT_THAT(recorder->events, Contains("epoch 1 ended validated"));
  EXPECT_THAT(recorder->events, Contains("epoch 2 ended"));
}

TEST(FitTest, LearnsAndPredictsRowsInOrder) {
  set_random_seed(1);
  auto strategy = mirrored("cpu:0-1");
  auto scope = strategy->scope();
  Sequential model(Input{{4}}, Dense(32, {.activation = "relu"}), Dense(3));
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.01},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  const Dataset data = three_classes(500);
  const History history =
      model.fit(data.shuffle(500, 1).batch(50), {.epochs = 12, .verbose = kSilent});
  EXPECT_GT(history["accuracy"].back(), 0.9);
  EXPECT_LT(history["loss"].back(), 0.4);
  EXPECT_EQ(history.epochs().size(), 12u);
  // 500 rows in batches of 37: the last batch is partial, and the order of rows must be kept.
  const Tensor outputs = model.predict(data.batch(37));
  EXPECT_EQ(outputs.shape(), (Shape{500, 3}));
  std::vector<Tensor> rows;
  for (const Element& element : data.batch(500)) rows.push_back(element[0]);
  expect_near(outputs.to_doubles(), model.predict(rows[0], {.batch_size = 500}).to_doubles(), 1e-6);
}

TEST(FitTest, LossGivenByNameExpectsProbabilitiesAfterSoftmaxLayer) {
  auto loss_of = [](auto last) {
    set_random_seed(2);
    Sequential model(Input{{4}}, Dense(3), last);
    model.compile({.loss = "sparse_categorical_crossentropy"});
    return model.evaluate(three_classes(50).batch(10))["loss"];
  };
  EXPECT_NEAR(loss_of(Softmax()), loss_of(Activation("linear")), 1e-5);
}

TEST(FitTest, EpochWithStepsPerEpochSpansDatasetPasses) {
  Sequential model = correctness_model(nullptr);
  auto recorder = std::make_shared<Recorder>();
  const Dataset data = Dataset::from_tensor_slices({alternating(6), alternating(6)}).batch(2);
  model.fit(data, {.epochs = 2, .callbacks = {recorder}, .steps_per_epoch = 5, .verbose = kSilent});
  EXPECT_EQ(recorder->begins.size(), 10u);
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 10);
  EXPECT_INVALID(model.fit(data, {.steps_per_epoch = 0, .verbose = kSilent}),
                 "positive number of steps_per_epoch, got 0");
  EXPECT_INVALID(model.evaluate(data.take(0)), "at least one batch, got none");
}

/// Returns the warnings that fit() logs for 10 rows, and the number of batches that it trains on.
std::pair<std::vector<std::string>, std::size_t> warnings_and_batches(FitOptions options) {
  Sequential model = correctness_model(nullptr);
  auto recorder = std::make_shared<Recorder>();
  options.callbacks = {recorder};
  options.verbose = kSilent;
  const auto lines = warnings_of([&] { model.fit(alternating(10), alternating(10), options); });
  return {lines, recorder->begins.size()};
}

// As in Keras, the batch size is ceil(rows / steps) if no batch_size is given.
TEST(FitTest, StepsPerEpochDeterminesTensorBatchSize) {
  const auto weights_after = [](FitOptions options) {
    Sequential model = correctness_model(nullptr);
    options.verbose = kSilent;
    options.shuffle = false;
    model.fit(alternating(10), alternating(10), options);
    return weights_of(model);
  };
  EXPECT_EQ(weights_after({.epochs = 2, .steps_per_epoch = 4}),
            weights_after({.epochs = 2, .batch_size = 3}));
  // the default batch size of 32 exceeds the 10 rows
  EXPECT_EQ(weights_after({}), weights_after({.batch_size = 10}));
  // an explicit batch size is not changed
  EXPECT_EQ(weights_after({.batch_size = 2, .steps_per_epoch = 10}),
            weights_after({.epochs = 2, .batch_size = 2}));
  const auto [warnings, batches] = warnings_and_batches({.epochs = 3, .steps_per_epoch = 4});
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_EQ(batches, 3 * 4u);
}

// Keras warns "Your input ran out of data" and stops training; tutti begins a new pass.
TEST(FitTest, WarnsOnceWhenDataEndsWithinEpoch) {
  for (const FitOptions& options :
       {FitOptions{.epochs = 3, .steps_per_epoch = 6},  // the data are 5 batches of 2 rows
        FitOptions{.epochs = 3, .batch_size = 2, .steps_per_epoch = 6}}) {
    const auto [warnings, batches] = warnings_and_batches(options);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], HasSubstr("your input ran out of data after 5 of 6 steps"));
    EXPECT_EQ(batches, 3 * 6u);
  }
  EXPECT_EQ(warnings_and_batches({.batch_size = 2, .steps_per_epoch = 10}).first.size(), 1u);
  const auto [none, twice] =
      warnings_and_batches({.epochs = 4, .batch_size = 1, .steps_per_epoch = 5});
  EXPECT_THAT(none, IsEmpty());
  EXPECT_EQ(twice, 4 * 5u);
}

TEST(FitTest, EpochNumbersStartAtInitialEpoch) {
  Sequential model = correctness_model(nullptr);
  const Tensor x = alternating(8);
  const History history = model.fit(x, x, {.epochs = 5, .initial_epoch = 3, .verbose = kSilent});
  EXPECT_THAT(history.epochs(), ElementsAre(3, 4));
  EXPECT_EQ(model.epochs_trained(), 2);
}

TEST(FitTest, ThrownErrorNamesFailedReplica) {
  auto strategy = mirrored("cpu:0-1");
  auto scope = strategy->scope();
  Sequential model(Input{{4}}, Dense(3));
  model.compile({.loss = "sparse_categorical_crossentropy"});
  const Tensor labels = Tensor::from<std::int64_t>({4}, {0, 1, 2, 3});  // class 3 does not exist
  EXPECT_INVALID(model.fit(Tensor::ones({4, 4}), labels, {.verbose = kSilent}), "replica ");
}

/// Returns a model that predicts 0 and never learns, so that losses depend only on the labels.
Sequential zero_model() {
  Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "zeros"}));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.0}, .loss = "mse", .metrics = {"mae"}});
  return model;
}

/// Returns a [rows, 1] tensor of the numbers `first`, `first` + 1, ...
Tensor numbers_from(double first, std::int64_t rows) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows; ++i) values.push_back(static_cast<float>(first + i));
  return Tensor::from({rows, 1}, values);
}

/// Returns the mean square and the mean absolute value of numbers_from(first, rows).
std::pair<double, double> expected_of(double first, std::int64_t rows) {
  double squares = 0.0, magnitudes = 0.0;
  for (std::int64_t i = 0; i < rows; ++i) {
    squares += (first + i) * (first + i);
    magnitudes += std::abs(first + i);
  }
  return {squares / rows, magnitudes / rows};
}

/// Callback that calls a function on the second call to the method named `moment`, or on the first
/// call if fit() calls the method only once.
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

TEST(FitCallbacks, NestedCallsPreserveLossesAndMetricsOfFit) {
  const std::string folder = TempDir() + "/tutti_fit_callbacks";
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

TEST(FitCallbacks, StopRequestSurvivesNestedFit) {
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

TEST(FitCallbacks, RejectsCompileDuringFit) {
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
  model.compile({.loss = "mae"});  // compiling works even after a call that failed
  EXPECT_EQ(model.evaluate(x, x).entries().size(), 1u);
}

TEST(FitCallbacks, RejectsAssignmentToModelDuringTraining) {
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

// Training results do not depend on validation, evaluate() or predict().
TEST(FitCallbacks, InferenceDoesNotAffectTrainingWithDropout) {
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
    EXPECT_EQ(plain.second, 9) << "number of trained batches";
    EXPECT_EQ(train({.validation_data = {x, y}}, {}, {}), plain);
    EXPECT_EQ(train({}, {}, [&](Model& model) { model.predict(x); }), plain);
    const auto infer = [&](Model& model) {
      model.evaluate(x, y);
      model.predict(x);
    };
    EXPECT_EQ(train({}, infer, {}), plain);
  }
}

}  // namespace tutti::testing::fit_test

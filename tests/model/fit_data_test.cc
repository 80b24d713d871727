// Data that never end, numbers of steps, and options that data make meaningless.
// SPDX-License-Identifier: Apache-2.0
#include "model/fit_loop.h"
#include "tests/model/model_helpers.h"
#include "tests/support/warnings.h"

namespace tutti::fit_data_tests {
namespace {

using model_tests::error_of;
using model_tests::kSilent;
using model_tests::several_strategies;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using thrown::warnings_of;

/// Predicts 0 and never learns.
Sequential constant_model() {
  Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "zeros"}));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.0}, .loss = "mse"});
  return model;
}

/// Labels 1, 2, ..., in batches of 2: losses (1 + 4) / 2, (9 + 16) / 2, (25 + 36) / 2, ...
Dataset labels_to(std::int64_t rows) {
  const Tensor labels = reshape(cast(arange(1, rows + 1), DType::kFloat32), {rows, 1});
  return Dataset::from_tensor_slices(labels, labels);
}

TEST(FitData, DataThatNeverEndAreRefusedWithTheRemedy) {
  const Dataset endless = labels_to(6).repeat().batch(2), finite = labels_to(6).batch(2);
  for (const auto& strategy : several_strategies()) {
    const auto scope = strategy->scope();
    Sequential model = constant_model();
    const auto fit = [&](const Dataset& data, FitOptions options) {
      options.verbose = kSilent;
      return error_of([&] { model.fit(data, options); });
    };
    EXPECT_THAT(fit(endless, {}), AllOf(HasSubstr("Model::fit"), HasSubstr("never does"),
                                        HasSubstr(".steps_per_epoch")));
    EXPECT_THAT(fit(finite, {.validation_data = endless}),
                AllOf(HasSubstr("validation_data"), HasSubstr(".validation_steps")));
    EXPECT_EQ(model.epochs_trained(), 0);
    EXPECT_THAT(error_of([&] { model.evaluate(endless); }),
                AllOf(HasSubstr("Model::evaluate"), HasSubstr(".steps")));
    EXPECT_THAT(error_of([&] { model.predict(endless); }),
                AllOf(HasSubstr("Model::predict"), HasSubstr(".steps")));
    model.fit(endless, {.validation_data = endless,
                        .steps_per_epoch = 2,
                        .verbose = kSilent,
                        .validation_steps = 1});
    EXPECT_EQ(model.epochs_trained(), 1);
  }
}

// Keras: each validation takes the same first batches.
TEST(FitData, ValidationStepsBeginEachTimeWithTheFirstBatch) {
  for (const bool is_endless : {true, false}) {
    Sequential model = constant_model();
    const Dataset rows = is_endless ? labels_to(6).repeat() : labels_to(6);
    const History history = model.fit(
        labels_to(6).batch(2),
        {.epochs = 3, .validation_data = rows.batch(2), .verbose = kSilent, .validation_steps = 2});
    EXPECT_THAT(history["val_loss"], ElementsAre(7.5, 7.5, 7.5));  // (1 + 4 + 9 + 16) / 4
  }
}

TEST(FitData, StepsBoundEvaluateAndPredict) {
  for (const auto& strategy : several_strategies()) {
    const auto scope = strategy->scope();
    Sequential model = constant_model();
    DistributedDataset endless = strategy->distribute_dataset(labels_to(6).repeat().batch(2));
    for (int call = 0; call < 2; ++call) {
      EXPECT_DOUBLE_EQ(model.evaluate(endless, {.steps = 1}).at("loss"), 2.5);
      EXPECT_DOUBLE_EQ(model.evaluate(endless, {.steps = 4}).at("loss"), 96.0 / 8);
      EXPECT_EQ(model.predict(endless, {.steps = 2}).shape(), (Shape{4, 1}));
    }
    const Tensor x = Tensor::ones({10, 1});
    EXPECT_EQ(model.predict(x, {.batch_size = 3, .steps = 2}).shape(), (Shape{6, 1}));
    EXPECT_NEAR(model.evaluate(x, x, {.batch_size = 3, .steps = 2}).at("loss"), 1.0, 1e-6);
    EXPECT_THAT(error_of([&] { model.evaluate(x, x, {.steps = 0}); }),
                HasSubstr("positive number of steps, got 0"));
  }
}

TEST(FitData, FewerBatchesThanStepsAreWarnedOf) {
  Sequential model = constant_model();
  Logs logs;
  const auto warnings =
      warnings_of([&] { logs = model.evaluate(labels_to(4).batch(2), {.steps = 3}); });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("Model::evaluate: your input ran out of data after 2 of 3"));
  EXPECT_DOUBLE_EQ(logs.at("loss"), 7.5);
}

TEST(FitData, AResumedFitBeginsValidationWithTheFirstBatch) {
  const std::string folder = ::testing::TempDir() + "/tutti_validation_steps";
  const auto train = [&](bool fails) {
    Sequential model = constant_model();
    FitOptions fit{.epochs = 3,
                   .validation_data = labels_to(6).batch(2),
                   .callbacks = {BackupAndRestore(folder)},
                   .verbose = kSilent,
                   .validation_steps = 1};
    if (fails) {
      fit.callbacks.push_back(LambdaCallback({.on_epoch_begin = [](std::int64_t epoch) {
        if (epoch == 1) fail(ErrorCode::kCancelled, "stopped");
      }}));
    } else {
      fit.callbacks.push_back(LambdaCallback({}));
    }
    return model.fit(labels_to(6).batch(2), fit);
  };
  EXPECT_THAT(error_of([&] { train(true); }), HasSubstr("stopped"));
  EXPECT_THAT(train(false)["val_loss"], ElementsAre(2.5, 2.5, 2.5));
}

TEST(FitData, ManyBatchesOfUnknownNumberAreWarnedOfOnce) {
  OneDeviceStrategy strategy("cpu:0");
  const auto feed_of = [&](std::int64_t rows) {
    const Dataset data = Dataset::range(rows).batch(1).filter([](const Element&) { return true; });
    return internal::BatchFeed(strategy.distribute_dataset(data),
                               {"Model::fit", "steps_per_epoch"});
  };
  const auto warnings = warnings_of([&] {
    internal::BatchFeed feed = feed_of(100'002);
    feed.begin_epoch();
    while (feed.next()) {
    }
  });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("100000 batches"), HasSubstr(".steps_per_epoch")));
}

TEST(FitData, OptionsOfTensorsAreRefusedBesideADataset) {
  Sequential model = constant_model();
  const Dataset data = labels_to(6).batch(2);
  const Tensor weights = Tensor::zeros({6});
  const auto dataset = [&] { return model.strategy().distribute_dataset(data); };
  const auto has_remedy = AllOf(HasSubstr("third component"));
  EXPECT_THAT(error_of([&] { model.fit(data, {.verbose = kSilent, .sample_weight = weights}); }),
              has_remedy);
  EXPECT_THAT(
      error_of([&] { model.fit(dataset(), {.verbose = kSilent, .sample_weight = weights}); }),
      has_remedy);
  EXPECT_THAT(error_of([&] { model.evaluate(data, {.sample_weight = weights}); }), has_remedy);
  const auto names_batch = AllOf(HasSubstr("no batch_size"), HasSubstr("dataset.batch(3)"));
  EXPECT_THAT(error_of([&] { model.fit(data, {.batch_size = 3, .verbose = kSilent}); }),
              names_batch);
  EXPECT_THAT(error_of([&] { model.evaluate(data, {.batch_size = 3}); }), names_batch);
  EXPECT_THAT(error_of([&] { model.predict(data, {.batch_size = 3}); }), names_batch);
  EXPECT_THAT(error_of([&] { model.predict_all(dataset(), {.batch_size = 3}); }), names_batch);
  EXPECT_THAT(error_of([&] { model.fit(data, {.verbose = kSilent, .validation_steps = 3}); }),
              HasSubstr("no validation_steps without validation_data"));
  EXPECT_EQ(model.epochs_trained(), 0);
  const Tensor x = Tensor::ones({6, 1});
  EXPECT_EQ(model.fit(x, x, {.batch_size = 3, .verbose = kSilent, .sample_weight = weights})
                .at("loss")[0],
            0.0);
}

TEST(FitData, EpochsThatLeaveNothingToTrainAreWarnedOf) {
  Sequential model = constant_model();
  const auto fit = [&](std::int64_t epochs, std::int64_t initial_epoch) {
    return warnings_of([&] {
      model.fit(labels_to(6).batch(2),
                {.epochs = epochs, .initial_epoch = initial_epoch, .verbose = kSilent});
    });
  };
  EXPECT_THAT(fit(3, 3),
              ElementsAre(AllOf(HasSubstr("got 3 and 3"), HasSubstr("try .epochs = 6"))));
  EXPECT_EQ(model.epochs_trained(), 0);
  EXPECT_THAT(fit(3, 2), IsEmpty());
}

TEST(FitData, ClassWeightsThatNoLabelCanHaveAreNamed) {
  set_random_seed(3);
  Sequential model(Input{{4}}, Dense(3));
  model.compile({.loss = "sparse_categorical_crossentropy"});
  const Dataset data = model_tests::three_classes(12).batch(4);
  const auto warnings = warnings_of([&] {
    model.fit(data, {.epochs = 2, .verbose = kSilent, .class_weight = {{2, 0.5}, {3, 9.0}}});
  });
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("0 .. 2"), HasSubstr("got 3"))));
  Sequential line = constant_model();
  const Tensor x = Tensor::ones({6, 1});
  EXPECT_THAT(error_of([&] {
                line.fit(x, x * 0.375f, {.verbose = kSilent, .class_weight = {{0, 0.0}}});
              }),
              AllOf(HasSubstr("class numbers"), HasSubstr("0.375")));
}

}  // namespace
}  // namespace tutti::fit_data_tests

// Tests fit() with datasets, masks, augmentation, 16-bit policies and recomputation.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "model/fit_loop.h"
#include "tests/layers/layer_checks.h"
#include "tests/model/model_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/core/random.h"
#include "tutti/data/augment.h"
#include "tutti/tutti.h"

namespace tutti::testing::fit_data_test {

/// Returns a model that predicts 0 and never learns.
Sequential constant_model() {
  Sequential model(Input{{1}}, Dense(1, {.kernel_initializer = "zeros"}));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.0}, .loss = "mse"});
  return model;
}

/// Returns rows with the features and labels 1, 2, ... In batches of 2, the losses of
/// constant_model() are (1 + 4) / 2, (9 + 16) / 2, (25 + 36) / 2, ...
Dataset labels_to(std::int64_t rows) {
  const Tensor labels = reshape(cast(arange(1, rows + 1), DType::kFloat32), {rows, 1});
  return Dataset::from_tensor_slices(labels, labels);
}

TEST(FitData, InfiniteDatasetErrorStatesRemedy) {
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
    EXPECT_INVALID(model.evaluate(endless), "Model::evaluate", ".steps");
    EXPECT_INVALID(model.predict(endless), "Model::predict", ".steps");
    model.fit(endless, {.validation_data = endless,
                        .steps_per_epoch = 2,
                        .verbose = kSilent,
                        .validation_steps = 1});
    EXPECT_EQ(model.epochs_trained(), 1);
  }
}

// As in Keras, each validation uses the same first batches.
TEST(FitData, EveryValidationStartsAtFirstBatch) {
  for (const bool is_endless : {true, false}) {
    Sequential model = constant_model();
    const Dataset rows = is_endless ? labels_to(6).repeat() : labels_to(6);
    const History history = model.fit(
        labels_to(6).batch(2),
        {.epochs = 3, .validation_data = rows.batch(2), .verbose = kSilent, .validation_steps = 2});
    EXPECT_THAT(history["val_loss"], ElementsAre(7.5, 7.5, 7.5));  // mean of 1, 4, 9 and 16
  }
}

TEST(FitData, StepsOptionLimitsEvaluateAndPredict) {
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
    EXPECT_INVALID(model.evaluate(x, x, {.steps = 0}), "positive number of steps, got 0");
  }
}

TEST(FitData, WarnsAboutFewerBatchesThanSteps) {
  Sequential model = constant_model();
  Logs logs;
  const auto warnings =
      warnings_of([&] { logs = model.evaluate(labels_to(4).batch(2), {.steps = 3}); });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("Model::evaluate: your input ran out of data after 2 of 3"));
  EXPECT_DOUBLE_EQ(logs.at("loss"), 7.5);
}

TEST(FitData, ResumedFitStartsValidationAtFirstBatch) {
  const std::string folder = TempDir() + "/tutti_validation_steps";
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
  EXPECT_ERROR(train(true), kCancelled, "stopped");
  EXPECT_THAT(train(false)["val_loss"], ElementsAre(2.5, 2.5, 2.5));
}

TEST(FitData, WarnsOnceIfDatasetOfUnknownLengthSeemsEndless) {
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

TEST(FitData, DatasetRejectsTensorOnlyOptions) {
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
  EXPECT_INVALID(model.fit(data, {.verbose = kSilent, .validation_steps = 3}),
                 "no validation_steps without validation_data");
  EXPECT_EQ(model.epochs_trained(), 0);
  const Tensor x = Tensor::ones({6, 1});
  EXPECT_EQ(model.fit(x, x, {.batch_size = 3, .verbose = kSilent, .sample_weight = weights})
                .at("loss")[0],
            0.0);
}

TEST(FitData, WarnsWhenInitialEpochSkipsAllTraining) {
  Sequential model = constant_model();
  const auto fit = [&](std::int64_t epochs, std::int64_t initial_epoch) {
    return warnings_of([&] {
      model.fit(labels_to(6).batch(2),
                {.epochs = epochs, .initial_epoch = initial_epoch, .verbose = kSilent});
    });
  };
  EXPECT_THAT(fit(3, 3),
              ElementsAre(AllOf(HasSubstr("got 3 and 3"), HasSubstr("use .epochs = 6"))));
  EXPECT_EQ(model.epochs_trained(), 0);
  EXPECT_THAT(fit(3, 2), IsEmpty());
}

TEST(FitData, WarnsAboutClassWeightsOutsideOutputRange) {
  set_random_seed(3);
  Sequential model(Input{{4}}, Dense(3));
  model.compile({.loss = "sparse_categorical_crossentropy"});
  const Dataset data = three_classes(12).batch(4);
  const auto warnings = warnings_of([&] {
    model.fit(data, {.epochs = 2, .verbose = kSilent, .class_weight = {{2, 0.5}, {3, 9.0}}});
  });
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("0 .. 2"), HasSubstr("got 3"))));
  Sequential line = constant_model();
  const Tensor x = Tensor::ones({6, 1});
  EXPECT_INVALID(line.fit(x, x * 0.375f, {.verbose = kSilent, .class_weight = {{0, 0.0}}}),
                 "class numbers", "0.375");
}

TEST(FitData, WarnsAboutClassWeightsForClassesNotInLabels) {
  Sequential model(Input{{1}}, Dense(20));
  model.compile({.loss = "sparse_categorical_crossentropy"});
  const Tensor x = Tensor::ones({4, 1});
  const Tensor y = Tensor::from<std::int64_t>({4}, {0, 1, 1, 3});
  const auto warnings_for = [&](const std::map<std::int64_t, double>& class_weight) {
    return warnings_of(
        [&] { model.fit(x, y, {.verbose = kSilent, .class_weight = class_weight}); });
  };
  EXPECT_THAT(warnings_for({{1, 2.0}, {12, 9.0}}),
              ElementsAre(AllOf(HasSubstr("a class that occurs in the labels (0, 1, 3), got 12"),
                                HasSubstr("its weight has no effect"))));
  EXPECT_THAT(warnings_for({{0, 1.0}, {3, 2.0}}), IsEmpty());
}

namespace masks_in_fit {
Tensor words() { return Tensor::from<std::int64_t>({4, 3}, {1, 2, 0, 3, 0, 0, 2, 2, 1, 1, 3, 0}); }

/// Returns labels in which masked steps have the value `gap`.
Tensor labels(std::int64_t gap) {
  return Tensor::from<std::int64_t>({4, 3}, {0, 1, gap, 1, gap, gap, 1, 1, 0, 0, 1, gap});
}

struct Trained {
  double loss = 0.0;
  std::vector<std::vector<double>> weights;
};

Trained train(bool mask_zero, std::int64_t gap) {
  set_random_seed(7);
  Sequential model(Input{{3}}, Embedding(4, 3, {.mask_zero = mask_zero}),
                   LSTM(4, {.return_sequences = true}), Dense(2));
  model.compile(
      {.optimizer = SgdOptions{.learning_rate = 0.5}, .loss = "sparse_categorical_crossentropy"});
  model.fit(words(), labels(gap),
            {.epochs = 3, .batch_size = 2, .verbose = Verbosity::kSilent, .shuffle = false});
  Trained result{model.evaluate(words(), labels(gap)).at("loss"), {}};
  for (const Variable& weight : model.variables())
    result.weights.push_back(weight.value().to_doubles());
  return result;
}

}  // namespace masks_in_fit

TEST(MasksInFit, LabelsOfMaskedStepsAreIgnored) {
  const auto zeros = masks_in_fit::train(true, 0), ones = masks_in_fit::train(true, 1);
  EXPECT_EQ(zeros.loss, ones.loss);
  EXPECT_EQ(zeros.weights, ones.weights);
  EXPECT_NE(masks_in_fit::train(false, 0).loss, masks_in_fit::train(false, 1).loss);
}

TEST(MasksInFit, ResidualConnectionAroundAttentionKeepsMask) {
  const SymbolicTensor words = Input{{3}};
  const SymbolicTensor x = Embedding(4, 4, {.mask_zero = true})(words);
  const SymbolicTensor sum = Add()({x, MultiHeadAttention(2, 2)({x, x})});
  const Functional block({words}, {LayerNormalization()(sum)});
  const MaskScope masks;
  const Tensor mask = MaskScope::mask_of(block(masks_in_fit::words()));
  ASSERT_TRUE(mask.defined());
  EXPECT_EQ(mask.to_doubles(), (std::vector<double>{1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0}));
}

TEST(MixedFitTest, StrategyChangesOnlyRoundingInHalfPrecision) {
  const Outcome float32 = correctness_run(nullptr, 1280, false, true);
  for (const char* name : {"mixed_bfloat16", "mixed_float16"}) {
    const PolicyScope policy(name);
    const Outcome expected = correctness_run(nullptr, 1280, false, true);
    EXPECT_LT(expected.loss[1], expected.loss[0]);
    expect_near(expected.loss, float32.loss, 2e-2);
    EXPECT_NE(expected.loss, float32.loss);  // shows that training really computes in 16 bits
    for (const auto& strategy : several_strategies()) {
      SCOPED_TRACE(concat(name, " ", label_of(*strategy)));
      const Outcome outcome = correctness_run(strategy.get(), 1280, false, true);
      expect_near(outcome.loss, expected.loss, 1e-2);
      expect_near(outcome.mse, expected.mse, 1e-2);
      expect_near(outcome.validation, expected.validation, 1e-2);
      expect_near(outcome.weights, expected.weights, 1e-2);
      expect_near(outcome.evaluation, expected.evaluation, 1e-2);
      expect_near(outcome.predictions, expected.predictions, 1e-2);
      expect_near(outcome.again, expected.again, 1e-2);
    }
  }
}

TEST(MixedFitTest, LossScaleOfMixedFloat16IsConfigurable) {
  const PolicyScope policy("mixed_float16");
  Sequential model(Input{{1}}, Dense(1));
  model.compile({.optimizer = "sgd", .loss = "mse"});
  EXPECT_GT(model.optimizer().loss_scale(), 1.0);  // loss scaling is on by default
  model.compile(
      {.optimizer = with_dynamic_loss_scale("sgd", {.initial_scale = 64.0}), .loss = "mse"});
  EXPECT_EQ(model.optimizer().loss_scale(), 64.0);
  model.compile({.optimizer = "sgd", .loss = "mse", .auto_scale_loss = false});
  EXPECT_EQ(model.optimizer().loss_scale(), 1.0);
}

std::string weights_after_fit(Strategy& strategy, bool is_remat) {
  set_random_seed(3);
  const auto scope = strategy.scope();
  Sequential model({.remat = is_remat}, Input{{4}}, Dense(24, "relu"),
                   BatchNormalization({.synchronized = true}), Dropout(0.3), Dense(24, "tanh"));
  model.add(Dense(3, "softmax"));
  for (const auto& layer : model.layers()) EXPECT_EQ(layer->is_remat(), is_remat);
  model.compile(
      {.optimizer = AdamOptions{.learning_rate = 0.01}, .loss = "sparse_categorical_crossentropy"});
  model.fit(three_classes(32).batch(8), {.epochs = 2, .verbose = kSilent});
  return hash_variables(model.variables());
}

TEST(RematFit, IsBitIdenticalToMirroredWithoutRemat) {
  const std::string expected = weights_after_fit(*mirrored("cpu:0-1"), false);
  EXPECT_EQ(weights_after_fit(*mirrored("cpu:0-1"), true), expected);
  EXPECT_EQ(weights_after_fit(*fully_sharded("cpu:0-1"), false), expected);
  EXPECT_EQ(weights_after_fit(*fully_sharded("cpu:0-1"), true), expected);
  EXPECT_EQ(weights_after_fit(*fully_sharded("cpu:0-1", 2), true), expected);
}

constexpr std::int64_t kPictures = 22;

/// Returns images [6, 6, 3] of 3 classes, with one-hot labels.
Dataset pictures() {
  const Tensor images = random_uniform({kPictures, 6, 6, 3}, {.seed = 5}, 0.0, 1.0);
  const Tensor labels =
      one_hot(argmax(slice(reshape(images, {kPictures, 108}), {0, 0}, {-1, 3}), 1), 3);
  return Dataset::from_tensor_slices({images, labels});
}

/// Returns batches of 8 images after random crops, flips, cutout and mixup. The last batch has 6
/// rows.
Dataset augmented(int num_parallel_calls = 1) {
  const Dataset changed = augment_images(
      pictures().shuffle(kPictures, 1),
      {image::random_crop(6, {.padding = 2}), image::random_flip_left_right(), image::cutout(2)},
      {.seed = 7, .num_parallel_calls = num_parallel_calls});
  return mixup(changed.batch(8), {.seed = 8, .num_parallel_calls = num_parallel_calls});
}

/// Returns the features of one global batch in replica order, then the labels.
std::vector<double> rows_of(const PerReplica<Batch>& batch) {
  std::vector<double> values;
  for (const Batch& part : batch) {
    for (const Tensor& tensor : part.element().tensors()) {
      EXPECT_EQ(tensor.shape()[0], part.rows());
    }
    for (const double value : part.features().to_doubles()) values.push_back(value);
  }
  for (const Batch& part : batch) {
    for (const double value : part.labels().to_doubles()) values.push_back(value);
  }
  return values;
}

/// Returns the batches of `epochs` passes, starting at the current position of `input`.
std::vector<std::vector<double>> batches_of(DistributedDataset input, int epochs) {
  std::vector<std::vector<double>> batches;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const PerReplica<Batch>& batch : input) batches.push_back(rows_of(batch));
  }
  return batches;
}

TEST(Augmentation, IsBitIdenticalForAnyReplicaCount) {
  const auto expected = batches_of(mirrored("cpu:0")->distribute_dataset(augmented()), 2);
  ASSERT_EQ(expected.size(), 6u);
  EXPECT_NE(expected[0], expected[3]);  // the two epochs differ
  auto strategies = several_strategies();
  strategies.push_back(mirrored("cpu:0-3"));
  for (const auto& strategy : strategies) {
    EXPECT_EQ(batches_of(strategy->distribute_dataset(augmented()), 2), expected)
        << label_of(*strategy);
    EXPECT_EQ(batches_of(strategy->distribute_dataset(augmented(4).prefetch(2)), 2), expected)
        << label_of(*strategy) << ", in parallel";
  }
}

TEST(Augmentation, ResumesMidEpochWithDifferentReplicaCount) {
  const auto straight = batches_of(mirrored("cpu:0-1")->distribute_dataset(augmented()), 3);
  const auto first = mirrored("cpu:0-1");
  DistributedDataset input = first->distribute_dataset(augmented());
  batches_of(input, 1);
  auto iterator = input.begin();
  ++iterator;  // two batches of the second epoch have been read
  const Json position = Json::parse(input.position().dump());

  const auto second = mirrored("cpu:0-3");
  DistributedDataset resumed = second->distribute_dataset(augmented(3));
  resumed.restore(position);
  EXPECT_EQ(batches_of(resumed, 2),
            (std::vector<std::vector<double>>(straight.begin() + 5, straight.end())));
}

Sequential small_network(Strategy& strategy, double learning_rate) {
  set_random_seed(3);
  const Scope scope = strategy.scope();
  Sequential model(Input{{6, 6, 3}}, Conv2D(4, 3, {.activation = "relu"}), Flatten(), Dense(3));
  model.compile({.optimizer = SgdOptions{.learning_rate = learning_rate},
                 .loss = "categorical_crossentropy"});
  return model;
}

TEST(Augmentation, FitUsesFreshRandomNumbersEachEpoch) {
  const auto strategy = mirrored("cpu:0-1");
  // With a learning rate of 0, the loss depends only on the epoch's images.
  const auto losses = [&](std::int64_t initial_epoch) {
    Sequential model = small_network(*strategy, 0.0);
    return model.fit(augmented(),
                     {.epochs = 3, .initial_epoch = initial_epoch, .verbose = kSilent})["loss"];
  };
  const std::vector<double> straight = losses(0);
  ASSERT_EQ(straight.size(), 3u);
  EXPECT_NE(straight[0], straight[1]);
  EXPECT_NE(straight[1], straight[2]);
  // Trains only the last epoch, like a program resumed after two epochs.
  EXPECT_EQ(losses(2), (std::vector<double>{straight[2]}));
}

}  // namespace tutti::testing::fit_data_test

// What compile, fit and callbacks do with metrics, against Keras: masks, weights of steps, ties,
// stopping and restoring.
// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/parity_record.h"
#include "tutti/tutti.h"

namespace tutti::parity {
namespace {

double fit_number(const std::string& name) { return record_of("fit").at(name).item_double(); }

using MadeMetric = std::shared_ptr<PredictionMetric>;

/// name: (metric, whether labels are one-hot).
std::map<std::string, std::pair<MadeMetric, bool>> metrics_of_steps() {
  const MadeMetric crossentropy =
      MetricSpec("sparse_categorical_crossentropy")
          .make(Loss("categorical_crossentropy").for_predictions(PredictionKind::kProbabilities));
  return {
      {"sparse_categorical_accuracy", {std::make_shared<SparseCategoricalAccuracy>(), false}},
      {"categorical_accuracy", {std::make_shared<CategoricalAccuracy>(), true}},
      {"sparse_categorical_crossentropy", {crossentropy, false}},
      {"mean_squared_error", {std::make_shared<MeanSquaredErrorMetric>(), true}},
      {"binary_accuracy", {std::make_shared<BinaryAccuracy>(), true}},
      {"cosine_similarity", {std::make_shared<CosineSimilarityMetric>(), true}},
      {"root_mean_squared_error", {std::make_shared<RootMeanSquaredError>(), true}},
      {"precision", {std::make_shared<Precision>(), true}},
  };
}

/// Weights of the rows: each row's first one.
Tensor first_weights(const Tensor& weights) { return slice(weights, {0, 0}, {-1, 1}); }

TEST(FitParity, MetricsOfStepsWithMasksAndWeights) {
  for (const char* kind : {"mask", "weights", "both", "rows"}) {
    for (const auto& [name, made] : metrics_of_steps()) {
      const auto& [metric, one_hot_labels] = made;
      for (const int batch : {0, 1}) {
        const auto part = [&](const char* what) {
          return record_of("fit").at(concat("masked/", what, batch));
        };
        const Tensor labels = part("labels"), predictions = part("predictions");
        Tensor weights = part("weights");
        if (kind == std::string("mask")) weights = Tensor();
        if (kind == std::string("rows")) weights = first_weights(weights);
        const MaskScope masks;
        if (kind != std::string("weights")) MaskScope::set_mask(predictions, part("mask"));
        metric->update_state(one_hot_labels ? one_hot(labels, 3, DType::kFloat64) : labels,
                             predictions, weights);
      }
      // A third of a step's classes is a float32.
      EXPECT_NEAR(metric->result().item_double(), fit_number(concat("masked/", name, '_', kind)),
                  name == "binary_accuracy" ? 1e-7 : 1e-9)
          << name << ", " << kind;
    }
  }
}

/// The model and options of weights_of_steps() in fit_cases.py.
Sequential model_of_steps() {
  Sequential model(Input{{5, 2}}, Dense(3, {.activation = "softmax", .use_bias = false}));
  model.variables()[0].assign(record_of("fit").at("steps/kernel"));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.5},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"},
                 .weighted_metrics = {"accuracy", "sparse_categorical_crossentropy"}});
  return model;
}

TEST(FitParity, WeightsOfStepsTrainAndMeasureUnderAnyNumberOfReplicas) {
  const Float64 policy;
  const Record& record = record_of("fit");
  for (const int replicas : {1, 2, 3}) {
    MirroredStrategy strategy({.devices = concat("cpu:0-", replicas - 1)});
    auto scope = strategy.scope();
    Sequential model = model_of_steps();
    const Tensor inputs = record.at("steps/inputs"), labels = record.at("steps/labels");
    const Tensor weights = record.at("steps/weights");
    const History history = model.fit(inputs, labels,
                                      {.epochs = 3,
                                       .batch_size = 4,
                                       .verbose = Verbosity::kSilent,
                                       .shuffle = false,
                                       .sample_weight = weights});
    const Logs last = model.evaluate(inputs, labels, {.batch_size = 4, .sample_weight = weights});
    for (const char* name :
         {"loss", "accuracy", "weighted_accuracy", "sparse_categorical_crossentropy"}) {
      std::vector<double> values = history.at(name);
      values.push_back(last.at(name));
      const auto count = static_cast<std::int64_t>(values.size());
      expect_close(Tensor::from({count}, values), record.at(concat("steps/", name)), 1e-7,
                   concat(name, " with ", replicas));
    }
    expect_close(model.variables()[0].value(), record.at("steps/final"), 1e-9, "weights");
  }
}

TEST(FitParity, F1OfEqualPredictionsAndOfRowsWithoutAny) {
  for (const auto& [average, name] :
       std::map<ScoreAverage, std::string>{{ScoreAverage::kMicro, "micro"},
                                           {ScoreAverage::kMacro, "macro"},
                                           {ScoreAverage::kWeighted, "weighted"}}) {
    F1Score score({.num_classes = 4, .average = average});
    score.update_state(record_of("fit").at("f1/labels"), record_of("fit").at("f1/predictions"));
    // Keras adds 1e-7 to divisors.
    EXPECT_NEAR(score.result().item_double(), fit_number("f1/" + name), 1e-6) << name;
    EXPECT_THAT(score.per_class(),
                ::testing::Pointwise(::testing::DoubleNear(1e-6),
                                     record_of("fit").at("f1/per_class").to_doubles()));
  }
}

TEST(FitParity, EarlyStoppingOfRandomValues) {
  const Tensor options = record_of("fit").at("stopping/options");
  const std::int64_t count = options.shape()[0];
  for (std::int64_t number = 0; number < count; ++number) {
    const std::vector<double> option = options.detached_rows(number, 1).to_doubles();
    const std::vector<double> values =
        record_of("fit").at("stopping/values").detached_rows(number, 1).to_doubles();
    const std::vector<double> ends =
        record_of("fit").at("stopping/ends").detached_rows(number, 1).to_doubles();
    Sequential model(Input{{1}}, Dense(1));
    model.compile({.loss = "mse", .metrics = {"auc"}});
    const std::string monitor = option[0] == 1.0 ? "val_auc" : "val_loss";
    EarlyStopping callback({.monitor = monitor,
                            .min_delta = option[3],
                            .patience = static_cast<std::int64_t>(option[1]),
                            .restore_best_weights = true,
                            .start_from_epoch = static_cast<std::int64_t>(option[2])});
    callback.set_model(model);
    callback.on_train_begin();
    for (std::int64_t epoch = 0; epoch < 10 && !callback.stopped_epoch(); ++epoch) {
      model.variables()[0].assign(static_cast<double>(epoch));  // tells which epoch is restored
      Logs logs;
      logs.set(monitor, values[static_cast<std::size_t>(epoch)]);
      callback.on_epoch_end(epoch, logs);
    }
    callback.on_train_end({});
    EXPECT_EQ(callback.stopped_epoch().value_or(-1), ends[0]) << number;
    EXPECT_EQ(model.variables()[0].value().item_double(), ends[1]) << number;
  }
}

TEST(FitParity, BestWeightsAreLeftBehindAveragesStoppedOrNot) {
  const Float64 policy;
  const Tensor x = record_of("fit").at("restored/x");
  SgdOptions plain{.learning_rate = 1.0 / 64};
  SgdOptions ema = plain, overwritten = plain;
  ema.ema = EmaOptions{.momentum = 0.75};
  overwritten.ema = EmaOptions{.momentum = 0.75, .overwrite_frequency = 3};
  for (const auto& [name, options] : std::map<std::string, SgdOptions>{
           {"plain", plain}, {"ema", ema}, {"overwritten", overwritten}}) {
    for (const int patience : {1, 50}) {
      const std::string which = concat("restored/", name, '_', patience);
      Sequential model(Input{{1}}, Dense(1, {.use_bias = false}));
      model.variables()[0].assign(0.0);
      model.compile({.optimizer = options, .loss = "mse"});
      auto stopping = std::make_shared<EarlyStopping>(
          EarlyStoppingOptions{.patience = patience, .restore_best_weights = true});
      const History history = model.fit(x, x,
                                        {.epochs = 8,
                                         .batch_size = 2,
                                         .validation_data = {x, x * 0.625},
                                         .callbacks = {stopping},
                                         .verbose = Verbosity::kSilent,
                                         .shuffle = false});
      EXPECT_THAT(history.at("val_loss"),
                  ::testing::Pointwise(::testing::DoubleNear(1e-9),
                                       record_of("fit").at(which + "_val_loss").to_doubles()))
          << which;
      EXPECT_EQ(static_cast<double>(stopping->best_epoch()), fit_number(which + "_best_epoch"));
      expect_close(model.variables()[0].value(), record_of("fit").at(which + "_final"), 1e-9,
                   which);
    }
  }
}

}  // namespace
}  // namespace tutti::parity

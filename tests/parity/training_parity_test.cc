// Compares complete training runs with the same runs in Keras and tf.distribute, for several
// networks, fit(), and 1 to 4 replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/parity_record.h"
#include "tutti/tutti.h"

namespace tutti::testing::training_parity_test {

// These values are the same as in training_cases.py.
constexpr std::int64_t kGlobalBatch = 20;
constexpr double kMomentum = 7.0 / 8;

struct TrainingCase {
  std::string name;
  int replicas;
  bool normalized;
};

const std::map<std::string, TrainingCase>& training_table() {
  static const std::map<std::string, TrainingCase> table = [] {
    std::map<std::string, TrainingCase> cases;
    for (const bool normalized : {false, true}) {
      for (const int replicas : {1, 2, 4}) {
        const std::string name = concat(normalized ? "batch_normalization_" : "plain_", replicas);
        cases[name] = {name, replicas, normalized};
      }
    }
    return cases;
  }();
  return table;
}

Sequential make_network(bool normalized) {
  const Input input{{8, 8, 1}};
  const Conv2D conv(4, 3, {.activation = "relu"});
  if (normalized) {
    return Sequential(input, conv, BatchNormalization({.momentum = kMomentum}), MaxPooling2D(),
                      Flatten(), Dense(5));
  }
  return Sequential(input, conv, MaxPooling2D(), Flatten(), Dense(5));
}

/// Trains as training_cases.py does; passes each step's number, loss and recorded loss to `check`.
template <class CheckLoss>
std::vector<Variable> train(const Record& record, const TrainingCase& which,
                            const CheckLoss& check) {
  MirroredStrategy strategy({.devices = concat("cpu:0-", which.replicas - 1)});
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices({record.at("images"), record.at("labels")}).batch(kGlobalBatch));
  auto scope = strategy.scope();
  Sequential model = make_network(which.normalized);
  const std::vector<Tensor> initial = record.list(which.name + "/initial");
  std::vector<Variable> variables = model.variables();
  EXPECT_EQ(variables.size(), initial.size());
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(initial[i]);
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 1.0 / 16, .momentum = kMomentum});
  auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = model(batch.features(), {.training = true});
    const Tensor each = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    const Tensor loss = compute_average_loss(each, batch.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };
  const std::vector<double> losses = record.at(which.name + "/losses").to_doubles();
  std::size_t number = 0;
  while (number < losses.size()) {
    for (const PerReplica<Batch>& batch : batches) {
      const Tensor loss = strategy.reduce(ReduceOp::kSum, strategy.run(step, batch));
      check(number, loss.item_double(), losses[number]);
      if (++number == losses.size()) break;
    }
  }
  return variables;
}

class TrainingParity : public TestWithParam<std::string> {};

TEST_P(TrainingParity, Float64ResultsMatchToNineDigits) {
  const Float64 policy;
  const Record record("training_float64");
  const TrainingCase& which = training_table().at(GetParam());
  const auto variables = train(record, which, [](std::size_t step, double ours, double theirs) {
    EXPECT_NEAR(ours, theirs, 1e-9 * std::abs(theirs)) << "loss of step " << step;
  });
  const std::vector<Tensor> final = record.list(which.name + "/final");
  for (std::size_t i = 0; i < variables.size(); ++i) {
    expect_close(variables[i].value(), final[i], 1e-9, variables[i].name());
  }
}

TEST_P(TrainingParity, Float32LossesMatchKerasWithinTolerance) {
  const Record record("training_float32");
  const TrainingCase& which = training_table().at(GetParam());
  train(record, which, [](std::size_t step, double ours, double theirs) {
    const double tolerance = step < 10 ? 1e-4 : 1e-3;
    EXPECT_NEAR(ours, theirs, tolerance * std::abs(theirs)) << "loss of step " << step;
  });
}

INSTANTIATE_TEST_SUITE_P(All, TrainingParity, ValuesIn(names_of(training_table())),
                         [](const auto& info) { return info.param; });

TEST(TrainingParityTable, CoversEveryRecordedCase) {
  EXPECT_EQ(names_of(training_table()), Record("training_float64").cases());
  EXPECT_EQ(names_of(training_table()), Record("training_float32").cases());
}

// These values match those in replica_cases.py.
constexpr std::int64_t kBatchOfThree = 10;

Sequential network_of_replicas(bool synchronized) {
  return Sequential(Input{{6, 5, 2}},
                    Conv2D(3, 3, {.padding = "same", .activation = "relu", .use_bias = false}),
                    BatchNormalization({.momentum = 7.0 / 8, .synchronized = synchronized}),
                    MaxPooling2D(), Flatten(), Dense(3));
}

class ReplicaParity : public TestWithParam<std::string> {};

TEST_P(ReplicaParity, ThreeReplicasMatchTensorFlow) {
  const Float64 policy;
  const Record& record = record_of("replicas");
  const std::string prefix = GetParam() + "/";
  MirroredStrategy strategy({.devices = "cpu:0-2"});
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices({record.at("images"), record.at("labels")}).batch(kBatchOfThree));
  auto scope = strategy.scope();
  Sequential model = network_of_replicas(GetParam() == "synchronized");
  std::vector<Variable> variables = model.variables();
  const std::vector<Tensor> initial = record.list(prefix + "initial");
  ASSERT_EQ(variables.size(), initial.size());
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(initial[i]);
  Adam optimizer(model.trainable_variables(), {.learning_rate = 1.0 / 64,
                                               .beta_1 = 7.0 / 8,
                                               .beta_2 = 31.0 / 32,
                                               .epsilon = 1.0 / 1024,
                                               .amsgrad = true});
  auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = model(batch.features(), {.training = true});
    const Tensor each = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    const Tensor loss = compute_average_loss(each, batch.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };
  const std::vector<double> losses = record.at(prefix + "losses").to_doubles();
  const std::vector<double> rows = record.at(prefix + "rows").to_doubles();
  std::size_t number = 0;
  while (number < losses.size()) {
    for (const PerReplica<Batch>& batch : batches) {
      for (std::size_t replica = 0; replica < 3; ++replica) {
        EXPECT_EQ(static_cast<double>(batch.values()[replica].labels().shape()[0]),
                  rows[3 * number + replica])
            << "rows of replica " << replica << " in step " << number;
      }
      const Tensor loss = strategy.reduce(ReduceOp::kSum, strategy.run(step, batch));
      EXPECT_NEAR(loss.item_double(), losses[number], 1e-9 * losses[number]) << "step " << number;
      if (++number == losses.size()) break;
    }
  }
  const std::vector<Tensor> final = record.list(prefix + "final");
  for (std::size_t i = 0; i < variables.size(); ++i) {
    // Compares the values of all replicas, because moving averages differ between replicas that
    // normalise separately.
    std::vector<Tensor> components;
    for (const Tensor& component : variables[i].storage().local_components())
      components.push_back(component.to(Device{}));
    expect_close(stack(components), final[i], 1e-9, variables[i].name());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReplicaParity, Values("each_replica", "synchronized"),
                         [](const auto& info) { return info.param; });

TEST(ReplicaParityTable, CoversEveryRecordedCase) {
  EXPECT_EQ(record_of("replicas").cases(), (std::set<std::string>{"each_replica", "synchronized"}));
}

constexpr std::int64_t kFirstRows = 6;  // batches alternately have 6 and 4 rows

SymbolicTensor sum_of(const SymbolicTensor& a, const SymbolicTensor& b) { return Add()({a, b}); }

SymbolicTensor feed_forward(const SymbolicTensor& x) {
  const SymbolicTensor y = Dense(6, {.activation = "silu"})(LayerNormalization()(x));
  return sum_of(x, Dense(8)(y));
}

/// Creates layers in the same order as network_cases.py.
Functional transformer() {
  const SymbolicTensor source = Input{{6}}, target = Input{{5}}, visible = Input{{5, 5}};
  SymbolicTensor x = Embedding(7, 8, {.mask_zero = true})(source);
  SymbolicTensor y = LayerNormalization()(x);
  x = feed_forward(sum_of(x, MultiHeadAttention(2, 4)({y, y})));
  const SymbolicTensor encoded = LayerNormalization()(x);

  x = Embedding(6, 8, {.mask_zero = true})(target);
  y = LayerNormalization()(x);
  y = MultiHeadAttention(2, 4, {.use_causal_mask = true, .with_mask = true})({y, y, visible});
  x = sum_of(x, y);
  y = LayerNormalization()(x);
  x = feed_forward(sum_of(x, MultiHeadAttention(2, 4, {.value_dim = 3})({y, encoded})));
  x = GlobalAveragePooling1D()(LayerNormalization()(x));
  return Functional({source, target, visible}, {Dense(4)(x)});
}

std::unique_ptr<Optimizer> transformer_optimizer(const std::vector<Variable>& variables) {
  auto optimizer = std::make_unique<AdamW>(
      variables, AdamWOptions{.learning_rate = CosineDecay({.initial_learning_rate = 1.0 / 64,
                                                            .decay_steps = 6,
                                                            .alpha = 1.0 / 8,
                                                            .warmup_target = 1.0 / 16,
                                                            .warmup_steps = 3}),
                              .beta_1 = 7.0 / 8,
                              .beta_2 = 31.0 / 32,
                              .epsilon = 1.0 / 1024,
                              .weight_decay = 1.0 / 8,
                              .clipping = {.global_clipnorm = 0.5}});
  optimizer->exclude_from_weight_decay({"bias", "gamma", "beta"});
  return optimizer;
}

Functional depthwise() {
  const SymbolicTensor image = Input{{13, 11, 2}};
  SymbolicTensor x = Conv2D(4, 3, {.strides = 2, .padding = "same", .activation = "relu6"})(image);
  SymbolicTensor y = SeparableConv2D(4, 3, {.padding = "same", .use_bias = false})(x);
  y = Relu({.max_value = 6.0})(BatchNormalization({.momentum = 0.75, .scale = false})(y));
  y = DepthwiseConv2D(3, {.padding = "same", .dilation_rate = 2, .use_bias = false})(y);
  y = BatchNormalization({.momentum = 0.75, .center = false})(y);
  x = Activation("relu6")(sum_of(x, y));
  x = DepthwiseConv2D(
      {3, 2}, {.strides = 2, .padding = "same", .depth_multiplier = 2, .use_bias = false})(x);
  x = BatchNormalization({.momentum = 0.75, .center = false, .scale = false})(x);
  x = AveragePooling2D(3, {.strides = 2, .padding = "same"})(Activation("relu6")(x));
  return Functional({image}, {Dense(4)(Flatten()(x))});
}

std::unique_ptr<Optimizer> depthwise_optimizer(const std::vector<Variable>& variables) {
  return std::make_unique<Rmsprop>(variables, RmspropOptions{.learning_rate = 1.0 / 64,
                                                             .rho = 7.0 / 8,
                                                             .momentum = 3.0 / 4,
                                                             .epsilon = 1.0 / 1024,
                                                             .centered = true});
}

struct NetworkCase {
  Functional (*make)();
  std::unique_ptr<Optimizer> (*make_optimizer)(const std::vector<Variable>&);
};

/// Returns the networks of network_cases.py.
const std::map<std::string, NetworkCase>& network_table() {
  static const std::map<std::string, NetworkCase> table = {
      {"transformer", {&transformer, &transformer_optimizer}},
      {"depthwise", {&depthwise, &depthwise_optimizer}},
  };
  return table;
}

/// Returns the rows of a step's batch.
Tensor batch_of(const Tensor& all, std::size_t step) {
  return step % 2 == 0 ? all.detached_rows(0, kFirstRows)
                       : all.detached_rows(kFirstRows, all.shape()[0] - kFirstRows);
}

class NetworkParity : public TestWithParam<std::string> {};

TEST_P(NetworkParity, TrainingMatchesKeras) {
  const Float64 policy;
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("networks");
  const Functional model = network_table().at(GetParam()).make();
  std::vector<Variable> variables = model.variables();
  const std::vector<Tensor> initial = record.list(prefix + "initial");
  ASSERT_EQ(variables.size(), initial.size());
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(initial[i]);
  const auto optimizer = network_table().at(GetParam()).make_optimizer(model.trainable_variables());

  const std::vector<Tensor> inputs = record.list(prefix + "x");
  const std::vector<double> losses = record.at(prefix + "losses").to_doubles();
  for (std::size_t step = 0; step < losses.size(); ++step) {
    std::vector<Tensor> arguments;
    for (const Tensor& all : inputs) arguments.push_back(batch_of(all, step));
    GradientTape tape;
    const Tensor logits = model(arguments, {.training = true});
    const Tensor loss = reduce_mean(losses::sparse_categorical_crossentropy(
        batch_of(record.at(prefix + "labels"), step), logits));
    optimizer->minimize(tape, loss);
    EXPECT_NEAR(loss.item_double(), losses[step], 1e-9 * losses[step]) << "loss of step " << step;
  }
  const std::vector<Tensor> final = record.list(prefix + "final");
  for (std::size_t i = 0; i < variables.size(); ++i)
    expect_close(variables[i].value(), final[i], 1e-9, variables[i].name());
}

TUTTI_PARITY_CASES(NetworkParity, network_table(), "networks");

double fit_number(const std::string& name) { return record_of("fit").at(name).item_double(); }

using MadeMetric = std::shared_ptr<PredictionMetric>;

/// Returns the metrics by name, each with a flag that is true if its labels must be one-hot.
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

/// Returns one weight per row: the weight of the row's first step.
Tensor first_weights(const Tensor& weights) { return slice(weights, {0, 0}, {-1, 1}); }

TEST(FitParity, StepMetricsMatchKerasWithMasksAndWeights) {
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
      // Keras averages binary accuracy over the three classes of a step in float32.
      EXPECT_NEAR(metric->result().item_double(), fit_number(concat("masked/", name, '_', kind)),
                  name == "binary_accuracy" ? 1e-7 : 1e-9)
          << name << ", " << kind;
    }
  }
}

/// Returns the model of weights_of_steps() in fit_cases.py, with its options.
Sequential model_of_steps() {
  Sequential model(Input{{5, 2}}, Dense(3, {.activation = "softmax", .use_bias = false}));
  model.variables()[0].assign(record_of("fit").at("steps/kernel"));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.5},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"},
                 .weighted_metrics = {"accuracy", "sparse_categorical_crossentropy"}});
  return model;
}

TEST(FitParity, StepWeightsMatchKerasForAnyReplicaCount) {
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

TEST(FitParity, F1MatchesKerasForTiesAndUnpredictedRows) {
  for (const auto& [average, name] :
       std::map<ScoreAverage, std::string>{{ScoreAverage::kMicro, "micro"},
                                           {ScoreAverage::kMacro, "macro"},
                                           {ScoreAverage::kWeighted, "weighted"}}) {
    F1Score score({.num_classes = 4, .average = average});
    score.update_state(record_of("fit").at("f1/labels"), record_of("fit").at("f1/predictions"));
    // Keras adds 1e-7 to divisors; tutti does not.
    EXPECT_NEAR(score.result().item_double(), fit_number("f1/" + name), 1e-6) << name;
    EXPECT_THAT(score.per_class(),
                Pointwise(DoubleNear(1e-6), record_of("fit").at("f1/per_class").to_doubles()));
  }
}

TEST(FitParity, EarlyStoppingMatchesKerasOnRandomValues) {
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
      // a value that identifies the restored epoch
      model.variables()[0].assign(static_cast<double>(epoch));
      Logs logs;
      logs.set(monitor, values[static_cast<std::size_t>(epoch)]);
      callback.on_epoch_end(epoch, logs);
    }
    callback.on_train_end({});
    EXPECT_EQ(callback.stopped_epoch().value_or(-1), ends[0]) << number;
    EXPECT_EQ(model.variables()[0].value().item_double(), ends[1]) << number;
  }
}

TEST(FitParity, RestoredBestWeightsMatchKerasWithAverages) {
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
      EXPECT_THAT(
          history.at("val_loss"),
          Pointwise(DoubleNear(1e-9), record_of("fit").at(which + "_val_loss").to_doubles()))
          << which;
      EXPECT_EQ(static_cast<double>(stopping->best_epoch()), fit_number(which + "_best_epoch"));
      expect_close(model.variables()[0].value(), record_of("fit").at(which + "_final"), 1e-9,
                   which);
    }
  }
}

}  // namespace tutti::testing::training_parity_test

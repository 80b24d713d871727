// Tests layers, metrics, losses and moving averages with several replicas, and training steps on a
// simulated GPU.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/model/model_helpers.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/losses.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"
#include "tutti/strategy/reduction/average_gradients.h"

namespace tutti::testing::distributed_layers_test {

TEST(DistributedMetrics, ReplicaCountsAreSummedBeforeDivision) {
  // With 130 rows in batches of 32, the replicas see different proportions of the two labels.
  const Tensor p = random_uniform({130, 1}, {.seed = 21});
  const Tensor y = cast(greater(p + random_uniform({130, 1}, {.seed = 22}), 1.0), DType::kFloat32);
  const Dataset data = Dataset::from_tensor_slices({p, y}).batch(32);
  auto run = [&](Strategy& strategy) {
    auto scope = strategy.scope();
    Precision precision({.threshold = 0.4});
    Recall recall;
    Auc roc, pr({.curve = AucCurve::kPrecisionRecall});
    F1Score f1;
    MeanIoU iou(2);
    RootMeanSquaredError rmse;
    const std::vector<PredictionMetric*> metrics = {&precision, &recall, &roc, &pr, &f1, &rmse};
    for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
      strategy.run(
          [&](const Batch& part) {
            for (PredictionMetric* metric : metrics)
              metric->update_state(part.labels(), part.features());
            iou.update_state(part.labels(), cast(greater(part.features(), 0.5), DType::kInt64));
          },
          batch);
    }
    std::vector<double> results = {iou.result().item_double()};
    for (const PredictionMetric* metric : metrics)
      results.push_back(metric->result().item_double());
    return results;
  };
  OneDeviceStrategy alone("cpu:0");
  const std::vector<double> expected = run(alone);
  for (const double value : expected) EXPECT_TRUE(value > 0.05 && value < 0.99) << value;
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    expect_near(run(*strategy), expected, 1e-6);
  }
}

TEST(DistributedMetrics, MetricsCreatedOutsideScopeWorkInCrossReplicaContext) {
  Mean mean;
  auto strategy = mirrored("cpu:0-1");
  auto scope = strategy->scope();
  for (int i = 0; i < 10; ++i) mean.update_state(static_cast<float>(i));
  EXPECT_EQ(mean.result().item(), 4.5f);
}

/// Layer that returns its input and adds two metrics: the sum of the means of all inputs, and the
/// mean of all input elements.
class Observer : public Layer {
 public:
  std::shared_ptr<Sum> sum() const { return sum_; }
  std::shared_ptr<Mean> mean() const { return mean_; }

 protected:
  Shape build(const Shape& input) override {
    sum_ = std::make_shared<Sum>("sum");
    mean_ = std::make_shared<Mean>("mean");
    add_metric(sum_);
    add_metric(mean_);
    return input;
  }
  Tensor call(const Tensor& input, CallContext) const override {
    sum_->update_state(reduce_mean(input));
    mean_->update_state(input);
    return input;
  }

 private:
  std::shared_ptr<Sum> sum_;
  std::shared_ptr<Mean> mean_;
};

TEST(DistributedMetrics, ResultInsideRunAggregatesAllReplicas) {
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    auto scope = strategy->scope();
    const auto replicas = static_cast<double>(strategy->num_replicas_in_sync());
    Observer layer;
    layer.build_for({2});
    Variable seen(Tensor(0.0f),
                  {.name = "seen", .aggregation = VariableAggregation::kOnlyFirstReplica});
    const PerReplica<Tensor> inside = strategy->run([&] {
      layer(Tensor::ones({3, 2}, DType::kFloat32, ReplicaContext::current().device()));
      const Tensor result = layer.sum()->result();
      seen.assign(result);
      return result;
    });
    for (const Tensor& result : inside) EXPECT_EQ(result.item(), replicas);
    EXPECT_EQ(seen.value().item(), replicas);
    EXPECT_EQ(layer.sum()->result().item(), replicas);
    EXPECT_EQ(layer.mean()->result().item(), 1.0f);
  }
}

/// Trains a model with BatchNormalization for two steps on 12 rows; returns its weights and moving
/// averages.
std::vector<double> normalized_step(Strategy& strategy, bool synchronized) {
  set_random_seed(4);
  auto scope = strategy.scope();
  Sequential model(Input{{4}}, Dense(5), BatchNormalization({.synchronized = synchronized}),
                   Dense(3));
  model.compile(
      {.optimizer = SgdOptions{.learning_rate = 0.5}, .loss = "sparse_categorical_crossentropy"});
  model.fit(three_classes(12).batch(12), {.epochs = 2, .verbose = Verbosity::kSilent});
  return weights_of(model);
}

TEST(DistributedBatchNormalization, SynchronizedStatisticsMatchOneDeviceOnGlobalBatch) {
  OneDeviceStrategy one("cpu:0");
  const std::vector<double> expected = normalized_step(one, false);
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    expect_near(normalized_step(*strategy, true), expected, 2e-4);
  }
}

TEST(DistributedBatchNormalization, EmptyReplicaUpdatesAveragesOnlyIfSynchronized) {
  for (const bool synchronized : {false, true}) {
    auto strategy = mirrored("cpu:0-1");
    auto scope = strategy->scope();
    BatchNormalization layer({.momentum = 0.0, .synchronized = synchronized});
    layer.build_for({1});
    strategy->run([&] {
      const ReplicaContext& context = ReplicaContext::current();
      const Tensor x = context.replica_id() == 0
                           ? Tensor::from<float>({2, 1}, {2, 4}, context.device())
                           : Tensor::zeros({0, 1}, DType::kFloat32, context.device());
      layer(x, {.training = true});
    });
    std::vector<double> means;
    for (const Tensor& mean : layer.variables()[2].storage().local_components())
      means.push_back(mean.item());
    expect_near(means, synchronized ? std::vector<double>{3, 3} : std::vector<double>{3, 0}, 1e-6);
  }
}

namespace normalization_updates_test {

constexpr double kMomentum = 0.75;
constexpr int kSteps = 5;
constexpr std::int64_t kRows = 12;

/// Returns the rows of all steps; they have one feature and differ from step to step.
Tensor rows_of_all_steps() { return random_uniform({kSteps * kRows, 1}, {.seed = 31}, -1.0, 3.0); }

std::vector<double> moving_averages_of(const Sequential& model) {
  std::vector<double> values;
  for (const Variable& variable : model.variables()) {
    if (variable.name().find("moving_") == std::string::npos) continue;
    values.push_back(variable.value().item_double());
  }
  return values;
}

Sequential normalized_model() {
  return Sequential(Input{{1}}, BatchNormalization({.momentum = kMomentum}), Dense(1));
}

/// Runs the steps of a custom loop under `strategy`; returns the moving averages.
std::vector<double> after_steps(Strategy& strategy, bool training, bool frozen) {
  const auto scope = strategy.scope();
  BatchNormalization layer({.momentum = kMomentum});
  Sequential model(Input{{1}}, layer, Dense(1));
  if (frozen) layer.freeze();
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1});
  const Dataset data = Dataset::from_tensor_slices({rows_of_all_steps()}).batch(kRows);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    strategy.run(
        [&](const Batch& part) {
          GradientTape tape;
          const Tensor y = model(part.features(), {.training = training});
          const Tensor each = reduce_mean(square(y), {.axes = {1}});
          optimizer.minimize(tape, compute_average_loss(each, batch[0].global_rows()));
        },
        batch);
  }
  EXPECT_EQ(optimizer.iterations().value().item_int(), kSteps);
  return moving_averages_of(model);
}

/// Runs the steps on two towers (replicas): averages their gradients, then updates the variables.
/// Returns the moving averages.
std::vector<double> after_steps_of_towers(bool training) {
  CentralStorageStrategy strategy({.local = {.devices = "cpu:0-1"}});
  const auto scope = strategy.scope();
  Sequential model = normalized_model();
  const std::vector<Variable> variables = model.trainable_variables();
  Sgd optimizer(variables, {.learning_rate = 0.1});
  const Dataset data = Dataset::from_tensor_slices({rows_of_all_steps()}).batch(kRows);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    const auto towers = strategy.run(
        [&](const Batch& part) {
          GradientTape tape;
          const Tensor loss = reduce_mean(square(model(part.features(), {.training = training})));
          return with_variables(tape.gradient(loss, variables), variables);
        },
        batch);
    const std::vector<Gradient> mean = gradients_of(average_gradients(towers.values()));
    strategy.run(
        [&] { optimizer.apply_gradients(mean, {.aggregation = GradientAggregation::kNone}); });
  }
  return moving_averages_of(model);
}

const std::vector<double> kUntouched = {0.0, 1.0};

}  // namespace normalization_updates_test

TEST(NormalizationUpdates, EveryTowerUpdatesAveragesOnlyInTraining) {
  using namespace normalization_updates_test;
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  expect_near(after_steps_of_towers(true), after_steps(strategy, true, false), 1e-5);
  EXPECT_EQ(after_steps_of_towers(false), kUntouched);
  EXPECT_EQ(after_steps(strategy, false, false), kUntouched);
  EXPECT_EQ(after_steps(strategy, true, /*frozen=*/true), kUntouched);
}

TEST(NormalizationUpdates, MissingTrainingFlagWarnsOnce) {
  using namespace normalization_updates_test;
  BatchNormalization layer({.name = "forgotten"}), frozen({.name = "frozen"}),
      trained({.name = "trained"});
  for (BatchNormalization* each : {&layer, &frozen, &trained}) each->build_for({1});
  frozen.freeze();
  const Tensor x = Tensor::ones({4, 1});
  const auto warnings = warnings_of([&] {
    (void)layer(x);  // does not warn, because no tape records
    (void)trained(x, {.training = true});
    GradientTape tape;
    for (int call = 0; call < 3; ++call) (void)layer(x);
    (void)frozen(x);
    (void)trained(x);
  });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], StartsWith("layer 'forgotten' is called with training = "
                                      "false while a tape records"));
  EXPECT_THAT(warnings[0], HasSubstr("{.training = true}"));
}

TEST(NormalizationUpdates, WarnsOnceAboutSingleValuePerChannel) {
  BatchNormalization rows({.name = "rows"}), pixels({.name = "pixels"}),
      synchronized({.synchronized = true, .name = "synchronized"});
  rows.build_for({3});
  pixels.build_for({2, 2, 3});
  synchronized.build_for({3});
  const auto warnings = warnings_of([&] {
    for (int step = 0; step < 2; ++step) (void)rows(Tensor::ones({1, 3}), {.training = true});
    (void)rows(Tensor::ones({0, 3}), {.training = true});
    (void)rows(Tensor::ones({2, 3}), {.training = true});
    (void)rows(Tensor::ones({1, 3}));  // inference needs no variance
    (void)pixels(Tensor::ones({1, 2, 2, 3}), {.training = true});
    (void)synchronized(Tensor::ones({1, 3}), {.training = true});
  });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], AllOf(StartsWith("layer 'rows': expected more than one value per "
                                            "channel on each replica, got shape [1, 3]"),
                                 HasSubstr("{.synchronized = true}")));
}

namespace small_batches_test {

constexpr double kMomentum = 0.9;
constexpr std::int64_t kRows = 16, kBatch = 2;
constexpr int kEpochs = 3;

Tensor rows() { return random_normal({kRows, 1}, {.seed = 2}, 100.0, 10.0); }

Dataset data() { return Dataset::from_tensor_slices({rows(), rows() * 0.01f}).batch(kBatch); }

Sequential model() {
  set_random_seed(1);
  Sequential model(Input{{1}},
                   BatchNormalization({.momentum = kMomentum, .center = false, .scale = false}),
                   Dense(1));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.01}, .loss = "mse"});
  return model;
}

void train(Sequential& model, int epochs = kEpochs) {
  model.fit(data(), {.epochs = epochs, .verbose = kSilent});
}

/// Returns the moving mean on one device, computed with a plain loop over the steps.
double moving_mean_of_one_device() {
  const std::vector<double> x = rows().to_doubles();
  double mean = 0.0;
  for (int epoch = 0; epoch < kEpochs; ++epoch)
    for (std::size_t i = 0; i < x.size(); i += 2)
      mean = kMomentum * mean + (1.0 - kMomentum) * (x[i] + x[i + 1]) / 2.0;
  return mean;
}

/// Returns the moving variance after training with both rows of each batch on one device, or with
/// one row (variance 0) per replica.
double moving_variance(bool one_device) {
  const std::vector<double> x = rows().to_doubles();
  double variance = 1.0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (std::size_t i = 0; i < x.size(); i += 2) {
      const double of_step = one_device ? std::pow((x[i] - x[i + 1]) / 2.0, 2) : 0.0;
      variance = kMomentum * variance + (1.0 - kMomentum) * of_step;
    }
  }
  return variance;
}

/// Returns single-process strategies, some with more replicas than a batch has rows.
std::vector<std::unique_ptr<Strategy>> strategies() {
  auto all = several_strategies();
  all.push_back(mirrored("cpu:0", 8));
  all.push_back(fully_sharded("cpu:0-3"));
  all.push_back(central("cpu:0-3"));
  return all;
}

}  // namespace small_batches_test

// Evaluation batches have more rows than training batches, so even replicas that trained on no rows
// use the averages.
TEST(BatchNormalizationUpdates, EvaluationUsesAveragesOfReplicasWithRows) {
  using namespace small_batches_test;
  for (const auto& strategy : strategies()) {
    const auto scope = strategy->scope();
    Sequential trained = model();
    train(trained);
    const double mean = moving_mean_of_one_device();
    const bool one_device = strategy->num_replicas_in_sync() == 1;
    const auto averages = normalization_updates_test::moving_averages_of(trained);
    EXPECT_NEAR(averages[0], mean, 1e-4 * mean) << label_of(*strategy);
    EXPECT_NEAR(averages[1], moving_variance(one_device), 1e-3) << label_of(*strategy);
    std::vector<std::vector<double>> before;
    for (const Variable& variable : trained.variables())
      for (const Tensor& each : variable.storage().local_components())
        before.push_back(each.to_doubles());
    const std::vector<double> weights = weights_of(trained);
    const std::vector<double> x = rows().to_doubles();
    std::vector<double> expected;
    double loss = 0.0;
    for (const double value : x) {
      const double z = (value - weights[0]) / std::sqrt(weights[1] + 1e-3);
      expected.push_back(z * weights[2] + weights[3]);
      loss += std::pow(expected.back() - 0.01 * value, 2) / static_cast<double>(x.size());
    }
    const double tolerance = 1e-3;
    expect_near(trained.predict(rows(), {.batch_size = kRows}).to_doubles(), expected, tolerance);
    EXPECT_NEAR(trained.evaluate(rows(), rows() * 0.01f, {.batch_size = kRows}).at("loss"), loss,
                tolerance * std::max(1.0, loss))
        << label_of(*strategy);
    std::vector<std::vector<double>> after;
    for (const Variable& variable : trained.variables())
      for (const Tensor& each : variable.storage().local_components())
        after.push_back(each.to_doubles());
    EXPECT_EQ(after, before) << "evaluation changed a variable";
  }
}

TEST(BatchNormalizationUpdates, ResumedAveragesMatchUninterruptedTraining) {
  using namespace small_batches_test;
  const auto strategy = mirrored("cpu:0", 4);
  const auto scope = strategy->scope();
  Sequential undisturbed = model(), saved = model(), resumed = model();
  const Dataset ragged = Dataset::from_tensor_slices({rows(), rows()}).batch(6);  // 6, 6, 4
  const auto fit = [&](Sequential& each, const Dataset& batches, int first, int last) {
    each.fit(batches, {.epochs = last, .initial_epoch = first, .verbose = kSilent});
  };
  for (Sequential* each : {&undisturbed, &saved}) {
    fit(*each, ragged, 0, 1);
    fit(*each, data(), 1, 2);
  }
  (void)resumed.checkpoint().restore(saved.checkpoint().snapshot());
  for (Sequential* each : {&undisturbed, &resumed}) fit(*each, data(), 2, 3);
  EXPECT_EQ(weights_of(resumed), weights_of(undisturbed));
}

std::unique_ptr<Strategy> parameter_server(const char* devices, int replicas = 0) {
  ParameterServerOptions options;
  options.local = {.devices = devices, .replicas = replicas};
  options.num_servers = 2;
  return std::make_unique<ParameterServerStrategy>(std::move(options));
}

std::vector<std::unique_ptr<Strategy>> strategies() {
  std::vector<std::unique_ptr<Strategy>> all = several_strategies();
  all.push_back(std::make_unique<OneDeviceStrategy>("cpu:2"));
  all.push_back(central("cpu:0-2"));
  all.push_back(parameter_server("cpu:0-1"));
  return all;
}

Device here() { return ReplicaContext::current().device(); }

const std::vector<const char*> kInitializers = {
    "zeros",     "ones",          "glorot_uniform",  "glorot_normal", "he_uniform",
    "he_normal", "lecun_uniform", "lecun_normal",    "orthogonal",    "identity",
    "uniform",   "normal",        "truncated_normal"};

const std::vector<const char*> kLosses = {"categorical_crossentropy",
                                          "binary_crossentropy",
                                          "binary_focal_crossentropy",
                                          "categorical_focal_crossentropy",
                                          "huber",
                                          "mean_squared_error",
                                          "mean_absolute_error",
                                          "mean_absolute_percentage_error",
                                          "mean_squared_logarithmic_error",
                                          "cosine_similarity",
                                          "log_cosh",
                                          "hinge",
                                          "squared_hinge",
                                          "categorical_hinge",
                                          "kl_divergence",
                                          "poisson"};

TEST(ReplicaDevicePlacement, InitialValuesAreCreatedOnReplicaDevice) {
  for (const auto& strategy : strategies()) {
    strategy->run([] {
      for (const char* name : kInitializers) {
        const Tensor made =
            Initializer(name).for_shape({3, 3})(InitializerContext{here(), {.seed = 4}});
        EXPECT_EQ(made.device(), here()) << name;
        EXPECT_EQ((made + Tensor::ones({3})).device(), here()) << name;
      }
    });
  }
}

TEST(ReplicaDevicePlacement, EmptyRegularizationLossIsOnReplicaDevice) {
  for (const auto& strategy : strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    const Tensor rows = Tensor::ones({2});
    const auto totals = strategy->run([&] {
      const Tensor none = scale_regularization_loss(std::span<const Tensor>());
      EXPECT_EQ(none.device(), here());
      return compute_average_loss(rows.to(here()), 4) + none +
             compute_average_loss(Tensor::ones({0}), 0);
    });
    for (const Tensor& total : totals) EXPECT_EQ(total.item(), 0.5f);
  }
}

// The labels and weights are host tensors, and the predictions are on the replica's device.
TEST(ReplicaDevicePlacement, LossesAcceptHostLabelsAndWeights) {
  const Tensor labels = Tensor::from<float>({2, 2}, {1, 0, 0, 1});
  const Tensor predictions = Tensor::from<float>({2, 2}, {0.25f, 0.75f, 0.5f, 0.5f});
  const Tensor classes = Tensor::from<std::int64_t>({2}, {1, 0});
  const Tensor weights = Tensor::from<double>({2}, {1.0, 3.0});
  for (const auto& strategy : strategies()) {
    const auto check = [&](const char* name, const Tensor& y) {
      SCOPED_TRACE(concat(label_of(*strategy), ": ", name));
      const auto value_of = [&](const Tensor& p) {
        return compute_average_loss(Loss(name).per_example(y, p),
                                    {.global_batch_size = 2, .sample_weight = weights});
      };
      const double expected = value_of(predictions).item_double();
      for (const Tensor& value : strategy->run([&] { return value_of(predictions.to(here())); })) {
        EXPECT_EQ(value.item_double(), expected);
      }
    };
    for (const char* name : kLosses) check(name, labels);
    check("sparse_categorical_crossentropy", classes);
  }
}

// Even the result() of a metric without values must combine with tensors on the replica's device.
TEST(ReplicaDevicePlacement, MetricsAcceptHostTensorsAndReturnDeviceTensors) {
  const Tensor labels = Tensor::from<float>({4}, {1, 0, 1, 0});
  const Tensor predictions = Tensor::from<float>({4}, {0.9f, 0.2f, 0.3f, 0.4f});
  const std::vector<const char*> names = {"auc",
                                          "precision",
                                          "recall",
                                          "true_positives",
                                          "true_negatives",
                                          "binary_accuracy",
                                          "false_positives",
                                          "false_negatives",
                                          "mean_squared_error",
                                          "rmse"};
  for (const auto& strategy : strategies()) {
    const auto scope = strategy->scope();
    for (const char* name : names) {
      SCOPED_TRACE(concat(label_of(*strategy), ": ", name));
      const Loss loss("mean_squared_error");
      const auto metric = MetricSpec(name).make(loss), expected = MetricSpec(name).make(loss);
      const auto sums = strategy->run([&] {
        const Tensor none = cast(metric->result(), DType::kFloat32);
        EXPECT_TRUE((none + Tensor::zeros({1}).to(here())).defined());
        metric->update_state(labels, predictions);
        return cast(metric->result(), DType::kFloat32) + Tensor::zeros({1}).to(here());
      });
      strategy->run([&] { expected->update_state(labels.to(here()), predictions.to(here())); });
      const float value = static_cast<float>(expected->result().item_double());
      for (const Tensor& sum : sums) EXPECT_EQ(sum.item(), value);
    }
    Mean mean("mean");
    Sum sum("sum");
    strategy->run([&] {
      mean.update_state(Tensor(3.0f));
      sum.update_state(Tensor(3.0f));
    });
    EXPECT_EQ(mean.result().item(), 3.0f);
    EXPECT_EQ(sum.result().item(), 3.0f * static_cast<float>(strategy->num_replicas_in_sync()));
  }
}

/// Returns the number of requests to the GPU that contain `what`.
int count_of(const std::vector<std::string>& notes, const std::string& what) {
  return static_cast<int>(std::ranges::count_if(
      notes, [&](const std::string& note) { return note.find(what) != std::string::npos; }));
}

/// Trains for two epochs of `num_steps` steps; returns the GPU calls of the second epoch.
std::vector<std::string> notes_of_epoch(FakeGpus& gpus, std::int64_t num_steps,
                                        const OptimizerSpec& optimizer) {
  OneDeviceStrategy strategy("gpu:0");
  auto scope = strategy.scope();
  Sequential model(Input{{8}}, Dense(6, {.activation = "relu"}), BatchNormalization(), Dropout(0.3),
                   Dense(3));
  model.compile({.optimizer = optimizer,
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {"accuracy"}});
  const Tensor x = random_uniform({num_steps * 4, 8}, {.seed = 1}, -1.0, 1.0);
  const Tensor y = Tensor::zeros({num_steps * 4}, DType::kInt64);
  const FitOptions options{.batch_size = 4, .verbose = Verbosity::kSilent};
  model.fit(x, y, options);
  gpus.take_notes();
  model.fit(x, y, options);
  return gpus.take_notes();
}

TEST(GpuSteps, FitSynchronizesGpuOncePerEpoch) {
  FakeGpus gpus;
  AdamOptions optimizer;
  optimizer.clipping.global_clipnorm = 1.0;
  const auto few = notes_of_epoch(gpus, 2, optimizer), many = notes_of_epoch(gpus, 7, optimizer);
  EXPECT_GT(count_of(few, "copy_to_host"), 0);  // copies the logs of the epoch
  EXPECT_EQ(count_of(many, "copy_to_host"), count_of(few, "copy_to_host"));
  EXPECT_EQ(count_of(many, "synchronize"), 0);
}

TEST(GpuSteps, OneLaunchUpdatesAllVariablesWithoutAllocation) {
  FakeGpus gpus;
  const auto notes = notes_of_epoch(gpus, 5, SgdOptions{.learning_rate = 0.01});
  EXPECT_EQ(count_of(notes, " update "), 5);
  EXPECT_EQ(count_of(notes, concat(" update ", static_cast<int>(DeviceRuleId::kSgd), " x6")), 5);
  const auto of_adam = notes_of_epoch(gpus, 5, "adam");
  EXPECT_EQ(count_of(of_adam, " allocate "), 0);
}

}  // namespace tutti::testing::distributed_layers_test

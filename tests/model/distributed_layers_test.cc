// Tests layers, metrics, losses and moving averages in steps of several replicas.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/model/model_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/losses.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/reduction/average_gradients.h"

namespace tutti::distributed_layers_test {
using namespace model_tests;

TEST(DistributedMetrics, CountsOfReplicasAddUpBeforeTheyAreDivided) {
  // 130 rows in batches of 32: the replicas see different proportions of the two labels.
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

TEST(DistributedMetrics, MetricFromOutsideWorksInCrossReplicaContext) {
  Mean mean;
  auto strategy = model_tests::mirrored("cpu:0-1");
  auto scope = strategy->scope();
  for (int i = 0; i < 10; ++i) mean.update_state(static_cast<float>(i));
  EXPECT_EQ(mean.result().item(), 4.5f);
}

/// Counts calls and averages its input.
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

TEST(DistributedMetrics, ResultsInsideRunAreThoseOfAllReplicas) {
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

/// Runs one training step of a normalised model on 12 rows; returns weights and moving averages.
std::vector<double> normalized_step(Strategy& strategy, bool synchronized) {
  set_random_seed(4);
  auto scope = strategy.scope();
  Sequential model(Input{{4}}, Dense(5), BatchNormalization({.synchronized = synchronized}),
                   Dense(3));
  model.compile(
      {.optimizer = SgdOptions{.learning_rate = 0.5}, .loss = "sparse_categorical_crossentropy"});
  model.fit(model_tests::three_classes(12).batch(12), {.epochs = 2, .verbose = Verbosity::kSilent});
  return model_tests::weights_of(model);
}

TEST(DistributedBatchNormalization, SynchronizedEqualsOneDeviceOnTheGlobalBatch) {
  OneDeviceStrategy one("cpu:0");
  const std::vector<double> expected = normalized_step(one, false);
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    expect_near(normalized_step(*strategy, true), expected, 2e-4);
  }
}

TEST(DistributedBatchNormalization, AReplicaWithoutRowsKeepsItsAverages) {
  for (const bool synchronized : {false, true}) {
    auto strategy = model_tests::mirrored("cpu:0-1");
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
using model_tests::expect_near;

/// One feature; the rows differ in every step.
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

/// Runs steps of a custom loop under `strategy`; returns the moving averages.
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

/// Runs steps of two towers: gradients, their mean, one update. Returns the moving averages.
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

TEST(NormalizationUpdates, AveragesAreThoseOfAllTowersAndStayWithoutTrainingOrFrozen) {
  using namespace normalization_updates_test;
  MirroredStrategy strategy({.devices = "cpu:0-1"});  // its averages equal TensorFlow's
                                                      // (tests/parity)
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
  const auto warnings = thrown::warnings_of([&] {
    (void)layer(x);  // evaluation: outside of a tape
    (void)trained(x, {.training = true});
    GradientTape tape;
    for (int call = 0; call < 3; ++call) (void)layer(x);
    (void)frozen(x);
    (void)trained(x);
  });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], ::testing::StartsWith("layer 'forgotten' is called with training = "
                                                 "false while a tape records"));
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("{.training = true}"));
}

TEST(NormalizationUpdates, WarnsOnceOfOneValuePerChannel) {
  BatchNormalization rows({.name = "rows"}), pixels({.name = "pixels"}),
      synchronized({.synchronized = true, .name = "synchronized"});
  rows.build_for({3});
  pixels.build_for({2, 2, 3});
  synchronized.build_for({3});
  const auto warnings = thrown::warnings_of([&] {
    for (int step = 0; step < 2; ++step) (void)rows(Tensor::ones({1, 3}), {.training = true});
    (void)rows(Tensor::ones({0, 3}), {.training = true});
    (void)rows(Tensor::ones({2, 3}), {.training = true});
    (void)rows(Tensor::ones({1, 3}));  // inference
    (void)pixels(Tensor::ones({1, 2, 2, 3}), {.training = true});
    (void)synchronized(Tensor::ones({1, 3}), {.training = true});
  });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0],
              ::testing::AllOf(::testing::StartsWith("layer 'rows' is trained on one value per "
                                                     "channel and replica, got shape [1, 3]"),
                               ::testing::HasSubstr("{.synchronized = true}")));
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
  model.fit(data(), {.epochs = epochs, .verbose = model_tests::kSilent});
}

/// Computes the moving mean of one device with a plain loop over the steps.
double moving_mean_of_one_device() {
  const std::vector<double> x = rows().to_doubles();
  double mean = 0.0;
  for (int epoch = 0; epoch < kEpochs; ++epoch)
    for (std::size_t i = 0; i < x.size(); i += 2)
      mean = kMomentum * mean + (1.0 - kMomentum) * (x[i] + x[i + 1]) / 2.0;
  return mean;
}

/// Runs replicas with one row each (variance 0), or one with both rows.
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

/// Returns every strategy of this process, with more replicas than a batch has rows.
std::vector<std::unique_ptr<Strategy>> strategies() {
  auto all = model_tests::several_strategies();
  all.push_back(model_tests::mirrored("cpu:0", 8));
  all.push_back(model_tests::fully_sharded("cpu:0-3"));
  all.push_back(model_tests::central("cpu:0-3"));
  return all;
}

}  // namespace small_batches_test

// Has more rows than training, so that replicas without training data also use the averages.
TEST(BatchNormalizationUpdates, EvaluationComputesWithTheAveragesOfReplicasThatHadRows) {
  using namespace small_batches_test;
  for (const auto& strategy : strategies()) {
    const auto scope = strategy->scope();
    Sequential trained = model();
    train(trained);
    const double mean = moving_mean_of_one_device();
    const bool one_device = strategy->num_replicas_in_sync() == 1;
    const auto averages = normalization_updates_test::moving_averages_of(trained);
    EXPECT_NEAR(averages[0], mean, 1e-4 * mean) << model_tests::label_of(*strategy);
    EXPECT_NEAR(averages[1], moving_variance(one_device), 1e-3) << model_tests::label_of(*strategy);
    std::vector<std::vector<double>> before;
    for (const Variable& variable : trained.variables())
      for (const Tensor& each : variable.storage().local_components())
        before.push_back(each.to_doubles());
    const std::vector<double> weights = model_tests::weights_of(trained);
    const std::vector<double> x = rows().to_doubles();
    std::vector<double> expected;
    double loss = 0.0;
    for (const double value : x) {
      const double z = (value - weights[0]) / std::sqrt(weights[1] + 1e-3);
      expected.push_back(z * weights[2] + weights[3]);
      loss += std::pow(expected.back() - 0.01 * value, 2) / static_cast<double>(x.size());
    }
    const double tolerance = 1e-3;
    model_tests::expect_near(trained.predict(rows(), {.batch_size = kRows}).to_doubles(), expected,
                             tolerance);
    EXPECT_NEAR(trained.evaluate(rows(), rows() * 0.01f, {.batch_size = kRows}).at("loss"), loss,
                tolerance * std::max(1.0, loss))
        << model_tests::label_of(*strategy);
    std::vector<std::vector<double>> after;
    for (const Variable& variable : trained.variables())
      for (const Tensor& each : variable.storage().local_components())
        after.push_back(each.to_doubles());
    EXPECT_EQ(after, before) << "training continues with each replica's own";
  }
}

TEST(BatchNormalizationUpdates, ResumedTrainingHasTheAveragesOfTheUndisturbedOne) {
  using namespace small_batches_test;
  const auto strategy = model_tests::mirrored("cpu:0", 4);
  const auto scope = strategy->scope();
  Sequential undisturbed = model(), saved = model(), resumed = model();
  const Dataset ragged = Dataset::from_tensor_slices({rows(), rows()}).batch(6);  // 6, 6, 4
  const auto fit = [&](Sequential& each, const Dataset& batches, int first, int last) {
    each.fit(batches, {.epochs = last, .initial_epoch = first, .verbose = model_tests::kSilent});
  };
  for (Sequential* each : {&undisturbed, &saved}) {
    fit(*each, ragged, 0, 1);
    fit(*each, data(), 1, 2);
  }
  (void)resumed.checkpoint().restore(saved.checkpoint().snapshot());
  for (Sequential* each : {&undisturbed, &resumed}) fit(*each, data(), 2, 3);
  EXPECT_EQ(model_tests::weights_of(resumed), model_tests::weights_of(undisturbed));
}

}  // namespace tutti::distributed_layers_test

// A loop of one's own on every strategy: weights, loss and accuracy are those without one.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "tests/strategy/worker_threads.h"
#include "tutti/tutti.h"

namespace tutti::loop_tests {
namespace {
constexpr std::int64_t kEpochs = 3;
constexpr std::int64_t kRows = 30;
constexpr std::int64_t kGlobalBatch = 12;  // the last one has 6 rows

/// What one run of the loop gives.
struct Trained {
  std::vector<double> weights;
  std::vector<double> losses;      // of each epoch
  std::vector<double> accuracies;  // likewise
};

enum class Normalization { kNone, kOfTheGlobalBatch, kInInference };

struct Program {
  std::string name;
  Normalization normalization;
  OptimizerSpec optimizer;
};

Tensor noise(const Shape& shape, std::uint64_t seed) {
  return random_uniform(shape, RandomKey{seed, kInitializerPurpose, 0, 0, 0}, -1.0, 1.0);
}

/// Points of the plane in three classes: which third of a turn they are in.
Dataset points() {
  const Tensor x = noise({kRows, 2}, 1);
  const std::vector<double> values = x.to_doubles();
  std::vector<std::int64_t> classes;
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const double turn = std::atan2(values[i], values[i + 1]) / 6.2832 + 0.5;
    classes.push_back(static_cast<std::int64_t>(turn * 3.0) % 3);
  }
  return Dataset::from_tensor_slices({x, Tensor::from<std::int64_t>({kRows}, classes)})
      .batch(kGlobalBatch);
}

/// Values do not depend on what was made before: workers are threads here. tanh: an active relu
/// before a normalization gives its bias a gradient of 0, whose rounding Adam makes steps of.
Sequential make_model(Normalization normalization) {
  const auto dense = [](std::int64_t inputs, std::int64_t units, std::string activation) {
    DenseOptions options{.activation = std::move(activation)};
    options.kernel_initializer = initializers::values(
        noise({inputs, units}, static_cast<std::uint64_t>(10 * inputs + units)));
    if (units == inputs) options.kernel_regularizer = regularizers::l2(0.01);
    return std::make_shared<Dense>(units, options);
  };
  std::vector<std::shared_ptr<Layer>> layers = {dense(2, 10, "tanh"), dense(10, 10, "tanh")};
  if (normalization != Normalization::kNone) {
    layers.push_back(std::make_shared<BatchNormalization>(BatchNormalizationOptions{
        .synchronized = normalization == Normalization::kOfTheGlobalBatch}));
  }
  layers.push_back(dense(10, 3, ""));
  return Sequential("", Input{{2}}, layers);
}

Trained train(Strategy& strategy, const Program& program) {
  DistributedDataset batches = strategy.distribute_dataset(points());
  const auto scope = strategy.scope();
  Sequential model = make_model(program.normalization);
  const auto optimizer = program.optimizer.make(model.trainable_variables());
  Mean loss_of_epoch("loss");
  SparseCategoricalAccuracy accuracy;
  const CallContext context{.training = program.normalization != Normalization::kInInference};
  const auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor predictions = model(batch.features(), context);
    const Tensor each = losses::sparse_categorical_crossentropy(batch.labels(), predictions);
    const Tensor loss =
        compute_average_loss(each, batch.global_rows()) + scale_regularization_loss(model.losses());
    optimizer->minimize(tape, loss);
    accuracy.update_state(batch.labels(), predictions);
    return loss;
  };
  Trained trained;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    double sum = 0;
    for (const PerReplica<Batch>& batch : batches) {
      sum += strategy.reduce(ReduceOp::kSum, strategy.run(step, batch)).item_double();
    }
    trained.losses.push_back(sum);
    trained.accuracies.push_back(accuracy.result().item_double());
    accuracy.reset_state();
  }
  for (const Variable& weight : model.variables()) {
    for (const double value : weight.value().to_doubles()) trained.weights.push_back(value);
  }
  return trained;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-3);
}

void expect_same(const Trained& actual, const Trained& expected) {
  expect_near(actual.weights, expected.weights);
  expect_near(actual.losses, expected.losses);
  expect_near(actual.accuracies, expected.accuracies);
}

std::vector<Program> programs() {
  std::vector<Program> all;
  for (const auto& [name, normalization] :
       {std::pair{"no normalization", Normalization::kNone},
        {"normalization of the global batch", Normalization::kOfTheGlobalBatch},
        {"normalization in inference", Normalization::kInInference}}) {
    all.push_back({concat(name, ", momentum"), normalization,
                   SgdOptions{.learning_rate = 0.1, .momentum = 0.9}});
    all.push_back({concat(name, ", Adam"), normalization, AdamOptions{.learning_rate = 0.02}});
    all.push_back({concat(name, ", Adagrad"), normalization, AdagradOptions{.learning_rate = 0.1}});
    all.push_back(
        {concat(name, ", RMSprop"), normalization, RmspropOptions{.learning_rate = 0.01}});
  }
  return all;
}

TEST(LoopsOnEveryStrategy, WeightsLossAndAccuracyMatchThoseWithoutStrategy) {
  for (const Program& program : programs()) {
    const Trained expected = train(default_strategy(), program);
    // Far from where it began, and from where it would end.
    EXPECT_LT(expected.losses.back(), 0.9 * expected.losses.front()) << program.name;
    for (const strategy_tests::StrategyCase& each : strategy_tests::all_strategies()) {
      SCOPED_TRACE(concat(program.name, ", ", each.name));
      expect_same(train(*each.make(), program), expected);
    }
    SCOPED_TRACE(concat(program.name, ", two workers"));
    strategy_tests::expect_no_error(strategy_tests::run_workers(
        strategy_tests::workers_with({2, 1}), [&](MultiWorkerMirroredStrategy& strategy) {
          expect_same(train(strategy, program), expected);
        }));
  }
}

}  // namespace
}  // namespace tutti::loop_tests

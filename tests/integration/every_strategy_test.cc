// Tests training under every strategy: each layer, custom loops, fit() and Estimator.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tests/layers/every_layer.h"
#include "tests/strategy/worker_threads.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/estimator.h"
#include "tutti/tutti.h"

namespace tutti::every_strategy_test {

using Kinds = std::map<std::string, std::function<Sequential()>>;

Tensor noise(const Shape& shape, std::uint64_t seed) {
  return random_uniform(shape, RandomKey{seed, kInitializerPurpose, 0, 0, 0}, -1.0, 1.0);
}

MirroredStrategy two_mirrored() { return MirroredStrategy({.devices = "cpu:0-1"}); }

/// Trains for `steps` steps on all of `x` and `y` with a mean squared error; returns the trainable
/// weights, followed by the non-trainable ones.
std::vector<Tensor> trained(Strategy& strategy, const std::function<Sequential()>& make,
                            const Tensor& x, const Tensor& y, int steps) {
  set_random_seed(5);
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices({x, y}).batch(x.shape()[0]).repeat(steps));
  auto scope = strategy.scope();
  Sequential model = make();
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1});
  auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor each =
        losses::mean_squared_error(batch.labels(), model(batch.features(), {.training = true}));
    optimizer.minimize(tape, compute_average_loss(each, batch.global_rows()));
  };
  for (const PerReplica<Batch>& batch : batches) strategy.run(step, batch);
  EXPECT_EQ(optimizer.iterations().value().item_int(), steps);
  std::vector<Tensor> weights;
  for (const Variable& weight : model.trainable_variables()) weights.push_back(weight.value());
  for (const Variable& weight : model.variables()) {
    if (!weight.trainable()) weights.push_back(weight.value());
  }
  return weights;
}

void expect_near(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    testing::expect_near(actual[i].to_doubles(), expected[i].to_doubles(), tolerance);
  }
}

constexpr std::int64_t kRows = 10;
constexpr int kSteps = 5;
const Shape kImage{6, 6, 2};

/// Returns a function that makes a model with layer `number` of every_layer() between dense layers.
std::function<Sequential()> around_layer(std::size_t number) {
  return [number] {
    const testing::DescribedLayer described = testing::every_layer()[number];
    const SymbolicTensor image = Input{kImage};
    const SymbolicTensor flat = Flatten()(image);
    std::vector<SymbolicTensor> inputs;
    for (const Shape& shape : described.inputs) {
      const SymbolicTensor values = Dense(shape.num_elements(), "tanh")(flat);
      inputs.push_back(Reshape({shape.begin(), shape.end()})(values));
    }
    const SymbolicTensor y = internal::draw_call(described.layer, inputs)[0];
    const SymbolicTensor bounded = Activation("tanh")(Flatten()(y));
    return Sequential(Input{kImage}, Functional({image}, {Dense(2)(bounded)}));
  };
}

/// If `by_replica`, returns the layers that draw random numbers per replica or combine rows of a
/// batch; otherwise the layers that compute each row separately. Skips embeddings, whose inputs are
/// integers.
Kinds kinds(bool by_replica) {
  const std::regex draws(R"(^\["(BatchN|.*Dropout|GaussianN|Random).*|.*dropout":0\.[1-9].*)");
  const std::regex without_rate(R"(^\["[^"]*(Dropout|Noise)[^"]*",0\.0.*)");
  Kinds found;
  const std::vector<testing::DescribedLayer> all = testing::every_layer();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string call = all[i].layer->describe().call.dump();
    const bool is_random = std::regex_match(call, draws) && !std::regex_match(call, without_rate);
    if (is_random != by_replica || all[i].layer->type_name() == "Embedding") continue;
    found.emplace(concat(i, ": ", call), around_layer(i));
  }
  return found;
}

/// Trains one model on one device without a strategy: computes each half of the batch as the
/// corresponding replica does, and adds the gradients. Returns the trainable weights.
std::vector<Tensor> trained_by_halves(const std::function<Sequential()>& make, const Tensor& x,
                                      const Tensor& y) {
  set_random_seed(5);
  const Sequential model = make();
  const std::vector<Variable> weights = model.trainable_variables();
  Sgd optimizer(weights, {.learning_rate = 0.1});
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    std::vector<Gradient> sums;
    for (std::uint32_t replica = 0; replica < 2; ++replica) {
      const RandomContextScope random({random_seed(), step, replica});
      const auto half = [&](const Tensor& all) {
        return all.detached_rows(replica * kRows / 2, kRows / 2);
      };
      GradientTape tape;
      const Tensor each = losses::mean_squared_error(half(y), model(half(x), {.training = true}));
      const std::vector<Gradient> own = tape.gradient(compute_average_loss(each, kRows), weights);
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (replica == 0) {
          sums.push_back(own[i]);
        } else {
          sums[i] = sums[i].dense() + own[i].dense();
        }
      }
    }
    optimizer.apply_gradients(sums);
  }
  std::vector<Tensor> values;
  for (const Variable& weight : weights) values.push_back(weight.value());
  return values;
}

TEST(ReplicatedLayers, RowwiseLayersMatchUndividedBatch) {
  const Tensor x = noise({kRows, 6, 6, 2}, 3), y = noise({kRows, 2}, 4);
  Kinds all = kinds(false);
  EXPECT_GT(all.size(), 60u);
  for (auto layer : {+[] {
                       return Sequential(Input{kImage},
                                         Lambda([](const Tensor& x) { return x * x; }), Flatten(),
                                         Dense(2));
                     },
                     +[] {
                       return Sequential(Input{kImage}, BatchNormalization({.synchronized = true}),
                                         Flatten(), Dense(2));
                     }}) {
    all.emplace(concat("more ", all.size()), layer);
  }
  for (const auto& [name, make] : all) {
    SCOPED_TRACE(name);
    OneDeviceStrategy one("cpu:0");
    MirroredStrategy two = two_mirrored();
    expect_near(trained(two, make, x, y, kSteps), trained(one, make, x, y, kSteps), 2e-5);
  }
}

TEST(ReplicatedLayers, EmbeddingsMatchUndividedBatch) {
  std::vector<std::int64_t> words;
  // Most words occur several times.
  for (std::int64_t i = 0; i < kRows * 4; ++i) words.push_back(i * i % 7);
  const Tensor x = Tensor::from<std::int64_t>({kRows, 4}, words), y = noise({kRows, 2}, 4);
  const auto make = [] { return Sequential(Input{{4}}, Embedding(7, 3), Flatten(), Dense(2)); };
  OneDeviceStrategy one("cpu:0");
  MirroredStrategy two = two_mirrored();
  expect_near(trained(two, make, x, y, kSteps), trained(one, make, x, y, kSteps), 2e-5);
}

TEST(ReplicatedLayers, RowCombiningLayersUseOnlyTheirReplicasRows) {
  const Tensor x = noise({kRows, 6, 6, 2}, 3), y = noise({kRows, 2}, 4);
  const Kinds all = kinds(true);
  EXPECT_GE(all.size(), 12u);
  for (const auto& [name, make] : all) {
    SCOPED_TRACE(name);
    MirroredStrategy two = two_mirrored();
    const std::vector<Tensor> expected = trained_by_halves(make, x, y);
    std::vector<Tensor> got = trained(two, make, x, y, kSteps);
    // NormalizationUpdates.EveryTowerUpdatesAveragesOnlyInTraining covers moving averages.
    got.resize(expected.size());
    expect_near(got, expected, 2e-5);
    OneDeviceStrategy one("cpu:0");
    const std::vector<Tensor> whole = trained(one, make, x, y, kSteps);
    EXPECT_NE(whole[0].to_doubles(), expected[0].to_doubles());  // dividing the batch matters
  }
}

/// Returns 25 batches, which are the same in each epoch.
Dataset repeated_rows() {
  return Dataset::from_tensor_slices({noise({250, 5}, 7), noise({250, 1}, 8)}).batch(10);
}
Sequential dropping_model() {
  set_random_seed(3);
  return Sequential(Input{{5}}, Dense(16, {.activation = "tanh"}), Dropout(0.2), Dense(1));
}

EstimatorSpec dropping_model_fn(const Tensor& features, const Tensor& labels, EstimatorMode mode) {
  Sequential model(Input{{5}}, Dense(16, {.activation = "tanh"}), Dropout(0.2), Dense(1));
  const Tensor y = model(features, {.training = mode == EstimatorMode::kTrain});
  return {.loss = losses::mean_squared_error(labels, y),
          .optimizer = AdamOptions{.learning_rate = 0.01}};
}

using Weights = std::vector<std::vector<double>>;

Weights weights_of(const std::vector<Variable>& variables) {
  Weights weights;
  for (const Variable& weight : variables) weights.push_back(weight.value().to_doubles());
  return weights;
}

Weights fitted(Strategy& strategy) {
  const auto scope = strategy.scope();
  Sequential model = dropping_model();
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.01}, .loss = "mse"});
  model.fit(repeated_rows(), {.epochs = 4, .verbose = Verbosity::kSilent});
  return weights_of(model.variables());
}

Weights trained_by_hand(Strategy& strategy) {
  DistributedDataset batches = strategy.distribute_dataset(repeated_rows().repeat(4));
  const auto scope = strategy.scope();
  Sequential model = dropping_model();
  Adam optimizer(model.trainable_variables(), {.learning_rate = 0.01});
  const auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor each =
        losses::mean_squared_error(batch.labels(), model(batch.features(), {.training = true}));
    optimizer.minimize(tape, compute_average_loss(each, batch.global_rows()));
  };
  const Weights before = weights_of(model.variables());
  for (const PerReplica<Batch>& batch : batches) strategy.run(step, batch);
  EXPECT_EQ(optimizer.iterations().value().item_int(), 100);
  EXPECT_NE(weights_of(model.variables()), before);
  return weights_of(model.variables());
}

Weights estimated(const std::shared_ptr<Strategy>& strategy) {
  const int replicas = strategy->num_replicas_in_sync();
  set_random_seed(3);
  const std::string folder = ::testing::TempDir() + "/agreeing";
  std::filesystem::remove_all(folder);
  Estimator estimator(dropping_model_fn, {.model_dir = folder, .train_distribute = strategy});
  estimator.train([&] { return repeated_rows().unbatch().batch(10 / replicas).repeat(4); });
  EXPECT_EQ(estimator.global_step(), 100);
  return weights_of(estimator.variables());
}

TEST(TrainingSemantics, FitEstimatorAndCustomLoopAgreeUnderEveryStrategy) {
  for (const char* const name : {"one_device", "mirrored", "central_storage", "fully_sharded",
                                 "parameter_server", "multi_worker_mirrored", "mesh"}) {
    SCOPED_TRACE(name);
    const auto make = [&]() -> std::shared_ptr<Strategy> {
      const bool is_one = std::string_view(name) == "one_device";
      return make_strategy(name, {.devices = is_one ? "cpu:0" : "cpu:0-1", .min_shard_bytes = 0});
    };
    const Weights expected = fitted(*make());
    ASSERT_EQ(expected.size(), 4u);
    EXPECT_EQ(trained_by_hand(*make()), expected);
    EXPECT_EQ(estimated(make()), expected);
  }
}

constexpr std::int64_t kEpochs = 3;
constexpr std::int64_t kPoints = 30;
constexpr std::int64_t kGlobalBatch = 12;  // the last batch has 6 rows

/// Results of one run of the custom loop.
struct Trained {
  std::vector<double> weights;
  std::vector<double> losses;      // one per epoch
  std::vector<double> accuracies;  // one per epoch
};

enum class Normalization { kNone, kOfTheGlobalBatch, kInInference };

struct Program {
  std::string name;
  Normalization normalization;
  OptimizerSpec optimizer;
};

/// Returns points in the plane. A point's class, 0 to 2, is the sector (a third of the circle) that
/// contains it.
Dataset points() {
  const Tensor x = noise({kPoints, 2}, 1);
  const std::vector<double> values = x.to_doubles();
  std::vector<std::int64_t> classes;
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const double turn = std::atan2(values[i], values[i + 1]) / 6.2832 + 0.5;
    classes.push_back(static_cast<std::int64_t>(turn * 3.0) % 3);
  }
  return Dataset::from_tensor_slices({x, Tensor::from<std::int64_t>({kPoints}, classes)})
      .batch(kGlobalBatch);
}

/// Returns a model whose initial values do not depend on earlier objects, because workers are
/// threads here. Uses tanh because, with relu, a bias before normalization may have a gradient that
/// is 0 up to rounding errors, which Adam would turn into steps.
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

void expect_same(const Trained& actual, const Trained& expected) {
  testing::expect_near(actual.weights, expected.weights, 1e-3);
  testing::expect_near(actual.losses, expected.losses, 1e-3);
  testing::expect_near(actual.accuracies, expected.accuracies, 1e-3);
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

TEST(CustomLoopOnEveryStrategy, WeightsLossAndAccuracyMatchDefaultStrategy) {
  for (const Program& program : programs()) {
    const Trained expected = train(default_strategy(), program);
    // The loss has decreased considerably.
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

}  // namespace tutti::every_strategy_test

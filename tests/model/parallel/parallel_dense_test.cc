// Tests Dense layers split over devices: values, transfers, memory; and hybrids with data-parallel
// convolutions.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/parallel_dense.h"

#include <set>

#include "model/parallel/parts.h"
#include "tests/model/parallel/parallel_helpers.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/model/parallel/hybrid_dense.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::testing::parallel_dense_test {

Training train_model(const Sequential& model, int steps) {
  return train_plainly(model, sample_rows(), sample_classes(), 1, steps);
}

Sequential one_device() {
  set_random_seed(2);
  return Sequential(Input{{10}}, Dense(24, {.activation = "tanh"}), Dense(7), Dense(3));
}

/// Limits the memory of devices for its lifetime.
struct MemoryLimits {
  MemoryLimits(int first_device, int num_devices, std::size_t bytes)
      : first(first_device), count(num_devices) {
    for (int i = 0; i < count; ++i) {
      set_memory_limit(on_cpu(first + i), bytes);
      trim_allocator_cache(on_cpu(first + i));
      reset_peak_memory(on_cpu(first + i));
    }
  }
  ~MemoryLimits() {
    for (int i = 0; i < count; ++i) clear_memory_limit(on_cpu(first + i));
  }
  std::size_t peak(int i) const { return device_memory(on_cpu(first + i)).peak; }
  int first, count;
};

constexpr int kFirst = 50;  // devices that no other test uses
constexpr int kLimitedSteps = 5;

Tensor wide_examples() { return noise({16, 256}, 8); }
Tensor wide_classes() { return sample_classes(16); }

Sequential wide_model() {
  set_random_seed(4);
  return Sequential(Input{{256}}, Dense(1024, {.activation = "relu"}), Dense(256), Dense(3));
}

/// Runs a step on two replicas: data parallelism needs the whole model on each device.
float train_replicated(int num_devices) {
  std::vector<Device> devices;
  for (int i = 0; i < num_devices; ++i) devices.push_back(on_cpu(kFirst + i));
  MirroredStrategy strategy({.devices = devices});
  DistributedDataset batches =
      strategy.distribute_dataset(Dataset::from_tensor_slices({wide_examples(), wide_classes()})
                                      .batch(16)
                                      .repeat(kLimitedSteps));
  const auto scope = strategy.scope();
  const Sequential model = wide_model();
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1, .momentum = 0.9});
  float last = 0.0f;
  for (const PerReplica<Batch>& batch : batches) {
    last =
        strategy
            .reduce(ReduceOp::kSum, strategy.run(
                                        [&](const Batch& part) {
                                          GradientTape tape;
                                          const Tensor loss = compute_average_loss(
                                              cross_entropy(part.labels(), model(part.features())),
                                              part.global_rows());
                                          optimizer.minimize(tape, loss);
                                          return loss;
                                        },
                                        batch))
            .item();
  }
  return last;
}

TEST(ParallelShards, EarlierShardsAreLonger) {
  const auto text = [](std::int64_t length, std::size_t parts) {
    std::string result;
    for (const internal::Part& part : internal::parts_of("x", length, parts)) {
      result += concat(part.first, "+", part.count, " ");
    }
    return result;
  };
  EXPECT_EQ(text(10, 3), "0+4 4+3 7+3 ");
  EXPECT_EQ(text(4, 1), "0+4 ");
  EXPECT_INVALID(internal::parts_of("x", 2, 3), "x: expected 1 to 2 devices", "got 3");
}

TEST(ParallelShards, SumsFollowTheCanonicalTree) {
  std::vector<Tensor> values;
  for (int i = 0; i < 5; ++i) values.push_back(noise({64}, 20u + static_cast<unsigned>(i)));
  const Tensor expected = ((values[0] + values[1]) + (values[2] + values[3])) + values[4];
  std::vector<Tensor> spread;
  for (int i = 0; i < 5; ++i) spread.push_back(values[static_cast<std::size_t>(i)].to(on_cpu(i)));
  const Tensor sum = internal::canonical_sum(spread, on_cpu(2));
  EXPECT_EQ(sum.device(), on_cpu(2));
  expect_same_bits(sum, expected);
}

// Shards equal slices of the whole initial value, whatever the initializer.
TEST(ParallelDense, InitialValuesMatchTheWholeLayer) {
  for (const char* initializer : {"glorot_uniform", "orthogonal", "ones"}) {
    set_random_seed(11);
    Dense whole(7, {.kernel_initializer = initializer});
    whole.build_for({100});
    set_random_seed(11);
    ColumnParallelDense columns(7, {.devices = "cpu:0-2", .kernel_initializer = initializer});
    columns.build_for({100});
    set_random_seed(11);
    RowParallelDense rows(7, {.devices = "cpu:0-2", .kernel_initializer = initializer});
    rows.build_for({100});
    const Tensor kernel = whole.variables()[0];
    const auto parts = [](const Layer& layer) {
      std::vector<Tensor> values;
      for (std::size_t i = 0; i < 3; ++i) {
        values.push_back(layer.variables()[i].value().to(on_cpu(0)));
      }
      return values;
    };
    expect_same_bits(concat(parts(columns), 1), kernel);
    expect_same_bits(concat(parts(rows), 0), kernel);
  }
  set_random_seed(11);
  ColumnParallelDense next(4, {.devices = "cpu:0-1"});
  next.build_for({5});
  EXPECT_EQ(next_variable_number(), 2u);  // kernel and bias, whatever the number of shards
}

TEST(ParallelDense, WeightsHaveNamesAndDevices) {
  ParallelDensePair pair(5, 3, {.devices = "cpu:1-2", .name = "mlp"});
  pair.build_for({4});
  std::vector<std::string> weights;
  for (const Variable& variable : pair.variables()) {
    weights.push_back(
        concat(variable.name(), " ", variable.shape(), " ", variable.storage().devices().at(0)));
  }
  EXPECT_THAT(
      weights,
      ElementsAre("mlp/hidden_kernel/part_0 [4, 3] cpu:1", "mlp/hidden_kernel/part_1 [4, 2] cpu:2",
                  "mlp/hidden_bias/part_0 [3] cpu:1", "mlp/hidden_bias/part_1 [2] cpu:2",
                  "mlp/kernel/part_0 [3, 3] cpu:1", "mlp/kernel/part_1 [2, 3] cpu:2",
                  "mlp/bias [3] cpu:1"));
}

TEST(ParallelDense, TrainingMatchesOneDevice) {
  constexpr int kTrainingSteps = 50;
  const Training one = train_model(one_device(), kTrainingSteps);
  for (const char* devices : {"cpu:0", "cpu:0-1", "cpu:0-2"}) {
    SCOPED_TRACE(devices);
    set_random_seed(2);
    const Sequential apart(Input{{10}},
                           ColumnParallelDense(24, {.devices = devices, .activation = "tanh"}),
                           RowParallelDense(7, {.devices = devices}), Dense(3));
    expect_close_training(train_model(apart, kTrainingSteps), one, 1e-5);
    set_random_seed(2);
    const Sequential pair(Input{{10}},
                          ParallelDensePair(24, 7, {.devices = devices, .activation = "tanh"}),
                          Dense(3));
    expect_close_training(train_model(pair, kTrainingSteps), one, 1e-5);
  }
  EXPECT_LT(one.losses.back(), 0.7 * one.losses.front());
}

TEST(ParallelDense, PairTransfersOneInputAndOneResult) {
  ParallelDensePair pair(6, 3, {.devices = "cpu:0-1", .activation = "relu"});
  pair.build_for({4});
  const Tensor x = noise({5, 4}, 1);
  const std::vector<Variable> variables = pair.variables();
  TransferLog log;
  GradientTape tape;
  tape.watch(x);
  const Tensor y = pair(x);
  tape.gradient_with(y, Tensor::ones(y.shape()), variables, std::span(&x, 1));
  std::vector<std::string> moved;
  for (const Transfer& transfer : log.transfers()) moved.push_back(transfer.to_string());
  EXPECT_THAT(moved, ElementsAre("cpu:0 -> cpu:1: float32 [5, 4], 80 bytes",
                                 "cpu:1 -> cpu:0: float32 [5, 3], 60 bytes",
                                 "cpu:0 -> cpu:1: float32 [5, 3], 60 bytes",
                                 "cpu:1 -> cpu:0: float32 [5, 4], 80 bytes"));
}

TEST(ParallelDense, SupportsHigherRankAndEmptyBatches) {
  set_random_seed(6);
  Dense whole(5, {.activation = "gelu"});
  whole.build_for({2, 4});
  set_random_seed(6);
  ColumnParallelDense columns(5, {.devices = "cpu:0-1", .activation = "gelu"});
  columns.build_for({2, 4});
  set_random_seed(6);
  RowParallelDense rows(5, {.devices = "cpu:0-1", .activation = "gelu", .use_bias = false});
  rows.build_for({2, 4});
  const Tensor x = noise({3, 2, 4}, 1);
  for (const Tensor& y : {columns(x), rows(x)}) {
    expect_tensor(y, {3, 2, 5}, whole(x).to_doubles(), 1e-6);
  }
  EXPECT_EQ(columns(Tensor::zeros({0, 2, 4})).shape(), (Shape{0, 2, 5}));
  EXPECT_EQ(rows(Tensor::zeros({0, 2, 4})).shape(), (Shape{0, 2, 5}));
}

TEST(ParallelDense, RefusesUnevenSplits) {
  EXPECT_INVALID(ColumnParallelDense(2, {.devices = "cpu:0-2"}), "ColumnParallelDense",
                 "1 to 2 devices", "got 3");
  EXPECT_INVALID(ColumnParallelDense(4, {.devices = "cpu:0-1", .activation = "softmax"}), "softmax",
                 "Softmax()");
  EXPECT_INVALID(RowParallelDense(4, {}), "RowParallelDense", "one device");
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const auto scope = strategy.scope();
  EXPECT_ERROR(Sequential(Input{{4}}, ColumnParallelDense(4, {.devices = "cpu:0-1"})),
               kFailedPrecondition, "'mirrored'", "outside of strategy.scope()");
}

// The limit lies between the memory for a shard of the model and for the whole.
TEST(ParallelDense, ModelTooLargeForOneDeviceTrainsModelParallel) {
  const Training expected =
      train_plainly(wide_model(), wide_examples(), wide_classes(), 4, kLimitedSteps);
  const std::size_t needed = [] {
    const MemoryLimits memory(kFirst, 2, kUnlimitedMemory);
    train_replicated(2);
    return std::min(memory.peak(0), memory.peak(1));
  }();
  const std::size_t limit = needed * 7 / 10;
  const MemoryLimits memory(kFirst, 2, limit);
  EXPECT_ERROR(train_replicated(2), kResourceExhausted, "cpu:5", "no memory for ", " in use",
               concat("limit ", limit), "parts of the model on several devices");

  const std::vector<Device> devices{on_cpu(kFirst), on_cpu(kFirst + 1)};
  {
    set_random_seed(4);
    const StagedSequential stages({.devices = devices, .cuts = {1}}, Input{{256}},
                                  Dense(1024, {.activation = "relu"}), Dense(256), Dense(3));
    expect_same_training(train_in_a_pipeline(stages, wide_examples(), wide_classes(),
                                             {.micro_batches = 4}, kLimitedSteps),
                         expected);
  }
  set_random_seed(4);
  const Sequential tensors(Input{{256}},
                           ParallelDensePair(1024, 256, {.devices = devices, .activation = "relu"}),
                           Dense(3));
  expect_close_training(train_plainly(tensors, wide_examples(), wide_classes(), 1, kLimitedSteps),
                        expected, 1e-4);
  EXPECT_LE(memory.peak(0), limit);
  EXPECT_LE(memory.peak(1), limit);
}

namespace hybrid_test {

constexpr std::int64_t kRows = 16;  // per replica and step
constexpr std::int64_t kFeatures = 2 * 4 * 4, kHidden = 256, kClasses = 4;
constexpr double kRate = 0.5;
constexpr HybridScheme kSchemes[] = {HybridScheme::kAllAtOnce, HybridScheme::kOneByOne,
                                     HybridScheme::kSharesOfAll};

Tensor pictures(std::int64_t rows) { return noise({rows, 6, 6, 1}, 31); }
Tensor classes(std::int64_t rows) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < rows; ++i) values.push_back((i * i + i / 3) % kClasses);
  return Tensor::from<std::int64_t>({rows}, values);
}

Sequential convolutions() {
  return Sequential(Input{{6, 6, 1}}, Conv2D(2, 3, {.activation = "tanh"}), Flatten());
}
std::string devices_named(int count) { return concat("cpu:0-", count - 1); }

/// Model with convolutions replicated over several devices, and dense layers split into as many
/// shards.
class Hybrid {
 public:
  explicit Hybrid(int num_replicas, HybridDenseOptions options = {})
      : strategy_(devices_named(num_replicas)) {
    set_random_seed(9);
    {
      const auto scope = strategy_.scope();
      below_ = std::make_unique<Sequential>(convolutions());
    }
    ParallelDensePair layers(kHidden, kClasses,
                             {.devices = devices_named(num_replicas), .activation = "relu"});
    layers.build_for({kFeatures});
    dense_ = std::make_unique<HybridDense>(layers, "sparse_categorical_crossentropy", options);
    // Made after the weights, because random keys of weights count variables.
    const auto scope = strategy_.scope();
    optimizer_ = std::make_unique<Sgd>(below_->trainable_variables(), kRate);
  }

  /// Runs one step with `rows` examples; returns the loss.
  float step(std::int64_t rows) {
    const auto batch =
        *strategy_
             .distribute_dataset(
                 Dataset::from_tensor_slices(pictures(rows), classes(rows)).batch(rows))
             .begin();
    const auto losses = strategy_.run(
        [&](const Batch& part) {
          GradientTape tape;
          const Tensor features = (*below_)(part.features(), {.training = true});
          const Tensor loss = dense_->train(features, part.labels());
          optimizer_->minimize(tape, loss);
          return loss;
        },
        batch);
    return strategy_.reduce(ReduceOp::kSum, losses).item();
  }

  const HybridDense& dense() const { return *dense_; }
  const Sequential& below() const { return *below_; }
  /// Returns the weights of convolution, hidden layer and last layer as on one device.
  std::vector<Tensor> weights() const {
    std::vector<Tensor> result = values_of(below_->variables());
    const std::vector<Tensor> parts = values_of(dense_->layers().variables());
    const std::size_t count = dense_->layers().devices().size();
    const auto joined = [&](std::size_t first, int axis) {
      std::vector<Tensor> pieces;
      for (std::size_t i = first; i < first + count; ++i) pieces.push_back(parts[i].to(on_cpu(0)));
      return concat(pieces, axis);
    };
    for (const Tensor& each : {joined(0, 1), joined(count, 0), joined(2 * count, 0)}) {
      result.push_back(each);
    }
    result.push_back(parts[3 * count]);
    return result;
  }

 private:
  MirroredStrategy strategy_;
  std::unique_ptr<Sequential> below_;
  std::unique_ptr<Sgd> optimizer_;
  std::unique_ptr<HybridDense> dense_;
};

/// Returns the rows of the batch that belong to each round, computed in a slow and obvious way.
using Rounds = std::vector<std::vector<std::int64_t>>;

Rounds rounds_by_hand(HybridScheme scheme, std::int64_t num_replicas) {
  Rounds rounds(scheme == HybridScheme::kAllAtOnce ? 1 : static_cast<std::size_t>(num_replicas));
  for (std::int64_t row = 0; row < num_replicas * kRows; ++row) {
    std::int64_t round = 0;
    if (scheme == HybridScheme::kOneByOne) round = row / kRows;
    if (scheme == HybridScheme::kSharesOfAll) round = row % kRows / (kRows / num_replicas);
    rounds[static_cast<std::size_t>(round)].push_back(row);
  }
  return rounds;
}

/// Network of the same layers on one device.
class OneDevice {
 public:
  OneDevice() {
    set_random_seed(9);
    below_ = std::make_unique<Sequential>(convolutions());
    head_ = std::make_unique<Sequential>(Input{{kFeatures}}, Dense(kHidden, {.activation = "relu"}),
                                         Dense(kClasses));
  }

  /// After each of `updates`, updates the dense layers with the mean over its rows; at the end
  /// updates the convolutions with the mean over all rows. Returns the mean loss.
  float step(std::int64_t rows, const Rounds& updates) {
    std::vector<Tensor> sums;
    float loss_sum = 0.0f;
    for (const std::vector<std::int64_t>& update : updates) {
      const auto count = static_cast<std::int64_t>(update.size());
      const Tensor chosen = Tensor::from<std::int64_t>({count}, update);
      std::vector<Variable> variables = below_->trainable_variables();
      for (const Variable& each : head_->trainable_variables()) variables.push_back(each);
      GradientTape tape;
      const Tensor logits = (*head_)((*below_)(gather(pictures(rows), chosen)));
      const Tensor loss = reduce_sum(
          losses::sparse_categorical_crossentropy(gather(classes(rows), chosen), logits));
      const std::vector<Gradient> gradients = tape.gradient(loss, variables);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const Tensor gradient = gradients[i].dense();
        if (i >= 2) {
          variables[i].assign_sub(gradient * (kRate / static_cast<double>(count)));
        } else if (sums.size() < 2) {
          sums.push_back(gradient);
        } else {
          sums[i] = sums[i] + gradient;
        }
      }
      loss_sum += loss.item();
    }
    for (std::size_t i = 0; i < 2; ++i) {
      below_->variables()[i].assign_sub(sums[i] * (kRate / static_cast<double>(rows)));
    }
    return loss_sum / static_cast<float>(rows);
  }

  std::vector<Tensor> weights() const {
    std::vector<Tensor> result = values_of(below_->variables());
    for (const Tensor& each : values_of(head_->variables())) result.push_back(each);
    return result;
  }

 private:
  std::unique_ptr<Sequential> below_, head_;
};

Rounds whole_batch(std::int64_t rows) {
  Rounds rounds(1);
  for (std::int64_t row = 0; row < rows; ++row) rounds[0].push_back(row);
  return rounds;
}

void expect_same_weights(const Hybrid& hybrid, const OneDevice& one) {
  const std::vector<Tensor> actual = hybrid.weights(), expected = one.weights();
  ASSERT_EQ(actual.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    expect_tensor(actual[i], expected[i].shape(), expected[i].to_doubles(), 2e-6);
  }
}

/// The paper's exchanges with K replicas of n examples. In the forward pass, each example's
/// features go to the K - 1 other devices, and a result returns from each. The backward pass does
/// so with gradients.
std::size_t bytes_of_all_schemes(std::int64_t num_replicas) {
  const std::int64_t rows = num_replicas * kRows;
  return static_cast<std::size_t>(2 * 4 * (num_replicas - 1) * rows * (kFeatures + kClasses));
}

/// Bytes of the busiest device in each exchange. In (a) and (c), all devices send and receive
/// equally much; in (b), all data leave or reach one device.
std::size_t busiest_bytes_of(HybridScheme scheme, std::int64_t num_replicas) {
  const std::size_t all = bytes_of_all_schemes(num_replicas);
  return scheme == HybridScheme::kOneByOne ? all : all / static_cast<std::size_t>(num_replicas);
}

/// Bytes that data parallelism moves for the dense layers: gradients to one device, and sums back.
std::size_t bytes_of_data_parallelism(std::int64_t num_replicas) {
  const std::int64_t weights = (kFeatures + 1) * kHidden + (kHidden + 1) * kClasses;
  return static_cast<std::size_t>(2 * 4 * (num_replicas - 1) * weights);
}

}  // namespace hybrid_test

using namespace hybrid_test;

TEST(HybridParallelism, TransferredBytesMatchTheFormula) {
  for (const int replicas : {1, 2, 4, 8}) {
    for (const HybridScheme scheme : kSchemes) {
      SCOPED_TRACE(concat(to_string(scheme), ", ", replicas, " replicas"));
      Hybrid hybrid(replicas, {.scheme = scheme});
      hybrid.step(replicas * kRows);
      const HybridStep step = hybrid.dense().last_step();
      EXPECT_EQ(step.exchanges.size(), 4u * static_cast<std::size_t>(step.num_rounds));
      EXPECT_EQ(step.bytes(), bytes_of_all_schemes(replicas));
      EXPECT_EQ(step.busiest_bytes(), busiest_bytes_of(scheme, replicas));
      EXPECT_LE(step.bytes(), bytes_of_data_parallelism(replicas) / 2);
    }
  }
}

// These are (128, 16) and (128, 32) in the paper's notation.
TEST(HybridParallelism, DenseLayersUseSeparateBatchSize) {
  constexpr int kReplicas = 8;
  for (const HybridScheme scheme : {HybridScheme::kOneByOne, HybridScheme::kSharesOfAll}) {
    for (const std::size_t turns_of_an_update : {1u, 2u}) {
      SCOPED_TRACE(concat(to_string(scheme), ", ", turns_of_an_update));
      Rounds updates;
      const Rounds rounds = rounds_by_hand(scheme, kReplicas);
      for (std::size_t t = 0; t < rounds.size(); ++t) {
        if (t % turns_of_an_update == 0) updates.emplace_back();
        updates.back().insert(updates.back().end(), rounds[t].begin(), rounds[t].end());
      }
      OneDevice one;
      Hybrid hybrid(kReplicas,
                    {.scheme = scheme,
                     .dense_batch = static_cast<std::int64_t>(turns_of_an_update) * kRows,
                     .optimizer = SgdOptions{.learning_rate = kRate}});
      for (int step = 0; step < 2; ++step) {
        const float loss = one.step(kReplicas * kRows, updates);
        EXPECT_NEAR(hybrid.step(kReplicas * kRows), loss, 2e-6);
      }
      expect_same_weights(hybrid, one);
      EXPECT_EQ(hybrid.dense().last_step().num_updates,
                kReplicas / static_cast<int>(turns_of_an_update));
      EXPECT_EQ(hybrid.dense().last_step().bytes(), bytes_of_all_schemes(kReplicas));
    }
  }
}

// 5 examples over 4 replicas are 2, 2, 1, 0; rounds without examples are skipped.
TEST(HybridParallelism, EverySchemeMatchesOneDeviceForAnyBatchSize) {
  for (const std::int64_t rows : {5L, 50L, 4 * kRows}) {
    OneDevice one;
    const float loss = one.step(rows, whole_batch(rows));
    for (const HybridScheme scheme : kSchemes) {
      SCOPED_TRACE(concat(to_string(scheme), ", ", rows, " examples"));
      Hybrid hybrid(4, {.scheme = scheme, .optimizer = SgdOptions{.learning_rate = kRate}});
      EXPECT_NEAR(hybrid.step(rows), loss, 1e-6);
      expect_same_weights(hybrid, one);
      EXPECT_EQ(hybrid.dense().last_step().num_updates, 1);
      if (rows < 4 * kRows) continue;
      EXPECT_EQ(hybrid.dense().last_step().num_rounds, scheme == HybridScheme::kAllAtOnce ? 1 : 4);
    }
  }
}

// If devices have separate memories, values are copied between them.
TEST(HybridParallelism, SeparateDeviceMemoriesGiveSameWeights) {
  const auto trained = [] {
    Hybrid hybrid(2);
    hybrid.step(2 * kRows);
    return hybrid.weights();
  };
  const std::vector<Tensor> shared = trained();
  for (int i = 0; i < 2; ++i) set_memory_limit(on_cpu(i), std::size_t{64} << 20);
  const std::vector<Tensor> apart = trained();
  for (int i = 0; i < 2; ++i) clear_memory_limit(on_cpu(i));
  for (std::size_t i = 0; i < shared.size(); ++i) expect_same_bits(apart[i], shared[i]);
}

TEST(HybridParallelism, CheckpointContainsStateOfEveryShard) {
  const HybridDenseOptions options{.optimizer = AdamOptions{.learning_rate = 0.01}};
  const auto all_of = [](const Hybrid& hybrid) {
    Checkpoint checkpoint(hybrid.below().variables());  // its optimizer has no slots
    checkpoint.add(hybrid.dense().layers().variables());
    checkpoint.add(hybrid.dense().state_variables());
    return checkpoint;
  };
  Hybrid straight(2, options);
  straight.step(2 * kRows);
  const std::string saved = all_of(straight).save_to_bytes();
  straight.step(2 * kRows);
  Hybrid resumed(2, options);
  all_of(resumed).restore_from_bytes(saved, "the first run");
  resumed.step(2 * kRows);
  for (std::size_t i = 0; i < 6; ++i) {
    expect_same_bits(resumed.weights()[i], straight.weights()[i]);
  }
  std::set<std::string> names;
  for (const Variable& each : resumed.dense().state_variables()) names.insert(each.name());
  EXPECT_TRUE(names.contains("part_0/adam/iteration"));
  EXPECT_TRUE(names.contains("part_1/adam/iteration"));
}

TEST(HybridParallelism, LearningRateAppliesToAllShards) {
  Hybrid hybrid(2, {.optimizer = SgdOptions{.learning_rate = 0.25}});
  EXPECT_EQ(hybrid.dense().learning_rate(), 0.25);
  HybridDense(hybrid.dense()).set_learning_rate(0.0);
  const std::vector<Tensor> before = hybrid.weights();
  hybrid.step(2 * kRows);
  const std::vector<Tensor> after = hybrid.weights();
  for (std::size_t i = 2; i < 6; ++i) expect_same_bits(after[i], before[i]);
}

TEST(HybridParallelism, RefusesUnsupportedOptions) {
  const auto layers_on = [](const char* devices) {
    return ParallelDensePair(8, 2, {.devices = devices, .input_shape = Shape{3}});
  };
  EXPECT_INVALID(HybridDense(ParallelDensePair(8, 2, {.devices = "cpu:0-1"}), "mse"), "HybridDense",
                 "input_shape");
  EXPECT_INVALID(HybridDense(layers_on("cpu:0-1"), "mse", {.dense_batch = -1}), "dense_batch >= 0",
                 "-1");
  EXPECT_INVALID(
      HybridDense(layers_on("cpu:0-1"), "mse", {.optimizer = with_dynamic_loss_scale("sgd")}),
      "loss scaling", "sgd");
  MirroredStrategy strategy("cpu:0-1");
  const auto train = [&](const char* devices, const Shape& features, HybridDenseOptions options) {
    const HybridDense dense(layers_on(devices), "mse", options);
    strategy.run([&] { dense.train(Tensor::zeros(features), Tensor::zeros({4, 2})); });
  };
  EXPECT_INVALID(train("cpu:0-2", {4, 3}, {}), "each of the 3 devices", "got 2 replicas");
  EXPECT_INVALID(train("cpu:2-3", {4, 3}, {}), "replica 0 is on cpu:0; expected cpu:2");
  EXPECT_INVALID(train("cpu:0-1", {4, 1, 3}, {}), "features [rows, 3] of float32", "[4, 1, 3]",
                 "Flatten");
  EXPECT_INVALID(train("cpu:0-1", {5, 3}, {}), "features [rows, 3]", "[5, 3]", "labels", "[4, 2]");
  EXPECT_INVALID(train("cpu:0-1", {4, 3}, {.scheme = HybridScheme::kAllAtOnce, .dense_batch = 4}),
                 "a round has 8 examples", "dense_batch of 4");
  train("cpu:0-1", {4, 3}, {.dense_batch = 4});
  const auto scope = strategy.scope();
  EXPECT_ERROR(HybridDense(ParallelDensePair(8, 2, {.devices = "cpu:0-1"}), "mse"),
               kFailedPrecondition, "HybridDense", "outside of strategy.scope()");
}

}  // namespace tutti::testing::parallel_dense_test

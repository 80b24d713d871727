// Dense layers cut over devices: the values of whole ones, what moves, memory, a limit that data
// parallelism breaks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/parallel_dense.h"

#include "model/parallel/parts.h"
#include "tests/model/parallel/parallel_helpers.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti {
namespace {
using namespace parallel_tests;
using ::testing::ElementsAre;
using testing::expect_same_bits;

namespace parallel_dense_test {
Training train_model(const Sequential& model, int steps) {
  return train_plainly(model, sample_rows(), sample_classes(), 1, steps);
}

Sequential one_device() {
  set_random_seed(2);
  return Sequential(Input{{10}}, Dense(24, {.activation = "tanh"}), Dense(7), Dense(3));
}

/// Devices with this much memory each while it lives.
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

constexpr int kFirst = 50;  // devices that no other test takes
constexpr int kLimitedSteps = 5;

Tensor wide_examples() { return noise({16, 256}, 8); }
Tensor wide_classes() { return sample_classes(16); }

Sequential wide_model() {
  set_random_seed(4);
  return Sequential(Input{{256}}, Dense(1024, {.activation = "relu"}), Dense(256), Dense(3));
}

/// A step on two replicas: what data parallelism needs on each device is the whole model.
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

}  // namespace parallel_dense_test

using namespace parallel_dense_test;

TEST(ParallelParts, EarlierPartsAreTheLonger) {
  const auto text = [](std::int64_t length, std::size_t parts) {
    std::string result;
    for (const internal::Part& part : internal::parts_of("x", length, parts)) {
      result += concat(part.first, "+", part.count, " ");
    }
    return result;
  };
  EXPECT_EQ(text(10, 3), "0+4 4+3 7+3 ");
  EXPECT_EQ(text(4, 1), "0+4 ");
  EXPECT_ERROR(internal::parts_of("x", 2, 3), kInvalidArgument, "x: expected 1 to 2 devices",
               "got 3");
}

TEST(ParallelParts, SumsFollowTheCanonicalTree) {
  std::vector<Tensor> values;
  for (int i = 0; i < 5; ++i) values.push_back(noise({64}, 20u + static_cast<unsigned>(i)));
  const Tensor expected = ((values[0] + values[1]) + (values[2] + values[3])) + values[4];
  std::vector<Tensor> spread;
  for (int i = 0; i < 5; ++i) spread.push_back(values[static_cast<std::size_t>(i)].to(on_cpu(i)));
  const Tensor sum = internal::canonical_sum(spread, on_cpu(2));
  EXPECT_EQ(sum.device(), on_cpu(2));
  expect_same_bits(sum, expected);
}

// Parts of weights are cut from what the whole would have been, whatever the initializer.
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
  EXPECT_EQ(next_variable_number(), 2u);  // kernel and bias, whatever the number of parts
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

TEST(ParallelDense, TrainsAsOneDevice) {
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

TEST(ParallelDense, PairTransfersTheInputAndOneResult) {
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

TEST(ParallelDense, LongerExamplesAndNoRowsWork) {
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
    testing::expect_tensor(y, {3, 2, 5}, whole(x).to_doubles(), 1e-6);
  }
  EXPECT_EQ(columns(Tensor::zeros({0, 2, 4})).shape(), (Shape{0, 2, 5}));
  EXPECT_EQ(rows(Tensor::zeros({0, 2, 4})).shape(), (Shape{0, 2, 5}));
}

TEST(ParallelDense, RefusesWhatCannotBeCut) {
  EXPECT_ERROR(ColumnParallelDense(2, {.devices = "cpu:0-2"}), kInvalidArgument,
               "ColumnParallelDense", "1 to 2 devices", "got 3");
  EXPECT_ERROR(ColumnParallelDense(4, {.devices = "cpu:0-1", .activation = "softmax"}),
               kInvalidArgument, "softmax", "Softmax()");
  EXPECT_ERROR(RowParallelDense(4, {}), kInvalidArgument, "RowParallelDense", "one device");
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const auto scope = strategy.scope();
  EXPECT_ERROR(Sequential(Input{{4}}, ColumnParallelDense(4, {.devices = "cpu:0-1"})),
               kFailedPrecondition, "'mirrored'", "outside of strategy.scope()");
}

// A limit between what a device needs with a part of the model and with all of it.
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

}  // namespace
}  // namespace tutti

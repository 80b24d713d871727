// Tests models that are split by layers: agreement with one device, concurrency, memory and errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/pipeline.h"

#include <atomic>

#include "tests/model/parallel/parallel_helpers.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::testing::pipeline_test {

/// Returns a network with dropout and batch normalisation, so that random numbers and statistics
/// matter.
Sequential whole_network() {
  set_random_seed(7);
  return Sequential(Input{{10}}, Dense(16, {.activation = "tanh"}), Dropout(0.25), Dense(12),
                    BatchNormalization(), Relu(), Dense(3));
}
StagedSequential split_network(StageOptions options) {
  set_random_seed(7);
  return StagedSequential(std::move(options), Input{{10}}, Dense(16, {.activation = "tanh"}),
                          Dropout(0.25), Dense(12), BatchNormalization(), Relu(), Dense(3));
}

/// Sets `mine`, then waits at most a minute for `other`.
void meet(Event& mine, Event& other) {
  mine.set();
  if (!other.wait_until(deadline_after(Clock::system().now(), std::chrono::seconds(60)))) {
    fail(ErrorCode::kDeadlineExceeded, "the other stage did not run concurrently within 60 s");
  }
}

/// Identity layer that, in call number `at_call`, waits until the other stage's layer is also
/// waiting.
class Meeting : public LayerOf<Meeting> {
 public:
  Meeting(int at_call, std::shared_ptr<Event> mine, std::shared_ptr<Event> other)
      : LayerOf(""), at_call_(at_call), mine_(std::move(mine)), other_(std::move(other)) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Tensor call(const Tensor& input, CallContext) const override {
    if ((*calls_)++ == at_call_) meet(*mine_, *other_);
    return input * 1.0f;
  }

 private:
  int at_call_;
  std::shared_ptr<Event> mine_, other_;
  std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

/// Identity layer that throws in call number `at_call`.
class Failing : public LayerOf<Failing> {
 public:
  explicit Failing(int at_call) : LayerOf(""), at_call_(at_call) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Tensor call(const Tensor& input, CallContext) const override {
    if ((*calls_)++ == at_call_) fail(ErrorCode::kOutOfRange, "made to fail");
    return input * 1.0f;
  }

 private:
  int at_call_;
  std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

/// Peak memory of each device during training, in bytes, and the final loss.
struct Peaks {
  std::vector<std::size_t> bytes;
  float loss = 0.0f;
};

constexpr int kFirstDevice = 40;  // no other test uses this device or the next one

template <class Train>
Peaks peaks_of(int num_devices, const Train& train) {
  for (int i = 0; i < num_devices; ++i) {
    set_memory_limit(on_cpu(kFirstDevice + i), kUnlimitedMemory);
    trim_allocator_cache(on_cpu(kFirstDevice + i));
    reset_peak_memory(on_cpu(kFirstDevice + i));
  }
  Peaks peaks;
  peaks.loss = train();
  for (int i = 0; i < num_devices; ++i) {
    peaks.bytes.push_back(device_memory(on_cpu(kFirstDevice + i)).peak);
    clear_memory_limit(on_cpu(kFirstDevice + i));
  }
  return peaks;
}

float train_wide(const std::vector<Device>& devices, PipelineOptions options) {
  set_random_seed(3);
  StagedSequential model({.devices = devices}, Input{{64}}, Dense(256, {.activation = "relu"}),
                         Dense(256, {.activation = "relu"}), Dense(256, {.activation = "relu"}),
                         Dense(4));
  const Tensor x = noise({64, 64}, 5).to(devices.front());
  const Tensor y = Tensor::zeros({64}, DType::kInt64);
  return train_in_a_pipeline(model, x, y, options, 4).losses.back();
}

TEST(PipelineSchedule, MatchesGPipeAndOneForwardOneBackwardOrder) {
  const auto text = [](PipelineOrder order, int stage, int stages, int micro_batches) {
    std::string result;
    for (const PipelineTask& task : pipeline_schedule(order, stage, stages, micro_batches)) {
      result += concat(task.is_forward ? "F" : "B", task.micro_batch);
    }
    return result;
  };
  constexpr auto kGpipe = PipelineOrder::kAllForwardFirst;
  constexpr auto kAlternate = PipelineOrder::kOneForwardOneBackward;
  EXPECT_EQ(text(kGpipe, 0, 2, 3), "F0F1F2B0B1B2");
  EXPECT_EQ(text(kGpipe, 1, 2, 3), "F0F1F2B0B1B2");
  EXPECT_EQ(text(kAlternate, 0, 3, 4), "F0F1F2B0F3B1B2B3");
  EXPECT_EQ(text(kAlternate, 1, 3, 4), "F0F1B0F2B1F3B2B3");
  EXPECT_EQ(text(kAlternate, 2, 3, 4), "F0B0F1B1F2B2F3B3");
  EXPECT_EQ(text(kAlternate, 0, 4, 2), "F0F1B0B1");
  EXPECT_INVALID(pipeline_schedule(kGpipe, 2, 2, 1), "a stage from 0 to 1", "got stage 2");
}

TEST(StagedSequential, LayersAndWeightsAreOnStageDevice) {
  const StagedSequential model = split_network({.devices = "cpu:0-2", .cuts = {1, 4}});
  std::vector<std::string> devices;
  for (const Variable& variable : model.variables()) {
    devices.push_back(concat(variable.name(), " ", variable.storage().devices().at(0)));
  }
  EXPECT_THAT(devices,
              ElementsAre("dense/kernel cpu:0", "dense/bias cpu:0", "dense_1/kernel cpu:1",
                          "dense_1/bias cpu:1", "batch_normalization/gamma cpu:1",
                          "batch_normalization/beta cpu:1", "batch_normalization/moving_mean cpu:1",
                          "batch_normalization/moving_variance cpu:1", "dense_2/kernel cpu:2",
                          "dense_2/bias cpu:2"));
  EXPECT_EQ(model.trainable_variables(1).size(), 4u);
  EXPECT_EQ(model.layers(1).size(), 3u);
  EXPECT_EQ(model(sample_rows()).device(), on_cpu(0));  // the output is on the input's device
  const Sequential whole = whole_network();
  expect_same_bits(model(sample_rows()), whole(sample_rows()));
  const StagedSequential even = split_network({.devices = "cpu:0-3"});
  EXPECT_EQ(even.layers(0).size(), 2u);
  EXPECT_EQ(even.layers(3).size(), 1u);
}

TEST(StagedSequential, RefusesInvalidSplits) {
  const auto make = [](StageOptions options) { split_network(std::move(options)); };
  EXPECT_INVALID(make({}), "at least one device");
  EXPECT_INVALID(make({.devices = "cpu:0-2", .cuts = {4, 2}}), "cuts", "1 to 5", "[4, 2]");
  EXPECT_INVALID(make({.devices = "cpu:0-1", .cuts = {1, 2}}), "cuts", "for 2 devices", "[1, 2]");
  EXPECT_ERROR(split_network({.devices = "cpu:0-1"}).device(2), kOutOfRange, "from 0 to 1",
               "got 2");
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const auto scope = strategy.scope();
  EXPECT_ERROR(make({.devices = "cpu:0-1"}), kFailedPrecondition, "StagedSequential", "'mirrored'",
               "outside");
}

TEST(StagedSequential, SupportsFitEvaluateAndPredict) {
  const auto fitted = [](auto model) {
    model.compile({.optimizer = SgdOptions{.learning_rate = 0.1},
                   .loss = "sparse_categorical_crossentropy",
                   .metrics = {"accuracy"}});
    return model
        .fit(sample_rows(), sample_classes(),
             {.epochs = 3, .batch_size = 8, .verbose = Verbosity::kSilent})
        .at("loss");
  };
  // The model has no dropout, because dropout would depend on earlier steps of this process.
  set_random_seed(7);
  const Sequential whole(Input{{10}}, Dense(12), BatchNormalization(), Relu(), Dense(3));
  set_random_seed(7);
  const StagedSequential split({.devices = "cpu:1-2"}, Input{{10}}, Dense(12), BatchNormalization(),
                               Relu(), Dense(3));
  EXPECT_EQ(fitted(split), fitted(whole));
}

TEST(Pipeline, LayerSplitMatchesOneDeviceBitwise) {
  constexpr int kSteps = 50;
  const Training one = train_plainly(whole_network(), sample_rows(), sample_classes(), 4, kSteps);
  for (const PipelineOrder order :
       {PipelineOrder::kAllForwardFirst, PipelineOrder::kOneForwardOneBackward}) {
    for (const char* devices : {"cpu:0-1", "cpu:0-2"}) {
      SCOPED_TRACE(concat(to_string(order), " on ", devices));
      expect_same_training(
          train_in_a_pipeline(split_network({.devices = devices}), sample_rows(), sample_classes(),
                              {.micro_batches = 4, .order = order}, kSteps),
          one);
    }
  }
  EXPECT_LT(one.losses.back(), 0.7 * one.losses.front());
}

TEST(Pipeline, StagesComputeConcurrently) {
  // Stage 0 waits in micro-batch 1 for stage 1 in micro-batch 0, and vice versa.
  const auto first = std::make_shared<Event>(), second = std::make_shared<Event>();
  StagedSequential model({.devices = "cpu:0-1"}, Input{{10}}, Meeting(1, first, second), Dense(8),
                         Meeting(0, second, first), Dense(3));
  Pipeline pipeline(model, cross_entropy, {.micro_batches = 2});
  EXPECT_EQ(pipeline.gradients(sample_rows(), sample_classes()).gradients.size(), 4u);
  EXPECT_TRUE(first->is_set());
  EXPECT_TRUE(second->is_set());
}

TEST(Pipeline, TransfersOnlyActivationsAndTheirGradients) {
  set_random_seed(1);
  StagedSequential model({.devices = "cpu:0-1"}, Input{{10}}, Dense(8), Dense(3));
  Pipeline pipeline(model, cross_entropy, {.micro_batches = 2});
  std::vector<std::string> moved;
  for (const Transfer& transfer : pipeline.gradients(sample_rows(4), sample_classes(4)).transfers) {
    moved.push_back(transfer.to_string());
  }
  EXPECT_THAT(moved, ElementsAre("cpu:1 -> cpu:0: float32 [2, 8], 64 bytes",
                                 "cpu:1 -> cpu:0: float32 [2, 8], 64 bytes",
                                 "cpu:0 -> cpu:1: float32 [2, 8], 64 bytes",
                                 "cpu:0 -> cpu:1: int64 [2], 16 bytes",
                                 "cpu:0 -> cpu:1: float32 [2, 8], 64 bytes",
                                 "cpu:0 -> cpu:1: int64 [2], 16 bytes"));
}

TEST(Pipeline, SplitReducesPeakMemoryPerDevice) {
  const Device a = on_cpu(kFirstDevice), b = on_cpu(kFirstDevice + 1);
  const Peaks one = peaks_of(1, [&] { return train_wide({a}, {.micro_batches = 8}); });
  const Peaks two = peaks_of(2, [&] { return train_wide({a, b}, {.micro_batches = 8}); });
  const Peaks alternating = peaks_of(2, [&] {
    return train_wide({a, b}, {.micro_batches = 8, .order = PipelineOrder::kOneForwardOneBackward});
  });
  EXPECT_EQ(two.loss, one.loss);
  EXPECT_EQ(alternating.loss, one.loss);
  EXPECT_LT(std::max(two.bytes[0], two.bytes[1]), one.bytes[0] * 3 / 4);
  EXPECT_LT(alternating.bytes[0], two.bytes[0]);
  EXPECT_LT(alternating.bytes[1], two.bytes[1]);
}

/// While it exists, limits the memory of two devices that no other test uses.
struct MemoryLimits {
  explicit MemoryLimits(std::size_t bytes) {
    for (const Device device : devices) {
      set_memory_limit(device, bytes);
      trim_allocator_cache(device);
      reset_peak_memory(device);
    }
  }
  ~MemoryLimits() {
    for (const Device device : devices) clear_memory_limit(device);
  }
  std::size_t peak(std::size_t i) const { return device_memory(devices[i]).peak; }
  const std::vector<Device> devices = {on_cpu(50), on_cpu(51)};
};

/// Trains on two replicas. Data parallelism needs the full model on each device.
void train_replicated(const std::vector<Device>& devices, const Tensor& x, const Tensor& y) {
  MirroredStrategy strategy({.devices = devices});
  const auto scope = strategy.scope();
  Sequential model(Input{{256}}, Dense(1024, {.activation = "relu"}), Dense(256), Dense(3));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.1, .momentum = 0.9},
                 .loss = "sparse_categorical_crossentropy"});
  model.fit(x, y, {.epochs = 2, .batch_size = 16, .verbose = Verbosity::kSilent});
}

// The limit is above the memory that a stage needs, and below the memory of the full model.
TEST(Pipeline, ModelTooLargeForOneDeviceTrainsInStages) {
  const Tensor x = noise({16, 256}, 8), y = sample_classes(16);
  set_random_seed(4);
  const Training expected = train_plainly(
      Sequential(Input{{256}}, Dense(1024, {.activation = "relu"}), Dense(256), Dense(3)), x, y, 4,
      5);
  const std::size_t needed = [&] {
    const MemoryLimits memory(kUnlimitedMemory);
    train_replicated(memory.devices, x, y);
    return std::min(memory.peak(0), memory.peak(1));
  }();
  const std::size_t limit = needed * 7 / 10;
  const MemoryLimits memory(limit);
  EXPECT_ERROR(train_replicated(memory.devices, x, y), kResourceExhausted, "cpu:5",
               "no memory for ", " in use", concat("limit ", limit),
               "parts of the model on several devices");
  set_random_seed(4);
  const StagedSequential stages({.devices = memory.devices, .cuts = {1}}, Input{{256}},
                                Dense(1024, {.activation = "relu"}), Dense(256), Dense(3));
  expect_same_training(train_in_a_pipeline(stages, x, y, {.micro_batches = 4}, 5), expected);
  EXPECT_LE(memory.peak(0), limit);
  EXPECT_LE(memory.peak(1), limit);
}

TEST(Pipeline, RegularizationCountsOncePerBatch) {
  set_random_seed(1);
  const StagedSequential model({.devices = "cpu:0-1"}, Input{{10}},
                               Dense(8, {.kernel_regularizer = regularizers::l2(0.5)}),
                               Dense(3, {.kernel_regularizer = regularizers::l2(0.25)}));
  const PipelineResult result = Pipeline(model, cross_entropy, {.micro_batches = 3})
                                    .gradients(sample_rows(), sample_classes());
  const std::vector<Variable> variables = model.trainable_variables();
  GradientTape tape;
  const Tensor loss =
      compute_average_loss(cross_entropy(sample_classes(), model(sample_rows())), std::int64_t{24});
  const std::vector<Gradient> plain = tape.gradient(loss, variables);
  double regularization = 0.0;
  for (const std::size_t i : {0, 2}) {
    const double factor = i == 0 ? 0.5 : 0.25;
    const std::vector<double> w = variables[i].value().to_doubles();
    const std::vector<double> own = plain[i].dense().to_doubles();
    const std::vector<double> actual = result.gradients[i].dense().to_doubles();
    for (std::size_t k = 0; k < w.size(); ++k) {
      regularization += factor * w[k] * w[k];
      ASSERT_NEAR(actual[k], own[k] + 2.0 * factor * w[k], 1e-5);
    }
  }
  EXPECT_NEAR(result.loss.item(), loss.item() + regularization, 1e-4);
}

TEST(Pipeline, FailureNamesStageAndDoesNotAffectNextBatch) {
  StagedSequential model({.devices = "cpu:0-1"}, Input{{10}}, Dense(8), Dense(6), Failing(1),
                         Dense(3));
  Pipeline pipeline(model, cross_entropy, {.micro_batches = 3});
  EXPECT_ERROR(pipeline.gradients(sample_rows(), sample_classes()), kOutOfRange,
               "stage 1 (cpu:1), micro-batch 1, forward", "made to fail");
  EXPECT_EQ(pipeline.num_steps(), 0u);
  EXPECT_EQ(pipeline.gradients(sample_rows(), sample_classes()).gradients.size(), 6u);
  EXPECT_EQ(pipeline.num_steps(), 1u);
}

TEST(Pipeline, TimeoutErrorNamesMissingStage) {
  const auto never = std::make_shared<Event>(), mine = std::make_shared<Event>();
  StagedSequential model({.devices = "cpu:0-1"}, Input{{10}}, Meeting(0, mine, never), Dense(3));
  {
    Pipeline pipeline(model, cross_entropy,
                      {.micro_batches = 2, .timeout = std::chrono::milliseconds(50)});
    EXPECT_ERROR(pipeline.gradients(sample_rows(), sample_classes()), kDeadlineExceeded,
                 "waiting for activations of micro-batch 0 from stage 0 (cpu:0)", "0.05 s");
    EXPECT_ERROR(pipeline.gradients(sample_rows(), sample_classes()), kFailedPrecondition,
                 "still working on an earlier, failed batch");
    never->set();  // allows the stage's thread to end
  }
}

TEST(Pipeline, RejectsConcurrentReplicaCalls) {
  const auto is_running = std::make_shared<Event>(), may_end = std::make_shared<Event>();
  StagedSequential model({.devices = "cpu:0-1"}, Input{{10}}, Meeting(0, is_running, may_end),
                         Dense(3));
  Pipeline pipeline(model, cross_entropy, {.micro_batches = 2});
  MirroredStrategy strategy({.devices = "cpu:2-3"});
  strategy.run([&] {
    if (ReplicaContext::current().replica_id() == 0) {
      pipeline.gradients(sample_rows(), sample_classes());
      return;
    }
    EXPECT_TRUE(
        is_running->wait_until(deadline_after(Clock::system().now(), std::chrono::seconds(60))));
    EXPECT_ERROR(pipeline.gradients(sample_rows(), sample_classes()), kFailedPrecondition,
                 "expected calls from one thread at a time", "or use a Pipeline for each replica");
    may_end->set();
  });
  pipeline.gradients(sample_rows(), sample_classes());  // sequential calls work
  EXPECT_EQ(pipeline.num_steps(), 2u);
}

TEST(Pipeline, RejectsInvalidBatchesAndOptions) {
  StagedSequential model({.devices = "cpu:0-1"}, Input{{10}}, Dense(8), Dense(3));
  EXPECT_INVALID(Pipeline(model, cross_entropy, {.micro_batches = 0}), "micro_batches >= 1");
  EXPECT_INVALID(Pipeline(model, {}), "no loss function");
  Pipeline pipeline(model, cross_entropy, {.micro_batches = 4});
  EXPECT_INVALID(pipeline.gradients(sample_rows(3), sample_classes(3)), "4 micro-batches",
                 "[3, 10]");
  EXPECT_INVALID(pipeline.gradients(sample_rows(), sample_classes(23)), "[24, 10]", "[23]");
}

}  // namespace tutti::testing::pipeline_test

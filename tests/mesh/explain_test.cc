// Tests MeshStrategy::explain(): the predicted exchanges match formulas, the predicted memory
// matches a run, and explain() allocates no tensor.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>

#include "tests/mesh/mesh_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/tensor/device_memory.h"

namespace tutti::mesh_tests {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const LayoutMap kPair = {
    {"up/kernel", {"", "model"}}, {"up/bias", {"model"}}, {"down/kernel", {"model", ""}}};

/// Variables and optimizer of the network x -> down(relu(up(tanh(x * scale)))).
struct Mlp {
  Mlp(std::int64_t features, std::int64_t hidden)
      : scale(Tensor::ones({features}), {.name = "scale"}),
        up(random_normal({features, hidden}, {.seed = 1}), {.name = "up/kernel"}),
        up_bias(Tensor::zeros({hidden}), {.name = "up/bias"}),
        down(random_normal({hidden, features}, {.seed = 2}), {.name = "down/kernel"}),
        optimizer(std::make_unique<Adam>(std::vector<Variable>{scale, up, up_bias, down})) {}

  Tensor predict(const Tensor& x) const {
    const Tensor hidden =
        dense(tanh(x * scale.value()), up.value(), up_bias.value(), FusedActivation::kRelu);
    return square(matmul(hidden, down.value()));
  }
  void train(const Batch& batch) const {
    GradientTape tape;
    optimizer->minimize(tape, reduce_sum(predict(batch.features())));
  }

  Variable scale, up, up_bias, down;
  std::unique_ptr<Optimizer> optimizer;
};

/// Returns a function that creates the network and returns its step.
std::function<MeshStep()> mlp(std::int64_t features, std::int64_t hidden, bool is_trained = true) {
  return [=]() -> MeshStep {
    const auto network = std::make_shared<Mlp>(features, hidden);
    if (is_trained) return [network](const Batch& batch) { network->train(batch); };
    return [network](const Batch& batch) { static_cast<void>(network->predict(batch.features())); };
  };
}

/// Total of the exchanges of one kind over one axis.
struct Exchanged {
  std::uint64_t bytes = 0;
  int count = 0;
};

Exchanged exchanged(const MeshReport& report, const std::string& kind, const std::string& axis) {
  Exchanged sum;
  for (const MeshReport::CollectiveCost& each : report.collectives) {
    if (each.kind != kind || each.axes != std::vector{axis}) continue;
    sum.bytes += each.bytes;
    sum.count += each.count;
  }
  return sum;
}

TEST(MeshExplain, MatmulPairNeedsOneAllReducePerDirection) {
  MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 4}}, kPair));
  const std::vector<TensorSpec> batch = {{{16, 8}}};
  const MeshReport forward = strategy.explain(mlp(8, 64, false), batch);
  // Each device has 8 of the 16 rows; four devices each add a term of shape [8, 8] to the sum.
  constexpr std::uint64_t kSum = 2 * 3 * (8 * 8 * 4) / 4;
  EXPECT_EQ(exchanged(forward, "all_reduce", "model").count, 1);
  EXPECT_EQ(exchanged(forward, "all_reduce", "model").bytes, kSum);
  EXPECT_EQ(forward.bytes_sent(), kSum);
  EXPECT_THAT(forward.collectives.front().where, HasSubstr("explain_test.cc:"));

  const MeshReport training = strategy.explain(mlp(8, 64), batch);
  EXPECT_EQ(exchanged(training, "all_reduce", "model").count, 2);
  EXPECT_EQ(exchanged(training, "all_reduce", "model").bytes, 2 * kSum);
  // There are 8 + 8 x 16 + 16 + 16 x 8 elements. In a ring of P devices, each device sends each
  // element 2 (P - 1) / P times: once for P = 2.
  EXPECT_EQ(exchanged(training, "all_reduce", "data").bytes, 4u * (8 + 128 + 16 + 128));
  EXPECT_THAT(training.warnings, ElementsAre());
}

TEST(MeshExplain, ListsVariablesWithLayoutAndShardBytes) {
  MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 4}}, kPair));
  const MeshReport report = strategy.explain(mlp(8, 64), {{{16, 8}}});
  std::vector<std::string> variables;
  for (const MeshReport::VariableCost& each : report.variables) {
    if (each.shape.rank() > 0) {
      variables.push_back(concat(each.name, " ", each.shape, " ", each.layout, " ", each.bytes));
    }
  }
  EXPECT_THAT(variables,
              ElementsAre("scale [8] [-] 32", "up/kernel [8, 64] [-, model] 512",
                          "up/bias [64] [model] 64", "down/kernel [64, 8] [model, -] 512"));
  EXPECT_EQ(report.memory.slots, 2u * (32 + 512 + 64 + 512));
  EXPECT_EQ(report.memory.gradients, 32u + 512 + 64 + 512);
  EXPECT_THAT(report.to_string(), AllOf(HasSubstr("up/kernel           [8, 64]  [-, model]  512 B"),
                                        HasSubstr("all_reduce  model  1      384 B")));
}

TEST(MeshExplain, VariablesShardedOverBatchAxisAreGathered) {
  const std::uint64_t bias = 4 * 64, whole = 4 * (8 + 8 * 64 + 64 * 8) + bias;
  MeshOptions options = fully_sharded(4);
  options.reshard_after_forward = false;
  MeshStrategy gathers_once(options);
  const MeshReport once = gathers_once.explain(mlp(8, 64), {{{16, 8}}});
  EXPECT_EQ(exchanged(once, "all_gather", "data").count, 4);
  EXPECT_EQ(exchanged(once, "all_gather", "data").bytes, 3 * whole / 4);
  MeshStrategy strategy(fully_sharded(4));
  const MeshReport report = strategy.explain(mlp(8, 64), {{{16, 8}}});
  EXPECT_EQ(exchanged(report, "reduce_scatter", "data").bytes, 3 * whole / 4);
  // The backward pass gathers all values again except the bias, which it does not need.
  EXPECT_EQ(exchanged(report, "all_gather", "data").count, 4 + 3);
  EXPECT_EQ(exchanged(report, "all_gather", "data").bytes, 3 * (2 * whole - bias) / 4);
}

TEST(MeshExplain, BlocksOfOneDeviceExchangeNothing) {
  MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 1}}, kPair, {{"data", 4}, {"model", 2}}));
  const MeshReport report = strategy.explain(mlp(8, 64), {{{16, 8}}});
  EXPECT_EQ(exchanged(report, "all_reduce", "model").count, 0);
  // Each of the two devices holds both blocks of the axis "model", so it sends the gradients of the
  // shards in both blocks.
  EXPECT_EQ(exchanged(report, "all_reduce", "data").bytes, 2u * 4 * (8 + 256 + 32 + 256));
  std::uint64_t variables = 0;
  for (const MeshReport::VariableCost& each : report.variables) {
    if (each.shape.rank() > 0) variables += each.bytes;
  }
  EXPECT_EQ(variables, 4u * (8 + 512 + 64 + 512));
}

TEST(MeshExplain, BlocksDoNotChangeVariableBytesPerDevice) {
  for (const std::vector<MeshAxis>& blocks :
       {std::vector<MeshAxis>(), std::vector<MeshAxis>{{"data", 4}, {"model", 4}}}) {
    MeshStrategy strategy(on_mesh({{"data", 1}, {"model", 2}}, kPair, blocks));
    const MeshReport report = strategy.explain(mlp(8, 64), {{{16, 8}}});
    std::uint64_t variables = 0;
    for (const MeshReport::VariableCost& each : report.variables) {
      if (each.shape.rank() > 0) variables += each.bytes;
    }
    EXPECT_EQ(variables, 4u * (8 + (512 + 64 + 512) / 2));
  }
}

std::function<MeshStep()> transformer(int num_layers, bool is_trained) {
  return [=]() -> MeshStep {
    const auto model =
        std::make_shared<Sequential>(Input{{8}}, Embedding(32, 16, {.name = "embedding"}));
    for (int i = 0; i < num_layers; ++i) model->add(TransformerBlock(4, 4, 32));
    model->add(Dense(32, {.use_bias = false, .name = "output"}));
    const auto optimizer = std::make_shared<Adam>(model->trainable_variables());
    return [=](const Batch& batch) {
      GradientTape tape;
      const Tensor logits = (*model)(batch.features(), {.training = true});
      const Tensor loss = reduce_sum(
          losses::sparse_categorical_crossentropy(batch.labels(), logits, {.from_logits = true}));
      if (is_trained) optimizer->minimize(tape, loss);
    };
  };
}

TEST(MeshExplain, TransformerLayerNeedsTwoAllReducesPerDirection) {
  MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 4}}, transformer_tensor_parallel()));
  const std::vector<TensorSpec> batch = {{{16, 8}, DType::kInt64}, {{16, 8}, DType::kInt64}};
  for (const bool is_trained : {false, true}) {
    const MeshReport two = strategy.explain(transformer(2, is_trained), batch);
    const MeshReport five = strategy.explain(transformer(5, is_trained), batch);
    const Exchanged less = exchanged(two, "all_reduce", "model");
    const Exchanged more = exchanged(five, "all_reduce", "model");
    const int directions = is_trained ? 2 : 1;
    EXPECT_EQ(more.count - less.count, 3 * 2 * directions);
    // In each all_reduce, each device contributes a term of shape [8 rows, 8 steps, 16 features].
    const std::uint64_t sum = 2 * 3 * (8 * 8 * 16 * 4) / 4;
    EXPECT_EQ(more.bytes - less.bytes, 3 * 2 * static_cast<std::uint64_t>(directions) * sum);
    EXPECT_EQ(exchanged(five, "all_gather", "model").count, 0) << five.to_string();
    EXPECT_THAT(five.warnings, Each(HasSubstr("/bias$' matches no variable")));
  }
}

TEST(MeshExplain, SequenceAxisExchangesOnlyHeadsAndGradients) {
  MeshOptions options = on_mesh({{"data", 2}, {"sequence", 4}});
  options.sequence_axis = "sequence";
  MeshStrategy strategy(options);
  const MeshReport report =
      strategy.explain(transformer(2, true), {{{16, 8}, DType::kInt64}, {{16, 8}, DType::kInt64}});
  // Activations stay sharded; only rows and indices of the embedding's gradient are gathered.
  EXPECT_EQ(exchanged(report, "all_gather", "sequence").count, 2) << report.to_string();
  EXPECT_EQ(exchanged(report, "all_reduce", "sequence").count, 0) << report.to_string();
  // In each layer, the forward pass exchanges three inputs and two results; the backward pass
  // exchanges six inputs and three gradients.
  EXPECT_EQ(exchanged(report, "all_to_all", "sequence").count, 2 * (5 + 9));
}

/// Limits the memory of the devices cpu:1 to cpu:4, in bytes, during its lifetime.
class MemoryLimits {
 public:
  explicit MemoryLimits(std::size_t bytes) {
    for (int i = 1; i <= 4; ++i) set_memory_limit({DeviceType::kCpu, i}, bytes);
  }
  ~MemoryLimits() {
    for (int i = 1; i <= 4; ++i) clear_memory_limit({DeviceType::kCpu, i});
  }
  MemoryLimits(const MemoryLimits&) = delete;
  MemoryLimits& operator=(const MemoryLimits&) = delete;
};

TEST(MeshExplain, AllocatesNothing) {
  constexpr std::int64_t kFeatures = std::int64_t{1} << 18, kHidden = std::int64_t{1} << 19;
  constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;
  for (const bool is_limited : {false, true}) {
    MeshOptions options = on_mesh({{"data", 2}, {"model", 2}}, kPair);
    std::optional<MemoryLimits> limits;
    if (is_limited) {
      options.local.devices = "cpu:1-4";
      limits.emplace(std::size_t{1} << 20);
    }
    MeshStrategy strategy(options);
    reset_peak_memory(Device{});
    const std::size_t before = device_memory(Device{}).peak;
    const MeshReport report = strategy.explain(mlp(kFeatures, kHidden), {{{64, kFeatures}}});
    EXPECT_LT(device_memory(Device{}).peak - before, std::size_t{1} << 20);
    EXPECT_GT(report.memory.variables, kTiB / 2);
    EXPECT_LT(report.memory.variables, kTiB / 2 + (kTiB >> 18));
    EXPECT_GT(report.memory.total(), 2 * kTiB);
  }
}

/// Network of six pairs of layers, and its step.
struct DeepMlp {
  static constexpr std::int64_t kFeatures = 256, kRows = 512;
  DeepMlp() : model(Input{{kFeatures}}) {
    for (int i = 0; i < 6; ++i) {
      model.add(Dense(4 * kFeatures, {.activation = "relu", .name = concat("up_", i)}));
      model.add(Dense(kFeatures, {.name = concat("down_", i)}));
    }
    optimizer = std::make_unique<Adam>(model.trainable_variables());
  }
  void train(const Batch& batch) {
    GradientTape tape;
    optimizer->minimize(tape, reduce_sum(square(model(batch.features()))));
  }
  Sequential model;
  std::unique_ptr<Optimizer> optimizer;
};

/// Compares explain()'s memory prediction for a step with the peak of each of the four devices that
/// run it.
void expect_memory_of_a_run(const LayoutMap& layout, const std::function<MeshStep()>& build,
                            const Element& batch) {
  const MemoryLimits limits(std::size_t{1} << 30);
  MeshOptions options = on_mesh({{"data", 2}, {"model", 2}}, layout);
  options.local.devices = "cpu:1-4";
  MeshStrategy strategy(options);
  std::vector<TensorSpec> specs;
  for (const Tensor& each : batch.tensors()) specs.push_back({each.shape(), each.dtype()});
  const MeshReport report = strategy.explain(build, specs);
  {
    const auto scope = strategy.scope();
    const MeshStep step = build();
    for (int i = 1; i <= 4; ++i) reset_peak_memory({DeviceType::kCpu, i});
    strategy.run(step, Batch(batch));
  }
  for (int i = 1; i <= 4; ++i) {
    const Device device{DeviceType::kCpu, i};
    const auto peak = static_cast<double>(device_memory(device).peak);
    EXPECT_NEAR(static_cast<double>(report.memory.total()), peak, 0.1 * peak) << device << "\n"
                                                                              << report.to_string();
  }
}

TEST(MeshExplain, PredictedMemoryMatchesRun) {
  const LayoutMap pairs = {{"up_./kernel$", {"", "model"}},
                           {"up_./bias$", {"model"}},
                           {"down_./kernel$", {"model", ""}}};
  const auto build = []() -> MeshStep {
    const auto network = std::make_shared<DeepMlp>();
    return [network](const Batch& batch) { network->train(batch); };
  };
  expect_memory_of_a_run(pairs, build, Element({numbers({DeepMlp::kRows, DeepMlp::kFeatures}, 1)}));
}

TEST(MeshExplain, PredictedTransformerMemoryMatchesRun) {
  const Tensor tokens = Tensor::zeros({64, 8}, DType::kInt64);
  expect_memory_of_a_run(transformer_tensor_parallel(), transformer(4, true),
                         Element({tokens, tokens}));
}

TEST(MeshExplain, PredictedMemoryOfStatefulLayersMatchesRun) {
  const auto trains = [](const auto& make) {
    return [make]() -> MeshStep {
      const std::shared_ptr<Sequential> model = make();
      const auto optimizer = std::make_shared<Adam>(model->trainable_variables());
      return [=](const Batch& batch) {
        GradientTape tape;
        const Tensor logits = (*model)(batch.features(), {.training = true});
        optimizer->minimize(
            tape, reduce_mean(losses::sparse_categorical_crossentropy(batch.labels(), logits)));
      };
    };
  };
  const Tensor labels = Tensor::zeros({64}, DType::kInt64);
  expect_memory_of_a_run({{"conv2d/kernel", {"", "", "", "model"}}}, trains([] {
                           return std::make_shared<Sequential>(
                               Input{{16, 16, 3}}, Conv2D(16, 3, {.padding = "same"}),
                               BatchNormalization(), Relu(), MaxPooling2D(2), Flatten(),
                               Dropout(0.25), Dense(4));
                         }),
                         Element({numbers({64, 16, 16, 3}, 1), labels}));
  expect_memory_of_a_run(
      {{"dense/kernel", {"", "model"}}}, trains([] {
        return std::make_shared<Sequential>(Input{{6, 32}}, LSTM(32), Dense(64, "tanh"), Dense(4));
      }),
      Element({numbers({64, 6, 32}, 1), labels}));
}

TEST(MeshExplain, PredictedExchangesMatchActualRun) {
  for (const bool is_clipped : {false, true}) {
    MeshStrategy strategy(on_mesh({{"data", 1}, {"model", 2}}, kPair));
    const auto scope = strategy.scope();
    Mlp network(8, 64);
    AdamOptions options;
    if (is_clipped) options.clipping.global_clipnorm = 1.0;
    network.optimizer = std::make_unique<Adam>(
        std::vector<Variable>{network.scale, network.up, network.up_bias, network.down}, options);
    const MeshStep step = [&](const Batch& batch) { network.train(batch); };
    const MeshReport report = strategy.explain(step, {{{16, 8}}});
    EXPECT_EQ(exchanged(report, "all_gather", "model").count, 0);
    // One sum in the forward pass and one in the backward pass. Clipping adds one for the squares
    // of all sharded gradients.
    EXPECT_EQ(exchanged(report, "all_reduce", "model").count, is_clipped ? 2 + 1 : 2);
    const std::uint64_t before = strategy.cross_device_ops().bytes_reduced();
    strategy.run(step, Batch(Element({numbers({16, 8}, 1)})));
    // bytes_reduced() counts the contributions of both devices; bytes_sent() counts the bytes
    // that one device sends. In a ring of two, a device sends as many bytes as it contributes.
    EXPECT_EQ(strategy.cross_device_ops().bytes_reduced() - before, 2 * report.bytes_sent());
  }
}

TEST(MeshExplain, ExplainedStepDoesNotChangeExistingModel) {
  MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 2}}, kPair));
  const auto scope = strategy.scope();
  const Mlp network(8, 64);
  const std::vector<Variable> all = {network.scale, network.up, network.up_bias, network.down};
  const std::string before = hash_variables(all);
  const MeshReport report =
      strategy.explain([&](const Batch& batch) { network.train(batch); }, {{{16, 8}}});
  EXPECT_EQ(hash_variables(all), before);
  EXPECT_EQ(network.optimizer->iterations().value().item_int(), 0);
  const MeshReport built = strategy.explain(mlp(8, 64), {{{16, 8}}});
  EXPECT_EQ(report.memory.total(), built.memory.total());
  EXPECT_EQ(report.bytes_sent(), built.bytes_sent());
  EXPECT_EQ(exchanged(report, "all_reduce", "model").count, 2);
}

TEST(MeshExplain, PreservesRandomNumbersOfLaterModels) {
  MeshStrategy strategy(on_mesh({{"data", 2}}));
  const auto make = [] { return std::make_shared<Sequential>(Input{{3}}, Dense(4)); };
  set_random_seed(5);
  const std::string expected = hash_variables(make()->variables());
  set_random_seed(5);
  strategy.explain(
      [&]() -> MeshStep {
        return [model = make()](const Batch& batch) { static_cast<void>((*model)(batch[0])); };
      },
      {{{4, 3}}});
  EXPECT_EQ(hash_variables(make()->variables()), expected);
}

TEST(MeshExplain, RefusesLayoutsThatDoNotFit) {
  MeshStrategy strategy(on_mesh({{"model", 4}}, {{"up/kernel", {"", "model"}}}));
  EXPECT_THAT(message_of([&] {
                strategy.explain(mlp(8, 66), {{{16, 8}}});
              }),
              AllOf(HasSubstr("variable 'up/kernel'"), HasSubstr("4 positions")));
}

TEST(MeshExplain, ReadErrorNamesLine) {
  MeshStrategy strategy(on_mesh({{"data", 2}}));
  const auto message = [&](const MeshStep& step) {
    return message_of([&] { strategy.explain(step, {{{16, 8}}}); });
  };
  for (const MeshStep& step : {MeshStep([](const Batch& batch) { reduce_sum(batch[0]).item(); }),
                               MeshStep([](const Batch& batch) { batch[0].to_doubles(); })}) {
    EXPECT_THAT(message(step), AllOf(HasSubstr("explain_test.cc:"), HasSubstr("no elements")));
  }
}

TEST(MeshExplain, WarnsAboutGathersAndAboutUnusedOrMissingLayouts) {
  LayoutMap layout = kPair;
  layout.set("dwon/kernel", {"model", ""});
  MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 2}}, layout));
  const MeshReport report = strategy.explain(
      [&]() -> MeshStep {
        const auto network = std::make_shared<Mlp>(8, 64);
        const Variable table(Tensor::zeros({64, 64}), {.name = "table"});
        return [network, table](const Batch& batch) {
          const Tensor sorted = softmax(relayout(batch[0], {"", "data"}));
          static_cast<void>(network->predict(sorted));
          static_cast<void>(table.value());
        };
      },
      {{{16, 8}}});
  // Each device has half of [16, 8] and sends it to the other device.
  EXPECT_THAT(report.warnings,
              Contains(AllOf(HasSubstr("explain_test.cc:"),
                             HasSubstr("softmax gathers sharded inputs: 1 call sends 256 B"))));
  EXPECT_THAT(report.warnings, Contains("the layout 'dwon/kernel' matches no variable"));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("the variable 'table' has no layout")));
}

}  // namespace
}  // namespace tutti::mesh_tests

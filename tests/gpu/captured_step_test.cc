// Tests captured steps, which are replayed as CUDA graphs, and variables on GPUs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/captured_step.h"

#include <filesystem>

#include "tests/gpu/gpu_helpers.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tutti.h"

namespace tutti::testing::captured_step_test {

constexpr Device kGpu{DeviceType::kGpu, 0};
constexpr std::int64_t kRows = 8;

Batch batch_of(int step, std::int64_t rows = kRows) {
  const Tensor x = random_normal({rows, 6}, {.seed = 5, .a = static_cast<std::uint64_t>(step)});
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < rows; ++i)
    labels.push_back(static_cast<std::int32_t>((i + step) % 3));
  return Batch(Element({x, Tensor::from<std::int32_t>({rows}, labels)}));
}

PerReplica<Batch> batches_for(Strategy& strategy, int step, std::int64_t rows = kRows) {
  std::vector<Batch> batches;
  const auto devices = strategy.replica_devices();
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const Batch batch = batch_of(step * 10 + static_cast<int>(r), rows);
    batches.emplace_back(batch.element().to(devices[r]));
  }
  return PerReplica<Batch>(std::move(batches));
}

/// Small network, and a function that trains it for one step.
struct Trainer {
  explicit Trainer(Strategy& owner) : strategy(owner), scope(reset_seed(owner)) {}

  static Scope reset_seed(Strategy& strategy) {
    set_random_seed(11);
    return strategy.scope();
  }

  Tensor train(const Batch& batch) {
    ++num_runs;
    GradientTape tape;
    const Tensor logits = model(batch.features(), {.training = true});
    const Tensor losses = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    const Tensor loss = compute_average_loss(losses, 2 * kRows);
    optimizer.minimize(tape, loss);
    return loss;
  }

  template <class Step>
  double run(const Step& step, int number, std::int64_t rows = kRows) {
    const auto losses = strategy.run(step, batches_for(strategy, number, rows));
    return strategy.reduce(ReduceOp::kSum, losses).item_double();
  }

  Strategy& strategy;
  Scope scope;
  Sequential model{Input{{6}}, Dense(5, {.activation = "relu"}), BatchNormalization(), Dropout(0.3),
                   Dense(3)};
  Adam optimizer{model.trainable_variables(),
                 {.learning_rate = ExponentialDecay(
                      {.initial_learning_rate = 0.1, .decay_steps = 2, .decay_rate = 0.5})}};
  std::atomic<int> num_runs{0};
};

/// Losses and final weights of some steps, each of which calls the function or replays its graph.
struct Outcome {
  std::vector<double> losses;
  std::string weights, state;
  std::int64_t iterations = 0;
  int num_runs = 0;
};

Outcome train(const char* devices, const char* ops, bool by_replays, int num_steps) {
  MirroredStrategy strategy({.devices = devices, .cross_device_ops = make_cross_device_ops(ops)});
  Trainer trainer(strategy);
  const auto body = [&](const Batch& batch) { return trainer.train(batch); };
  const auto step = captured(body);
  Outcome outcome;
  for (int i = 0; i < num_steps; ++i) {
    outcome.losses.push_back(by_replays ? trainer.run(step, i) : trainer.run(body, i));
  }
  outcome.weights = hash_variables(trainer.model.variables());
  outcome.state = hash_variables(trainer.optimizer.state_variables());
  outcome.iterations = trainer.optimizer.iterations().value().item_int();
  outcome.num_runs = trainer.num_runs;
  EXPECT_EQ(step.num_captured(), by_replays ? 1 : 0);
  return outcome;
}

void expect_replays_equal_the_function(const char* devices, const char* ops, int num_replicas) {
  const Outcome expected = train(devices, ops, false, 6), got = train(devices, ops, true, 6);
  // Losses, weights and state depend on the schedule, dropout masks and moving statistics.
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.weights, expected.weights);
  EXPECT_EQ(got.state, expected.state);
  EXPECT_EQ(got.iterations, 6);
  EXPECT_EQ(expected.num_runs, 6 * num_replicas);
  EXPECT_EQ(got.num_runs, 2 * num_replicas);  // one run to warm up and one to capture
}

TEST(CapturedStep, OneReplicaReplayMatchesFunctionBitwise) {
  expect_replays_equal_the_function("gpu:0", "canonical", 1);
}

TEST(CapturedStep, TwoGpuReplayMatchesFunctionBitwise) {
  for (const char* ops :
       {"canonical", "reduction_to_one_device", "hierarchical_copy", "ring", "nccl"}) {
    SCOPED_TRACE(ops);
    expect_replays_equal_the_function("gpu:0-1", ops, 2);
  }
}

TEST(CapturedStep, NewShapeAddsGraphAndKeepsOldOnes) {
  MirroredStrategy strategy({.devices = "gpu:0-1"});
  MirroredStrategy other({.devices = "gpu:0-1"});
  std::vector<double> losses[2];
  for (const bool by_replays : {false, true}) {
    Trainer trainer(by_replays ? strategy : other);
    const auto body = [&](const Batch& batch) { return trainer.train(batch); };
    const auto step = captured(body);
    for (int i = 0; i < 9; ++i) {
      const std::int64_t rows = i % 3 == 2 ? 5 : kRows;
      losses[by_replays].push_back(by_replays ? trainer.run(step, i, rows)
                                              : trainer.run(body, i, rows));
    }
    EXPECT_EQ(step.num_captured(), by_replays ? 2 : 0);
  }
  EXPECT_EQ(losses[1], losses[0]);
}

TEST(CapturedStep, VariablesAreReadableAndAssignableBetweenReplays) {
  OneDeviceStrategy strategy(kGpu);
  const auto scope = strategy.scope();
  Variable x(Tensor::from<float>({2}, {1, 2}), {.name = "x"});
  const auto step = captured([&](const Tensor& amount) {
    x.assign_add(amount);
    return x.value() * 10.0f;
  });
  const Tensor one = Tensor::ones({2}, DType::kFloat32, kGpu);
  const auto run = [&] { return strategy.run(step, one)[0].to_doubles(); };
  for (int i = 0; i < 3; ++i) run();
  const Tensor snapshot = x.value();
  const auto result = strategy.run(step, one)[0];
  EXPECT_THAT(snapshot.to_doubles(), ElementsAre(4, 5));
  x.assign(Tensor::from<float>({2}, {100, 200}));
  EXPECT_THAT(run(), ElementsAre(1010, 2010));
  // The later replay does not overwrite this result.
  EXPECT_THAT(result.to_doubles(), ElementsAre(50, 60));
  EXPECT_THAT(x.value().to_doubles(), ElementsAre(101, 201));
}

TEST(CapturedStep, NonTensorArgumentsArePartOfSignature) {
  OneDeviceStrategy strategy(kGpu);
  const auto step = captured([](const Tensor& x, float factor) {
    return std::pair<Tensor, Tensor>(x * factor, x + factor);
  });
  const Tensor x = Tensor::from<float>({2}, {1, 2}, kGpu);
  for (int i = 0; i < 3; ++i) {
    for (const float factor : {2.0f, 3.0f}) {
      const auto [product, sum] = strategy.run(step, x, factor)[0];
      EXPECT_THAT(product.to_doubles(), ElementsAre(factor, 2 * factor));
      EXPECT_THAT(sum.to_doubles(), ElementsAre(1 + factor, 2 + factor));
    }
  }
  EXPECT_EQ(step.num_captured(), 2);
}

TEST(CapturedStep, LargeBatchesAreUploadedDuringReplays) {
  OneDeviceStrategy strategy(kGpu);
  constexpr std::int64_t kCount = 100'000;  // large enough for the upload to use the copy stream
  const auto step = captured([](const Tensor& x) { return reduce_sum(x * 2.0f); });
  for (int i = 0; i < 8; ++i) {
    const Tensor batch = Tensor::full({kCount}, i, DType::kFloat32).to(kGpu);
    EXPECT_EQ(strategy.run(step, batch)[0].item(), 2.0f * static_cast<float>(i) * kCount);
  }
  EXPECT_EQ(step.num_captured(), 1);
}

TEST(CapturedStep, TooManySignaturesFallBackToFunction) {
  OneDeviceStrategy strategy(kGpu);
  const auto step = captured([](const Tensor& x) { return x + 1.0f; }, {.max_signatures = 2});
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t n = 1; n <= 4; ++n) {
      const Tensor x = Tensor::ones({n}, DType::kFloat32, kGpu);
      EXPECT_EQ(strategy.run(step, x)[0].to_doubles(),
                std::vector<double>(static_cast<std::size_t>(n), 2.0));
    }
  }
  EXPECT_EQ(step.num_captured(), 2);
}

TEST(CapturedStep, CpuStepRunsFunctionEachTime) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  std::atomic<int> num_runs{0};
  const auto step = captured([&](const Tensor& x) { return ++num_runs, x + 1.0f; });
  for (int i = 0; i < 3; ++i) strategy.run(step, Tensor(1.0f));
  EXPECT_EQ(num_runs, 6);
  EXPECT_EQ(step.num_captured(), 0);
}

/// Calls `fn` until it is captured. Returns the message of the error that ends the capture.
template <class Fn>
std::string refusal(const char* devices, const Fn& fn) {
  MirroredStrategy strategy({.devices = devices});
  const auto step = captured(fn);
  const auto inputs = [&](float value) {
    std::vector<Tensor> each;
    for (const Device& device : strategy.replica_devices()) {
      each.push_back(Tensor::full({2}, value, DType::kFloat32, device));
    }
    return PerReplica<Tensor>(std::move(each));
  };
  strategy.run(step, inputs(1));
  std::string message;
  try {
    strategy.run(step, inputs(1));
  } catch (const Error& error) {
    message = error.what();
  }
  // After the error, the streams are still usable.
  const auto sums = strategy.run([](const Tensor& x) { return x + x; }, inputs(3));
  for (const Tensor& sum : sums) EXPECT_THAT(sum.to_doubles(), ElementsAre(6, 6));
  return message;
}

TEST(CapturedStep, RejectedReadDuringCaptureLeavesDevicesUsable) {
  for (const char* devices : {"gpu:0", "gpu:0-1"}) {
    EXPECT_THAT(refusal(devices, [](const Tensor& x) { return reduce_sum(x).item() > 0 ? x : -x; }),
                HasSubstr("a value is read on the host"));
  }
}

TEST(CapturedStep, RandomTensorsAreRefused) {
  int calls = 0;
  EXPECT_THAT(refusal("gpu:0",
                      [&](const Tensor& x) {
                        return ++calls == 1 ? x : x + random_normal({2}, {}).to(x.device());
                      }),
              HasSubstr("random tensors are created on the host"));
}

TEST(CapturedStep, RefusesVariablesFirstUsedDuringCapture) {
  int calls = 0;
  Variable late(make_local_storage(Tensor::ones({2}, DType::kFloat32, kGpu), kGpu, {}, nullptr));
  EXPECT_THAT(
      refusal("gpu:0", [&](const Tensor& x) { return ++calls == 1 ? x : x + late.value(); }),
      HasSubstr("used for the first time during the capture"));
}

TEST(CapturedStep, DynamicLossScalingIsRefused) {
  OneDeviceStrategy strategy(kGpu);
  Trainer trainer(strategy);
  trainer.optimizer.use_dynamic_loss_scale({});
  const auto step = captured([&](const Batch& batch) { return trainer.train(batch); });
  EXPECT_THAT(error_of([&] { trainer.run(step, 0); }), HasSubstr("dynamic loss scaling"));
}

TEST(CapturedStep, VariablesOnTheHostAreRefused) {
  Variable counter(Tensor::zeros({}, DType::kInt64));
  EXPECT_THAT(refusal("gpu:0",
                      [&](const Tensor& x) {
                        counter.assign_add(Tensor::scalar(1, DType::kInt64));
                        return x;
                      }),
              HasSubstr("got one on cpu:0"));
}

/// Trains for 5 steps with an optimizer that uses norms, and writes rows of a table. Returns a hash
/// of the weights and the table.
std::string trained_by_norms(const OptimizerSpec& spec, bool by_replays) {
  OneDeviceStrategy strategy(kGpu);
  const auto scope = Trainer::reset_seed(strategy);
  Variable w(Tensor::from<float>({3}, {1, -2, 3}), {.name = "w"});
  Variable b(Tensor::zeros({2}), {.name = "b"});
  Variable table(Tensor::zeros({4, 3}), {.name = "table", .trainable = false});
  const auto optimizer = make_optimizer(spec, std::vector<Variable>{w, b});
  const auto body = [&](const Tensor& x, const Tensor& row) {
    GradientTape tape;
    optimizer->minimize(tape, reduce_sum(square(w.value()) * x) + reduce_sum(b.value() + 1.0));
    table.scatter_add({reshape(w.value(), {1, 3}), row, Shape{4, 3}});
  };
  const auto step = captured(body);
  for (int i = 0; i < 5; ++i) {
    const Tensor x = Tensor::full({3}, 0.1 * i, DType::kFloat32, kGpu);
    const Tensor row = Tensor::full({1}, i % 3, DType::kInt64, kGpu);
    by_replays ? strategy.run(step, x, row) : strategy.run(body, x, row);
  }
  EXPECT_EQ(step.num_captured(), by_replays ? 1 : 0);
  return hash_variables(std::vector<Variable>{w, b, table});
}

TEST(CapturedStep, NormBasedRulesAndScattersAreReplayed) {
  const LambOptions lamb{.learning_rate = 0.1};
  EXPECT_EQ(trained_by_norms(lamb, true), trained_by_norms(lamb, false));
  const LarsOptions lars{.learning_rate = 0.1};
  EXPECT_EQ(trained_by_norms(lars, true), trained_by_norms(lars, false));
  const SgdOptions clipped{
      .learning_rate = 0.1, .momentum = 0.9, .clipping = {.global_clipnorm = 0.5}};
  EXPECT_EQ(trained_by_norms(clipped, true), trained_by_norms(clipped, false));
}

TEST(CapturedStep, OptionsBelowOneAreRefused) {
  const auto fn = [](const Tensor& x) { return x; };
  EXPECT_THROW(captured(fn, {.num_warm_up_calls = 0}), Error);
  EXPECT_THROW(captured(fn, {.max_signatures = 0}), Error);
}

/// Returns a variable with one component, on `device`.
Variable variable_on(Device device, const Tensor& value, const std::string& name = "w") {
  return Variable(make_local_storage(value, device, {.name = name}));
}

TEST(GpuVariables, AreStoredOnTheirDevice) {
  Variable w = variable_on(kGpu, Tensor::from<float>({3}, {1, 2, 3}));
  EXPECT_EQ(w.value().device(), kGpu);
  const Tensor before = w.value();
  w.assign_add(Tensor::from<float>({3}, {10, 10, 10}));
  w.assign_sub(1.0);
  expect_tensor(w.value(), {3}, {10, 11, 12});
  expect_tensor(before, {3}, {1, 2, 3});  // a value that was read never changes
  w.assign(0.5);
  expect_tensor(w.value(), {3}, {0.5, 0.5, 0.5});
  w.assign(Tensor::from<float>({3}, {4, 5, 6}, kGpu));
  expect_tensor(w.value(), {3}, {4, 5, 6});
}

TEST(GpuVariables, KeepTheirAddressUnlessReadValueIsAlive) {
  Variable w = variable_on(kGpu, Tensor::from<float>({3}, {1, 2, 3}));
  const void* const place = w.value().address();
  w.assign(Tensor::from<float>({3}, {4, 5, 6}));
  w.assign_add(1.0);
  EXPECT_EQ(w.value().address(), place);
}

TEST(GpuVariables, SupportIntegerCounters) {
  Variable n = variable_on(kGpu, Tensor::scalar(5, DType::kInt64));
  n.assign_add(Tensor::scalar(2, DType::kInt64));
  EXPECT_EQ(n.value().item_int(), 7);
  Variable flag = variable_on(kGpu, Tensor::full({}, 1.0, DType::kBool));
  EXPECT_INVALID(flag.assign_add(Tensor::full({}, 1.0, DType::kBool)), "bool");
}

using Scatter = void (Variable::*)(const IndexedSlices&);
const std::pair<const char*, Scatter> kScatters[] = {
    {"add", &Variable::scatter_add},      {"sub", &Variable::scatter_sub},
    {"mul", &Variable::scatter_mul},      {"div", &Variable::scatter_div},
    {"min", &Variable::scatter_min},      {"max", &Variable::scatter_max},
    {"update", &Variable::scatter_update}};

TEST(GpuVariables, ScatterMatchesCpuBitwiseForEveryType) {
  for (const DType dtype : kAllDTypes) {
    // float32 is tested with several thread blocks and index tiles. Tensors of other types are
    // small, because emulated threads are slow.
    const bool is_large = dtype == DType::kFloat32;
    const std::int32_t count = is_large ? 600 : 70;
    for (const std::int64_t width : {1, is_large ? 300 : 33}) {
      const Tensor start = cast(numbers({9, width}, 1, 1.0, 9.0), dtype);
      const Tensor values = cast(numbers({count, width}, 2, 1.0, 9.0), dtype);
      std::vector<std::int32_t> rows;
      for (std::int32_t i = 0; i < count; ++i) rows.push_back(i * i % 8);  // row 8 is never used
      const Tensor indices = Tensor::from<std::int32_t>({count}, rows);
      for (const auto& [name, scatter] : kScatters) {
        if (dtype == DType::kBool && scatter != &Variable::scatter_update) continue;
        // integer products would overflow
        if (dtype == DType::kInt32 && scatter == &Variable::scatter_mul) continue;
        if (dtype == DType::kInt64 && scatter == &Variable::scatter_mul) continue;
        SCOPED_TRACE(concat(name, " ", dtype, " ", width));
        Variable host = variable_on(Device{}, start), gpu = variable_on(kGpu, start);
        (host.*scatter)({values, indices, start.shape()});
        (gpu.*scatter)({values.to(kGpu), indices.to(kGpu), start.shape()});
        expect_same_bits(gpu.value().to(Device{}), host.value());
      }
    }
  }
}

TEST(GpuVariables, ScatterChecksIndexTypesAndDivisorsOnHost) {
  Variable n = variable_on(kGpu, Tensor::full({3}, 6.0, DType::kInt64));
  const auto divide = [&](Device device) {
    n.scatter_div({Tensor::from<std::int64_t>({2}, {0, 2}, device),
                   Tensor::from<std::int64_t>({2}, {0, 1}, device), Shape{3}});
  };
  EXPECT_INVALID(divide(Device{}), "by zero");
  expect_tensor(n.value(), {3}, {6, 6, 6});
  divide(kGpu);  // GPUs do not check divisors; division by 0 leaves the element unchanged
  expect_tensor(n.value(), {3}, {6, 3, 6});
  EXPECT_INVALID(
      n.scatter_add({Tensor::full({1}, 1.0, DType::kInt64, kGpu), Tensor::ones({1}).to(kGpu), {3}}),
      "int32 or int64", "float32");
}

TEST(GpuVariables, ScatterRejectsOrSkipsOutOfRangeRows) {
  const Tensor start = numbers({5, 2}, 1, 1.0, 2.0);
  const IndexedSlices slices{numbers({3, 2}, 2, 1.0, 2.0),
                             Tensor::from<std::int64_t>({3}, {4, 0, 4}), Shape{5, 2}};
  Variable w = variable_on(kGpu, start);
  EXPECT_INVALID(
      w.scatter_add({slices.values, Tensor::from<std::int64_t>({3}, {4, 5, 0}), Shape{5, 2}}),
      "'w'", "out of range");
  // The kernel skips out-of-range rows that the host cannot detect.
  const Tensor rows = Tensor::from<std::int64_t>({3}, {-1, 5, 0}, kGpu);
  w.scatter_update({slices.values, rows, Shape{5, 2}});
  expect_tensor(w.value().detached_rows(0, 1), {1, 2},
                slices.values.detached_rows(2, 1).to_doubles());
  expect_same_bits(w.value().detached_rows(1, 4).to(Device{}), start.detached_rows(1, 4));
}

TEST(GpuVariables, CheckpointsRestoreAcrossDevices) {
  const std::string folder = TempDir() + "gpu_checkpoint";
  std::filesystem::remove_all(folder);
  const Tensor value = numbers({7, 3}, 1);
  const std::vector<Variable> gpu = {variable_on(kGpu, value)};
  std::vector<Variable> host = {variable_on(Device{}, Tensor::zeros({7, 3}))};
  Checkpoint(gpu).save(folder + "/a.safetensors");
  Checkpoint(host).restore(folder + "/a.safetensors");
  EXPECT_EQ(hash_variables(host), hash_variables(gpu));
  host[0].assign_add(1.0);
  Checkpoint(host).save(folder + "/b.safetensors");
  Checkpoint(gpu).restore(folder + "/b.safetensors");
  EXPECT_EQ(hash_variables(host), hash_variables(gpu));
  EXPECT_EQ(gpu[0].value().device(), kGpu);
}

/// Returns the weights after `num_steps` steps with predetermined gradients.
std::vector<Tensor> after_steps(const OptimizerSpec& spec, Device device, int num_steps,
                                int num_updates) {
  OneDeviceStrategy strategy(device);
  auto scope = strategy.scope();
  const Variable w(numbers({6, 5}, 1), {.name = "w"});
  const Variable b(numbers({5}, 2), {.name = "b"});
  const auto optimizer = make_optimizer(spec, std::vector{w, b});
  for (int step = 0; step < num_steps; ++step) {
    const auto seed = static_cast<std::uint64_t>(10 + step);
    strategy.run([&] {
      const std::vector<Gradient> gradients = {numbers({6, 5}, seed).to(device),
                                               numbers({5}, seed + 100).to(device)};
      optimizer->apply_gradients(gradients);
    });
  }
  optimizer->finalize_variable_values();
  EXPECT_EQ(w.value().device(), device);
  EXPECT_EQ(optimizer->iterations().value().item_int(), num_updates);
  return {w.value(), b.value()};
}

void compare_optimizer(const OptimizerSpec& spec, int num_steps = 4, int num_updates = 4) {
  const std::vector<Tensor> expected = after_steps(spec, Device{}, num_steps, num_updates);
  const std::vector<Tensor> actual = after_steps(spec, kGpu, num_steps, num_updates);
  for (std::size_t i = 0; i < expected.size(); ++i) expect_near(actual[i], expected[i], 1e-5);
}

class EveryOptimizerOnGpu : public TestWithParam<std::string> {};

TEST_P(EveryOptimizerOnGpu, AgreesWithTheCpu) { compare_optimizer(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Names, EveryOptimizerOnGpu, ValuesIn(optimizer_names()),
                         [](const auto& info) { return info.param; });

TEST(GpuOptimizers, OptimizerVariantsAgreeWithCpu) {
  compare_optimizer(SgdOptions{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true});
  compare_optimizer(AdamOptions{.amsgrad = true});
  compare_optimizer(RmspropOptions{.momentum = 0.5, .centered = true});
}

TEST(GpuOptimizers, CommonOptionsAgreeWithCpu) {
  const OptimizerSpec specs[] = {
      SgdOptions{.learning_rate = 0.1, .weight_decay = 0.05},
      SgdOptions{.learning_rate = 0.1,
                 .ema = EmaOptions{.momentum = 0.8, .overwrite_frequency = 2}},
      AdamOptions{.clipping = {.clipvalue = 0.3}},
      AdamOptions{.clipping = {.clipnorm = 0.5}},
      SgdOptions{.learning_rate = 0.1, .clipping = {.global_clipnorm = 0.5}},
      SgdOptions{
          .learning_rate = 0.1,
          .dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 8.0, .growth_steps = 2}},
  };
  for (const OptimizerSpec& spec : specs) compare_optimizer(spec);
  compare_optimizer(SgdOptions{.learning_rate = 0.1, .gradient_accumulation_steps = 2}, 4, 2);
}

TEST(GpuOptimizers, InfiniteGradientsPreventUpdateAndHalveLossScale) {
  OneDeviceStrategy strategy(kGpu);
  auto scope = strategy.scope();
  const Variable w(Tensor::ones({3}), {.name = "w"});
  SgdOptions options{.learning_rate = 0.1};
  options.dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 16.0};
  const auto optimizer = make_optimizer(options, std::vector{w});
  strategy.run([&] {
    const Gradient bad = Tensor::from<float>({3}, {1, HUGE_VALF, 1}, kGpu);
    optimizer->apply_gradients({&bad, 1});
  });
  expect_tensor(w.value(), {3}, {1, 1, 1});
  EXPECT_EQ(optimizer->loss_scale(), 8.0);
}

TEST(GpuOptimizers, SparseGradientsAgreeWithTheCpu) {
  for (const OptimizerSpec& spec : {OptimizerSpec("sgd"), OptimizerSpec("adam")}) {
    const auto weights = [&](Device device) {
      OneDeviceStrategy strategy(device);
      auto scope = strategy.scope();
      const Variable w(numbers({6, 2}, 1), {.name = "w"});
      const auto optimizer = make_optimizer(spec, std::vector{w});
      strategy.run([&] {
        GradientTape tape;
        const Tensor rows = gather(w, Tensor::from<std::int64_t>({3}, {4, 1, 4}, device));
        optimizer->minimize(tape, reduce_sum(square(rows)));
      });
      return w.value();
    };
    expect_near(weights(kGpu), weights(Device{}), 1e-5);
  }
}

}  // namespace tutti::testing::captured_step_test

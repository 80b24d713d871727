// Tests variables, optimizers and checkpoints with values on a GPU.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/gpu/gpu_helpers.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategies.h"

namespace tutti {
namespace {

using gpu_tests::expect_near;
using gpu_tests::expect_tensor;
using gpu_tests::kGpu;

/// Returns a variable with one component on `device`.
Variable variable_on(Device device, const Tensor& value, const std::string& name = "w") {
  return Variable(make_local_storage(value, device, {.name = name}));
}

TEST(GpuVariables, LiveOnTheirDevice) {
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

TEST(GpuVariables, KeepTheirPlaceWhenNobodyHoldsTheirValue) {
  Variable w = variable_on(kGpu, Tensor::from<float>({3}, {1, 2, 3}));
  const void* const place = w.value().address();
  w.assign(Tensor::from<float>({3}, {4, 5, 6}));
  w.assign_add(1.0);
  EXPECT_EQ(w.value().address(), place);
}

TEST(GpuVariables, CountsAreIntegers) {
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

TEST(GpuVariables, ScatterOperationsOfEveryTypeHaveTheBitsOfTheCpu) {
  for (const DType dtype : kAllDTypes) {
    // One type uses several blocks of threads and tiles of indices; others do not, because emulated
    // threads are slow.
    const bool is_large = dtype == DType::kFloat32;
    const std::int32_t count = is_large ? 600 : 70;
    for (const std::int64_t width : {1, is_large ? 300 : 33}) {
      const Tensor start = cast(gpu_tests::numbers({9, width}, 1, 1.0, 9.0), dtype);
      const Tensor values = cast(gpu_tests::numbers({count, width}, 2, 1.0, 9.0), dtype);
      std::vector<std::int32_t> rows;
      for (std::int32_t i = 0; i < count; ++i) rows.push_back(i * i % 8);  // row 8: never
      const Tensor indices = Tensor::from<std::int32_t>({count}, rows);
      for (const auto& [name, scatter] : kScatters) {
        if (dtype == DType::kBool && scatter != &Variable::scatter_update) continue;
        if (dtype == DType::kInt32 && scatter == &Variable::scatter_mul) continue;  // overflows
        if (dtype == DType::kInt64 && scatter == &Variable::scatter_mul) continue;
        SCOPED_TRACE(concat(name, " ", dtype, " ", width));
        Variable host = variable_on(Device{}, start), gpu = variable_on(kGpu, start);
        (host.*scatter)({values, indices, start.shape()});
        (gpu.*scatter)({values.to(kGpu), indices.to(kGpu), start.shape()});
        testing::expect_same_bits(gpu.value().to(Device{}), host.value());
      }
    }
  }
}

TEST(GpuVariables, ScatterChecksWhatTheHostHas) {
  Variable n = variable_on(kGpu, Tensor::full({3}, 6.0, DType::kInt64));
  const auto divide = [&](Device device) {
    n.scatter_div({Tensor::from<std::int64_t>({2}, {0, 2}, device),
                   Tensor::from<std::int64_t>({2}, {0, 1}, device), Shape{3}});
  };
  EXPECT_INVALID(divide(Device{}), "by zero");
  expect_tensor(n.value(), {3}, {6, 6, 6});
  divide(kGpu);  // unchecked: division by 0 has no effect
  expect_tensor(n.value(), {3}, {6, 3, 6});
  EXPECT_INVALID(
      n.scatter_add({Tensor::full({1}, 1.0, DType::kInt64, kGpu), Tensor::ones({1}).to(kGpu), {3}}),
      "int32 or int64", "float32");
}

TEST(GpuVariables, ScatterRefusesOrLeavesOutRowsOutOfRange) {
  const Tensor start = gpu_tests::numbers({5, 2}, 1, 1.0, 2.0);
  const IndexedSlices slices{gpu_tests::numbers({3, 2}, 2, 1.0, 2.0),
                             Tensor::from<std::int64_t>({3}, {4, 0, 4}), Shape{5, 2}};
  Variable w = variable_on(kGpu, start);
  EXPECT_INVALID(
      w.scatter_add({slices.values, Tensor::from<std::int64_t>({3}, {4, 5, 0}), Shape{5, 2}}),
      "'w'", "out of range");
  // Out-of-range rows that only the kernel can detect are skipped.
  const Tensor rows = Tensor::from<std::int64_t>({3}, {-1, 5, 0}, kGpu);
  w.scatter_update({slices.values, rows, Shape{5, 2}});
  expect_tensor(w.value().detached_rows(0, 1), {1, 2},
                slices.values.detached_rows(2, 1).to_doubles());
  testing::expect_same_bits(w.value().detached_rows(1, 4).to(Device{}), start.detached_rows(1, 4));
}

TEST(GpuVariables, CheckpointsTravelBetweenDevices) {
  const std::string folder = ::testing::TempDir() + "gpu_checkpoint";
  std::filesystem::remove_all(folder);
  const Tensor value = gpu_tests::numbers({7, 3}, 1);
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

/// Returns the weights after `num_steps` steps over given gradients.
std::vector<Tensor> after_steps(const OptimizerSpec& spec, Device device, int num_steps,
                                int num_updates) {
  OneDeviceStrategy strategy(device);
  auto scope = strategy.scope();
  const Variable w(gpu_tests::numbers({6, 5}, 1), {.name = "w"});
  const Variable b(gpu_tests::numbers({5}, 2), {.name = "b"});
  const auto optimizer = make_optimizer(spec, std::vector{w, b});
  for (int step = 0; step < num_steps; ++step) {
    const auto seed = static_cast<std::uint64_t>(10 + step);
    strategy.run([&] {
      const std::vector<Gradient> gradients = {gpu_tests::numbers({6, 5}, seed).to(device),
                                               gpu_tests::numbers({5}, seed + 100).to(device)};
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

class EveryOptimizerOnGpu : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryOptimizerOnGpu, AgreesWithTheCpu) { compare_optimizer(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Names, EveryOptimizerOnGpu, ::testing::ValuesIn(optimizer_names()),
                         [](const auto& info) { return info.param; });

TEST(GpuOptimizers, VariantsAgreeWithTheCpu) {
  compare_optimizer(SgdOptions{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true});
  compare_optimizer(AdamOptions{.amsgrad = true});
  compare_optimizer(RmspropOptions{.momentum = 0.5, .centered = true});
}

TEST(GpuOptimizers, SharedOptionsAgreeWithTheCpu) {
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

TEST(GpuOptimizers, InfiniteGradientsSkipTheUpdateAndHalveTheScale) {
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
      const Variable w(gpu_tests::numbers({6, 2}, 1), {.name = "w"});
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

}  // namespace
}  // namespace tutti

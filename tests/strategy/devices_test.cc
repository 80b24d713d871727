// Tests devices under strategies: placement of variables and replicas (by default, from a list, on
// GPUs), devices of values that a step creates or captures, and the cost of an empty step.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <iostream>
#include <map>

#include "tests/strategy/strategy_helpers.h"
#include "tests/strategy/worker_threads.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/embedding_lookup.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/value_generator.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/variables/sharded_variable.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::strategy_tests::devices_test {
using ::testing::ElementsAre;

std::vector<StrategyCase> strategies() {
  std::vector<StrategyCase> cases = all_strategies();
  cases.push_back(
      {"one_device_cpu_3", [] { return std::make_unique<OneDeviceStrategy>("cpu:3"); }});
  cases.push_back({"central_3_devices_6_replicas", [] { return central(3, 6); }});
  cases.push_back({"parameter_server_3", [] { return parameter_server(3); }});
  return cases;
}

class StepDevices : public AllStrategies {};
INSTANTIATE_TEST_SUITE_P(, StepDevices, ::testing::ValuesIn(strategies()), case_name);

/// Returns a float32 vector of two elements on the replica's device, like a row of a batch.
Tensor own_data() { return vec({1.0f, 2.0f}); }

Variable mean_variable(const Tensor& initial, const char* name) {
  return Variable(initial, {.name = name, .aggregation = VariableAggregation::kMean});
}

/// Expressions that create a tensor from constants, keyed by name.
using Makers = std::map<std::string, std::function<Tensor()>>;
Makers makers() {
  const std::vector<float> two = {1.0f, 2.0f};
  const RandomKey key{.seed = 3};
  return {
      {"Tensor(float)", [] { return Tensor(1.0f); }},
      {"Tensor = 0.0f",
       [] {
         Tensor total = 0.0f;
         return total;
       }},
      {"zeros", [] { return Tensor::zeros({2}); }},
      {"ones", [] { return Tensor::ones({2}); }},
      {"full", [] { return Tensor::full({2}, 3.0); }},
      {"scalar", [] { return Tensor::scalar(3.0, DType::kFloat32); }},
      {"from a span", [=] { return Tensor::from({2}, std::span<const float>(two)); }},
      {"from a list",
       [] {
         return Tensor::from<float>({2}, {1.0f, 2.0f});
       }},
      {"from a vector", [=] { return Tensor::from({2}, two); }},
      {"from_bytes",
       [=] { return Tensor::from_bytes({2}, DType::kFloat32, std::as_bytes(std::span(two))); }},
      {"random_uniform", [=] { return random_uniform({2}, key); }},
      {"random_normal", [=] { return random_normal({2}, key); }},
      {"truncated_normal", [=] { return truncated_normal({2}, key); }},
      {"random_uniform_from", [=] { return random_uniform_from(4, {2}, key, 0.0, 1.0); }},
      {"random_normal_from", [=] { return random_normal_from(4, {2}, key, 0.0, 1.0); }},
      {"truncated_normal_from", [=] { return truncated_normal_from(4, {2}, key, 0.0, 1.0); }},
      {"ValueGenerator", [] { return ValueGenerator{.a = 2.0, .shape = {2}}.rows(0, 2); }},
      {"of two numbers", [] { return add(1.0f, 2.0f); }},
      {"of one number", [] { return exp(1.0f); }},
      {"where of two numbers", [] { return where(greater(own_data(), 1.5f), 1.0f, 0.0f); }},
      {"where of a number and a tensor",
       [] { return where(greater(own_data(), 1.5f), own_data(), Tensor(-1e9f)); }},
      {"one_hot",
       [] {
         return one_hot(Tensor::from<std::int64_t>({2}, {0, 1}), 2);
       }},
      {"rows of a gradient",
       [] {
         return IndexedSlices{Tensor::ones({1}), Tensor::from<std::int64_t>({1}, {1}), Shape{2}}
             .to_dense();
       }},
  };
}

void expect_makers_make_here() {
  const Tensor x = own_data();
  for (const auto& [name, make] : makers()) {
    SCOPED_TRACE(concat(name, " in replica ", replica_number()));
    const Tensor made = make();
    EXPECT_EQ(made.device(), here());
    const Tensor sum = x + made;
    EXPECT_EQ(sum.device(), here());
    const NoDeviceScope nothing_moves;
    EXPECT_EQ(numbers(sum), numbers(x.to(Device{}) + made.to(Device{})));
  }
}

TEST_P(StepDevices, TensorsAreCreatedOnReplicaDevice) { strategy_->run(expect_makers_make_here); }

TEST(MultiWorkerStepDevices, TensorsAreCreatedOnReplicaDevice) {
  expect_no_error(run_workers(workers_with({2, 2}), [](MultiWorkerMirroredStrategy& strategy) {
    strategy.run(expect_makers_make_here);
  }));
}

TEST_P(StepDevices, CapturedHostTensorGetsGradientOnHost) {
  const Tensor scale = Tensor::from<float>({2}, {3.0f, 5.0f});
  const auto gradients = strategy_->run([&] {
    GradientTape tape;
    tape.watch(scale);
    const Tensor loss = reduce_sum(scale * own_data());
    EXPECT_EQ(loss.device(), here());
    return tape.gradient(loss, scale).dense();
  });
  for (const Tensor& gradient : gradients) {
    EXPECT_EQ(gradient.device(), scale.device());
    EXPECT_EQ(numbers(gradient), (std::vector<double>{1.0, 2.0}));
  }
}

TEST_P(StepDevices, CapturedHostTensorsCanBeAssignedToVariables) {
  Variable equal, own, row, plain(Tensor(2.0f));
  {
    const auto scope = strategy_->scope();
    equal = mean_variable(Tensor::zeros({2}), "equal");
    own = on_read(Tensor::zeros({2}), VariableAggregation::kSum, "own");
    row = mean_variable(Tensor::zeros({3, 1}), "row");
  }
  const Tensor value = Tensor::from<double>({2}, {3.0, 5.0});  // also needs a conversion to float32
  const IndexedSlices second{Tensor::full({1, 1}, 6.0), Tensor::from<std::int64_t>({1}, {1}),
                             Shape{3, 1}};
  const auto sums = strategy_->run([&] {
    equal.assign(value);
    own.assign_add(value);
    row.scatter_add(second);
    return equal.value() + own.value() + plain.value();
  });
  EXPECT_EQ(numbers(equal.value()), (std::vector<double>{3.0, 5.0}));
  EXPECT_EQ(numbers(own.value()), (std::vector<double>{3.0 * replicas(), 5.0 * replicas()}));
  EXPECT_EQ(numbers(row.value()), (std::vector<double>{0.0, 6.0, 0.0}));
  for (const Tensor& sum : sums) EXPECT_EQ(numbers(sum), (std::vector<double>{8.0, 12.0}));
}

TEST_P(StepDevices, CapturedHostTensorsCanBeReducedAndGathered) {
  const Tensor value = Tensor::from<float>({1}, {3.0f});
  strategy_->run([&] {
    ReplicaContext& context = ReplicaContext::current();
    const Tensor sum = context.all_reduce(ReduceOp::kSum, value) + own_data();
    const Tensor all = context.all_gather(value, 0) + Tensor(1.0f);
    EXPECT_EQ(numbers(sum), (std::vector<double>{3.0 * replicas() + 1, 3.0 * replicas() + 2}));
    EXPECT_EQ(numbers(all), copies_of(4.0, replicas()));
  });
}

TEST_P(StepDevices, CustomGradientCreatesConstantsOnReplicaDevice) {
  const auto gradients = strategy_->run([] {
    const Tensor x = own_data();
    GradientTape tape;
    tape.watch(x);
    Tensor y;
    {
      const GradientTape::StopRecording stop;
      y = x * 3.0f;
    }
    record_custom_gradient(std::span(&x, 1), std::span(&y, 1), [](std::span<const Tensor> dy) {
      return std::vector<Gradient>{dy[0] * Tensor::from<float>({2}, {3.0f, 4.0f})};
    });
    return tape.gradient(reduce_sum(y), x).dense();
  });
  for (const Tensor& each : gradients) EXPECT_EQ(numbers(each), (std::vector<double>{3.0, 4.0}));
}

// Covers sharded and unsharded tables, with ids on the host or on the replica's device.
TEST_P(StepDevices, EmbeddingLookupAcceptsCapturedIds) {
  const auto scope = strategy_->scope();
  const Tensor values = Tensor::from<float>({4, 1}, {0.0f, 10.0f, 20.0f, 30.0f});
  const Variable whole = mean_variable(values, "whole");
  const Variable parts = ShardedVariable({mean_variable(values.detached_rows(0, 2), "part_0"),
                                          mean_variable(values.detached_rows(2, 2), "part_1")});
  const Tensor ids = Tensor::from<std::int64_t>({3}, {3, 1, 3});
  const SparseIds sparse{ids, Tensor::from<std::int64_t>({3}, {0, 0, 1}), 2};
  strategy_->run([&] {
    for (const Variable& table : {whole, parts}) {
      SCOPED_TRACE(table.name());
      for (const Tensor& wanted : {ids, ids.to(here())}) {
        GradientTape tape;
        const Tensor rows = embedding_lookup(table, wanted);
        EXPECT_EQ(rows.device(), here());
        EXPECT_EQ(numbers(rows), (std::vector<double>{30, 10, 30}));
        const Gradient gradient = tape.gradient(reduce_sum(rows * 2.0f), table);
        EXPECT_EQ(numbers(gradient.to_dense()), (std::vector<double>{0, 2, 0, 4}));
      }
      EXPECT_EQ(
          numbers(safe_embedding_lookup_sparse(table, sparse) + own_data().detached_rows(0, 1)),
          (std::vector<double>{21, 31}));
    }
  });
}

TEST_P(StepDevices, ShardedEmbeddingRowsAreTrained) {
  const auto scope = strategy_->scope();
  const Variable table = ShardedVariable({mean_variable(Tensor::ones({2, 1}), "part_0"),
                                          mean_variable(Tensor::ones({2, 1}), "part_1")});
  Sgd optimizer(std::vector<Variable>{table}, {.learning_rate = 0.5});
  const Tensor ids = Tensor::from<std::int64_t>({2}, {0, 3});
  strategy_->run([&] {
    GradientTape tape;
    optimizer.minimize(tape, reduce_sum(embedding_lookup(table, ids)));
  });
  const double trained = 1.0 - 0.5 * replicas();
  EXPECT_EQ(numbers(table.value()), (std::vector<double>{trained, 1.0, 1.0, trained}));
}

TEST_P(StepDevices, DeviceScopeInsideStepOverridesReplicaDevice) {
  const DeviceScope around("cpu:7");
  strategy_->run([] {
    EXPECT_EQ(current_device(), here());
    {
      const DeviceScope own("cpu:5");
      EXPECT_EQ(Tensor(1.0f).device(), (Device{DeviceType::kCpu, 5}));
      EXPECT_EQ((own_data() + 1.0f).device(), (Device{DeviceType::kCpu, 5}));
    }
    EXPECT_EQ(current_device(), here());
    const NoDeviceScope none;
    EXPECT_EQ(current_device(), Device{});
  });
  EXPECT_EQ(current_device(), (Device{DeviceType::kCpu, 7}));
}

// A merge function runs outside any replica, no matter which replica arrived last; update() runs on
// each component's device.
TEST_P(StepDevices, MergeCallHasNoDeviceScopeOutsideUpdate) {
  const auto scope = strategy_->scope();
  Variable variable = mean_variable(Tensor::zeros({2}), "variable");
  const Tensor factor = Tensor::from<float>({2}, {2.0f, 3.0f});
  strategy_->run([&] {
    ReplicaContext::current().merge_call(
        [&](Strategy& strategy, const PerReplica<Tensor>& values) {
          EXPECT_EQ(DeviceScope::current(), nullptr);
          strategy.update(
              variable,
              [&](Variable& component, const Tensor& value) {
                EXPECT_EQ(current_device(), component.storage().devices().front());
                component.assign_add(value * factor + Tensor(1.0f));
              },
              values[0]);
          strategy.run(expect_makers_make_here);
        },
        own_data());
    EXPECT_EQ(current_device(), here());
  });
  EXPECT_EQ(numbers(variable.value()), (std::vector<double>{3.0, 7.0}));
}

// A step copies only those captured values that are on another device, once per use.
TEST_P(StepDevices, CapturedRemoteValuesAreCopiedOncePerUse) {
  const auto scope = strategy_->scope();
  Variable table = mean_variable(random_normal({6, 2}, {.seed = 1}), "table");
  Variable bias = mean_variable(Tensor::zeros({2}), "bias");
  Variable moving = on_read(Tensor::zeros({2}), VariableAggregation::kMean, "moving");
  AdamOptions options{.learning_rate = 0.1};
  options.clipping.global_clipnorm = 1.0;
  Adam optimizer(std::vector<Variable>{table, bias}, options);
  DistributedDataset batches = strategy_->distribute_dataset(
      Dataset::from_tensor_slices(
          {Tensor::from<std::int64_t>({12}, {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0}),
           Tensor::ones({12, 2})})
          .batch(12));
  const Tensor captured = Tensor(0.5f);
  for (const bool captures : {false, true}) {
    for (const PerReplica<Batch>& batch : batches) {
      const auto counts = strategy_->run(
          [&](const Batch& own) {
            const TransferLog log;
            GradientTape tape;
            const Tensor x = gather(table.value(), own.features()) + bias.value();
            const Tensor dropped = dropout(x, 0.25, {.seed = 2}) + Tensor(1.0f);
            Tensor loss = reduce_sum(square(dropped - own.labels())) / 12.0f;
            if (captures) loss = loss * captured;
            moving.assign(moving.value() * 0.9f + reduce_mean(x, {{0}}) * 0.1f);
            optimizer.minimize(tape, loss);
            (void)ReplicaContext::current().all_reduce(ReduceOp::kSum, loss);
            return static_cast<int>(log.count());
          },
          batch);
      for (std::size_t r = 0; r < counts.size(); ++r) {
        const bool moves = captures && strategy_->replica_devices()[r] != captured.device();
        EXPECT_EQ(counts[r], moves ? 1 : 0) << "replica " << r;
      }
    }
  }
}

constexpr Device on_cpu(int index) { return {DeviceType::kCpu, index}; }

Tensor zeros_for(const InitializerContext& context) {
  return Tensor::zeros({2}, DType::kFloat32, context.device);
}

TEST(StrategyDeviceScopes, StrategyPlacementOverridesDeviceScopes) {
  const auto strategy = mirrored(2);
  {
    const DeviceScope around("cpu:5");
    const auto scope = strategy->scope();
    const Variable variable(zeros_for);
    EXPECT_THAT(variable.storage().devices(), ElementsAre(on_cpu(0), on_cpu(1)));
  }
  const auto scope = strategy->scope();
  const DeviceScope inside("/job:localhost/device:CPU:5");
  const Variable variable(zeros_for);
  EXPECT_THAT(variable.storage().devices(), ElementsAre(on_cpu(0), on_cpu(1)));
  EXPECT_EQ(Tensor::zeros({2}).device(),
            on_cpu(5));  // tensors are still created on the scope's device
}

// Placement alternates between the servers as usual: ps0, ps1, ps0.
TEST(StrategyDeviceScopes, DeviceScopesDoNotAffectRoundRobinPlacement) {
  const auto strategy = parameter_server(1);
  const auto scope = strategy->scope();
  std::vector<std::string> servers;
  for (const char* text : {"", "cpu:3", "/cpu:1"}) {
    const DeviceScope device(text);
    servers.push_back(strategy->shards_of(Variable(zeros_for)).at(0).device);
  }
  EXPECT_THAT(servers, ElementsAre("/job:ps/replica:0/task:0/device:CPU:0",
                                   "/job:ps/replica:0/task:1/device:CPU:0",
                                   "/job:ps/replica:0/task:0/device:CPU:0"));
}

TEST(StrategyDeviceScopes, OptimizersUpdateOnVariableDevice) {
  std::vector<Variable> variables;
  for (const char* device : {"cpu:1", "cpu:2"}) {
    const DeviceScope scope(device);
    variables.emplace_back(Tensor::full({2}, 1.0), VariableOptions{.name = device});
  }
  SgdOptions options{.learning_rate = 0.5, .momentum = 0.9};
  // Clipping by this norm needs the gradients of all devices.
  options.clipping.global_clipnorm = 1.0;
  Sgd optimizer(variables, options);
  const DeviceScope elsewhere("cpu:4");
  GradientTape tape;
  const Tensor loss = reduce_sum(variables[0] * 3.0f) + reduce_sum(variables[1] * 4.0f);
  optimizer.minimize(tape, loss);  // the norm of (3, 3, 4, 4) is sqrt(50)
  const double length = std::sqrt(50.0);
  testing::expect_tensor(variables[0], {2}, {1 - 1.5 / length, 1 - 1.5 / length}, 1e-6);
  testing::expect_tensor(variables[1], {2}, {1 - 2.0 / length, 1 - 2.0 / length}, 1e-6);
  EXPECT_EQ(variables[0].value().device(), on_cpu(1));
  EXPECT_EQ(variables[1].value().device(), on_cpu(2));
}

// Ten thousand empty steps (like an empty Session.run) do not start a thread or create a tensor.
// Prints the cost per step; benchmarks/train_step/empty_steps.cc measures it in more detail.
TEST(StrategyDeviceScopes, EmptyStepsDoNotStartThreadsOrAllocateTensors) {
  constexpr int kSteps = 10'000;
  const auto strategy = mirrored(2);
  std::array<int, 2> runs{};
  const auto step = [&] { ++runs[static_cast<std::size_t>(get_replica_context()->replica_id())]; };
  strategy->run(step);
  const int threads = num_running_threads();
  const std::uint64_t allocations = allocator_statistics().allocations;
  const std::int64_t first = strategy->save_state().at("step").as_int();
  const TimePoint begin = Clock::system().now();
  for (int i = 0; i < kSteps; ++i) strategy->run(step);
  const double microseconds = 1e6 * seconds_between(begin, Clock::system().now()) / kSteps;
  EXPECT_EQ(strategy->save_state().at("step").as_int() - first, kSteps);
  EXPECT_EQ(runs[0], kSteps + 1);
  EXPECT_EQ(runs[1], kSteps + 1);
  EXPECT_EQ(num_running_threads(), threads);
  EXPECT_EQ(allocator_statistics().allocations, allocations);
  RecordProperty("microseconds_per_step", std::to_string(microseconds));
  std::cout << "an empty step of two replicas: " << microseconds << " us (goal: 20)\n";
}

using testing::FakeGpus;

/// Returns options that select the canonical reduction; the default depends on whether NCCL sees
/// the fake GPUs.
LocalStrategyOptions in_canonical_order() {
  LocalStrategyOptions options;
  options.deterministic = true;
  return options;
}

std::vector<Device> first_gpus(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({DeviceType::kGpu, i});
  return devices;
}

/// Returns the device of each replica's tensors.
std::vector<Device> computing_devices(Strategy& strategy) {
  std::vector<Device> devices;
  for (const Tensor& tensor : strategy.run([] { return num(1.0); })) {
    devices.push_back(tensor.device());
  }
  return devices;
}

TEST(GpuPlacement, MirroredStrategyDefaultsToAllGpus) {
  for (const int count : {0, 1, 2, 5}) {
    SCOPED_TRACE(count);
    const FakeGpus gpus(count);
    MirroredStrategy strategy(in_canonical_order());
    EXPECT_EQ(strategy.num_replicas_in_sync(), std::max(count, 1));
    const std::vector<Device> expected =
        count == 0 ? std::vector<Device>{Device{}} : first_gpus(count);
    EXPECT_EQ(strategy.worker_devices(), expected);
    EXPECT_EQ(computing_devices(strategy), expected);
  }
}

// Host access to the memory of the fake GPUs would crash the test program.
TEST(GpuPlacement, HostNeverAccessesShardsOnGpus) {
  const FakeGpus gpus(2);
  LocalStrategyOptions options = in_canonical_order();
  options.devices = "gpu:0-1";
  for (const int stage : {1, 2, 3}) {
    FullyShardedStrategy strategy({.local = options, .stage = stage, .min_shard_bytes = 0});
    const auto scope = strategy.scope();
    const Variable variable(Tensor::full({40, 2}, 3.0), {.name = "v"});
    Sgd sgd(std::vector<Variable>{variable}, {.learning_rate = 0.5});
    EXPECT_EQ(variable.storage().devices(), first_gpus(2));
    const auto read = strategy.run([&] {
      const AutocastScope types(DType::kBFloat16);
      GradientTape tape;
      const Tensor value = variable.value();
      sgd.minimize(tape, reduce_sum(cast(value, DType::kFloat32)));
      return value;
    });
    for (std::size_t r = 0; r < read.size(); ++r) {
      EXPECT_EQ(read[r].device(), first_gpus(2)[r]);
      EXPECT_EQ(numbers(read[r]), copies_of(3.0, 80));
    }
    EXPECT_EQ(numbers(variable.value()), copies_of(2.0, 80));
  }
}

TEST(GpuPlacement, CentralStorageUsesHostUnlessThereIsOneGpu) {
  for (const int count : {0, 1, 2}) {
    SCOPED_TRACE(count);
    const FakeGpus gpus(count);
    CentralStorageStrategy strategy({.local = in_canonical_order()});
    const auto scope = strategy.scope();
    const Variable variable(Tensor::ones({3}), {.name = "v"});
    const Device home = count == 1 ? Device{DeviceType::kGpu, 0} : Device{};
    EXPECT_EQ(strategy.parameter_devices(), std::vector<Device>{home});
    EXPECT_EQ(variable.storage().devices(), std::vector<Device>{home});
    const std::vector<Device> expected =
        count == 0 ? std::vector<Device>{Device{}} : first_gpus(count);
    EXPECT_EQ(computing_devices(strategy), expected);
    // Each replica reads the variable on its own device.
    const auto read = strategy.run([&] { return variable.value(); });
    for (std::size_t r = 0; r < read.size(); ++r) EXPECT_EQ(read[r].device(), expected[r]);
  }
}

}  // namespace tutti::strategy_tests::devices_test

// Tests device scopes and strategies: placement of variables, devices of replicas, cost of an empty
// step.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device_scope.h"

#include <array>
#include <cmath>
#include <iostream>

#include "tests/strategy/strategy_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/optimizer/sgd.h"

namespace tutti {
namespace {
using strategy_tests::mirrored;
using strategy_tests::parameter_server;
using ::testing::ElementsAre;

namespace strategy_device_scopes {
constexpr Device on_cpu(int index) { return {DeviceType::kCpu, index}; }

Tensor zeros_for(const InitializerContext& context) {
  return Tensor::zeros({2}, DType::kFloat32, context.device);
}

}  // namespace strategy_device_scopes

using namespace strategy_device_scopes;

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
  EXPECT_EQ(Tensor::zeros({2}).device(), on_cpu(5));  // other values follow the scope
}

// The round robin over servers continues: ps0, ps1, ps0.
TEST(StrategyDeviceScopes, RoundRobinOverServersContinues) {
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

TEST(StrategyDeviceScopes, OptimizersUpdateWhereVariablesAre) {
  std::vector<Variable> variables;
  for (const char* device : {"cpu:1", "cpu:2"}) {
    const DeviceScope scope(device);
    variables.emplace_back(Tensor::full({2}, 1.0), VariableOptions{.name = device});
  }
  SgdOptions options{.learning_rate = 0.5, .momentum = 0.9};
  options.clipping.global_clipnorm = 1.0;  // needs the gradients of all devices
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

// Ten thousand empty steps (like an empty Session.run) start no thread and create no tensor. Prints
// the cost of a step; benchmarks/train_step/empty_steps.cc measures more.
TEST(StrategyDeviceScopes, EmptyStepsStartNoThreadAndAllocateNothing) {
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

}  // namespace
}  // namespace tutti

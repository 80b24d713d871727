// Variables in device scopes, and gradients that flow back through transfers.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/variable.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

namespace device_scope_gradients {

constexpr Device on_cpu(int index) { return {DeviceType::kCpu, index}; }

Tensor numbers(const Shape& shape, std::uint64_t seed) {
  return random_uniform(shape, {.seed = seed, .purpose = kUserPurpose}, -1.0, 1.0);
}

/// The document's program: weights_1 and biases_1 on the first device, weights_2 and biases_2 on
/// the second, everything that computes on the third.
struct ThreeDevices {
  explicit ThreeDevices(const std::vector<std::string>& devices) : compute(devices[2]) {
    {
      const DeviceScope scope(devices[0]);
      variables.emplace_back(numbers({6, 5}, 1), VariableOptions{.name = "weights_1"});
      variables.emplace_back(numbers({5}, 2), VariableOptions{.name = "biases_1"});
    }
    const DeviceScope scope(devices[1]);
    variables.emplace_back(numbers({5, 3}, 3), VariableOptions{.name = "weights_2"});
    variables.emplace_back(numbers({3}, 4), VariableOptions{.name = "biases_2"});
  }
  /// The loss, then the gradients.
  std::vector<Tensor> step(const Tensor& x) {
    GradientTape tape;
    Tensor loss;
    {
      const DeviceScope scope(compute);
      const Tensor hidden = tanh(matmul(x, variables[0]) + variables[1]);
      loss = reduce_mean(square(matmul(hidden, variables[2]) + variables[3]));
    }
    std::vector<Tensor> results{loss};
    for (const Gradient& gradient : tape.gradient(loss, variables)) {
      results.push_back(gradient.dense());
    }
    return results;
  }
  std::string compute;
  std::vector<Variable> variables;
};

}  // namespace device_scope_gradients

using namespace device_scope_gradients;

TEST(DeviceScopeGradients, WeightsOnTwoDevicesAndTheComputationOnAThird) {
  const Tensor x = numbers({4, 6}, 9).to(on_cpu(2));
  ThreeDevices split({"/cpu:0", "/cpu:1", "/cpu:2"});
  TransferLog log;
  const std::vector<Tensor> results = split.step(x);
  std::vector<std::string> moved;
  for (const Transfer& transfer : log.transfers()) moved.push_back(transfer.to_string());
  EXPECT_THAT(
      moved,
      ::testing::ElementsAre(
          "cpu:0 -> cpu:2: float32 [6, 5], 120 bytes", "cpu:0 -> cpu:2: float32 [5], 20 bytes",
          "cpu:1 -> cpu:2: float32 [5, 3], 60 bytes", "cpu:1 -> cpu:2: float32 [3], 12 bytes",
          // the gradients go back, the last one first
          "cpu:2 -> cpu:1: float32 [3], 12 bytes", "cpu:2 -> cpu:1: float32 [5, 3], 60 bytes",
          "cpu:2 -> cpu:0: float32 [5], 20 bytes", "cpu:2 -> cpu:0: float32 [6, 5], 120 bytes"));
  EXPECT_EQ(log.bytes(), 2u * (120 + 20 + 60 + 12));

  ThreeDevices together({"/cpu:0", "/cpu:0", "/cpu:0"});
  const std::vector<Tensor> expected = together.step(x.to(on_cpu(0)));
  ASSERT_EQ(results.size(), 5u);
  for (std::size_t i = 0; i < results.size(); ++i) {
    testing::expect_same_bits(results[i], expected[i]);
  }
  EXPECT_EQ(results[1].device(), on_cpu(0));
  EXPECT_EQ(results[3].device(), on_cpu(1));
}

TEST(DeviceScopeGradients, VariablesAreOnTheDeviceOfTheScope) {
  const ThreeDevices split({"/cpu:0", "/device:CPU:1", "cpu:2"});
  std::vector<std::string> devices;
  for (const Variable& variable : split.variables) {
    devices.push_back(full_device_name(variable.storage().devices().at(0)));
    EXPECT_EQ(variable.value().device(), variable.storage().devices()[0]);
  }
  EXPECT_THAT(devices, ::testing::ElementsAre("/job:localhost/replica:0/task:0/device:CPU:0",
                                              "/job:localhost/replica:0/task:0/device:CPU:0",
                                              "/job:localhost/replica:0/task:0/device:CPU:1",
                                              "/job:localhost/replica:0/task:0/device:CPU:1"));
  const DeviceScope scope("cpu:3");
  const Variable made([](const InitializerContext& context) {
    EXPECT_EQ(context.device, on_cpu(3));
    return Tensor::zeros({2}, DType::kFloat32, context.device);
  });
  EXPECT_EQ(made.storage().devices().at(0), on_cpu(3));
  EXPECT_EQ(Variable(made.storage().create_slot("slot", 1.0)).value().device(), on_cpu(3));
}

// tf's towers: variables on the CPU by default, the computation on other devices.
TEST(DeviceScopeGradients, PlacementOfVariablesAndComputation) {
  const DeviceScope by_default("/cpu:0");
  const Variable weights(numbers({3, 2}, 5), {.name = "weights"});
  const Tensor x = numbers({4, 3}, 6);
  std::vector<std::string> lines;
  set_log_device_placement(true, [&](const std::string& line) { lines.push_back(line); });
  for (const char* tower : {"/cpu:1", "/cpu:2"}) {
    const DeviceScope scope(tower);
    matmul(x, weights);
  }
  set_log_device_placement(false);
  EXPECT_EQ(weights.storage().devices().at(0), on_cpu(0));
  EXPECT_THAT(lines,
              ::testing::ElementsAre("MatMul: /job:localhost/replica:0/task:0/device:CPU:1",
                                     "MatMul: /job:localhost/replica:0/task:0/device:CPU:2"));
}

TEST(DeviceScopeGradients, TheBackwardPassRunsWhereTheForwardPassRan) {
  const Variable v(Tensor::full({2}, 3.0), {.name = "v"});
  GradientTape tape({.persistent = true});
  Tensor y;
  {
    const DeviceScope scope("cpu:1");
    y = square(v);
  }
  const DeviceScope another("cpu:2");  // must not draw the walk to itself
  std::vector<std::string> lines;
  set_log_device_placement(true, [&](const std::string& line) { lines.push_back(line); });
  const Gradient gradient = tape.gradient(y, v);
  set_log_device_placement(false);
  EXPECT_EQ(gradient.dense().device(), on_cpu(0));
  testing::expect_tensor(gradient.dense(), {2}, {6, 6});
  ASSERT_FALSE(lines.empty());
  for (const std::string& line : lines) EXPECT_TRUE(line.ends_with("CPU:1")) << line;
}

TEST(DeviceScopeGradients, SecondDerivativesFlowThroughTransfers) {
  const Tensor x = Tensor::full({}, 2.0);
  GradientTape outer;
  outer.watch(x);
  Tensor first;
  {
    GradientTape inner;
    inner.watch(x);
    const Tensor moved = transfer(x, on_cpu(1));
    first = inner.gradient(moved * moved * moved, x).dense();  // 3 x^2
  }
  EXPECT_EQ(first.device(), on_cpu(0));
  EXPECT_FLOAT_EQ(first.item(), 12.0f);
  EXPECT_FLOAT_EQ(outer.gradient(first, x).dense().item(), 12.0f);  // 6 x
}

TEST(DeviceScopeGradients, AValueUsedOnTwoDevicesGetsTheSumWhereItIs) {
  const Variable v(Tensor::full({2}, 1.5), {.name = "v"});
  GradientTape tape;
  const Tensor here = v * 2.0f;
  const Tensor there = transfer(v, on_cpu(1)) * 5.0f;
  const Tensor total = here + transfer(there, on_cpu(0));
  const Gradient gradient = tape.gradient(total, v);
  EXPECT_EQ(gradient.dense().device(), on_cpu(0));
  testing::expect_tensor(gradient.dense(), {2}, {7, 7});
}

TEST(DeviceScopeGradients, NothingIsRecordedWhileRecordingStops) {
  const Tensor x = Tensor::ones({2});
  GradientTape tape;
  tape.watch(x);
  Tensor moved;
  {
    const GradientTape::StopRecording stop;
    moved = transfer(x, on_cpu(1));
  }
  EXPECT_TRUE(tape.gradient(moved * 2.0f, x).is_none());
}

TEST(GradientTape, GradientsOfVariablesAndTensorsInOneWalk) {
  const Variable w(Tensor::full({2}, 3.0), {.name = "w"});
  const Tensor x = Tensor::full({2}, 5.0);
  GradientTape tape;
  tape.watch(x);
  const Tensor y = w * x;
  tape.stop();
  (void)(w * 100.0f);  // not seen any more
  const std::vector<Variable> variables{w};
  const std::vector<Tensor> values{x};
  const std::vector<Gradient> gradients =
      tape.gradient_with(y, Tensor::full({2}, 2.0), variables, values);
  ASSERT_EQ(gradients.size(), 2u);
  testing::expect_tensor(gradients[0].dense(), {2}, {10, 10});
  testing::expect_tensor(gradients[1].dense(), {2}, {6, 6});
}

}  // namespace
}  // namespace tutti

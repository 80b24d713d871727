// Tests the lossy operations of examples/plugins: declared errors, state between steps, and
// training results.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/testing/cross_device_ops/report.h"
#include "tutti/tutti.h"

namespace tutti::conformance::plugin_examples_test {

std::string plugin(const std::string& name) {
  return load_cross_device_ops_plugin(TUTTI_TEST_PLUGINS "/" + name + ".so");
}

std::unique_ptr<CrossDeviceOps> two_replicas(const CrossDeviceOpsSpec& spec) {
  return build_cross_device_ops(spec,
                                {2, 0, {Device{DeviceType::kCpu, 0}, Device{DeviceType::kCpu, 1}}});
}

TEST(PluginExamples, ConformWithinDeclaredError) {
  for (const std::string name : {"int8_feedback", "top_k"}) {
    const Report report =
        run(Plan{.shapes = {GroupShape::kLocal}, .sample = 400}, Subject(plugin(name)));
    EXPECT_TRUE(report.passed()) << report.table("tutti conform " + name);
    EXPECT_NE(report.table("").find("largest error of a sum: "), std::string::npos);
    const double error = report.json().at("largest_error").as_double();
    EXPECT_GT(error, 0.0) << name;
    EXPECT_LE(error, name == "top_k" ? 1.0 : 0.5 / 127) << name;
  }
}

TEST(PluginExamples, ReceiveOptionsAndRefuseUnknownOptions) {
  const std::string top_k = plugin("top_k"), int8 = plugin("int8_feedback");
  EXPECT_EQ(two_replicas(make_cross_device_ops(top_k))->max_relative_error(), INFINITY);
  EXPECT_EQ(two_replicas(make_cross_device_ops(int8))->max_relative_error(), 0.5 / 127);
  // k=0.5 keeps the larger half of each replica's elements.
  const auto ops = two_replicas(make_cross_device_ops(top_k, {}, "k=0.5"));
  std::vector<float> a = {1, -8, 2, 4}, b = {3, 1, -6, 2};
  const ReplicaBuffer buffers[] = {
      {reinterpret_cast<std::byte*>(a.data()), 4, DType::kFloat32, Device{}},
      {reinterpret_cast<std::byte*>(b.data()), 4, DType::kFloat32, Device{DeviceType::kCpu, 1}}};
  ops->all_reduce_in_place(ReduceOp::kSum, buffers);
  EXPECT_EQ(a, (std::vector<float>{3, -8, -6, 4}));
  EXPECT_EQ(b, a);

  EXPECT_INVALID(two_replicas({.name = top_k, .plugin_options = "k=2"}), "top_k",
                 "option k: expected a number > 0 and <= 1", "\"k\":2");
  EXPECT_INVALID(make_cross_device_ops(top_k, {}, "kk=0.1"), "top_k has no option 'kk'",
                 "expected k", "did you mean 'k'");
  EXPECT_INVALID(make_cross_device_ops(int8, {}, "k=0.1"),
                 "int8_feedback has no option 'k'; it takes none");
}

/// Sums the same values many times; returns the largest difference between the mean of the results
/// and the exact sum.
double error_of_mean(const CrossDeviceOpsSpec& spec, std::uint64_t id) {
  const std::vector<float> a = {1.0f, 0.3f, 0.007f, -0.2f}, b = {-0.5f, 0.011f, 0.4f, 0.1f};
  const auto ops = two_replicas(spec);
  std::vector<double> total(a.size());
  constexpr int kCalls = 500;
  for (int call = 0; call < kCalls; ++call) {
    std::vector<float> values[] = {a, b};
    std::vector<ReplicaBuffer> buffers;
    for (std::vector<float>& each : values) {
      buffers.push_back({reinterpret_cast<std::byte*>(each.data()), each.size(), DType::kFloat32,
                         Device{}, nullptr, id, "bucket"});
    }
    ops->all_reduce_in_place(ReduceOp::kSum, buffers);
    for (std::size_t i = 0; i < a.size(); ++i) total[i] += double{values[0][i]};
  }
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(total[i] / kCalls - double{a[i]} - double{b[i]}));
  }
  return largest;
}

TEST(PluginExamples, KeepRoundingErrorPerBufferId) {
  for (const CrossDeviceOpsSpec& spec : {make_cross_device_ops(plugin("int8_feedback")),
                                         make_cross_device_ops(plugin("top_k"), {}, "k=0.5")}) {
    EXPECT_GT(error_of_mean(spec, 0), 1e-3) << spec.name;
    EXPECT_LT(error_of_mean(spec, 7), spec.name == "top_k" ? 1e-2 : 1e-4) << spec.name;
  }
}

/// Trains a logistic regression on two replicas, each with half of the rows. Returns the final
/// loss.
double final_loss(const CrossDeviceOpsSpec& spec, int steps) {
  constexpr std::int64_t kRows = 64, kColumns = 50;
  MirroredStrategy strategy(
      {.devices = "cpu:0-1", .cross_device_ops = spec, .deterministic = false});
  const auto scope = strategy.scope();
  const Tensor x = random_normal({kRows, kColumns}, RandomKey{7, kUserPurpose, 1, 0, 0});
  const Tensor truth = random_normal({kColumns, 1}, RandomKey{7, kUserPurpose, 2, 0, 0});
  const Tensor y = sigmoid(matmul(x, truth) * 4.0f);
  Variable w(Tensor::zeros({kColumns, 1}), {.name = "w"});
  Variable b(Tensor::zeros({1}), {.name = "b"});
  Sgd optimizer(std::vector<Variable>{w, b}, {.learning_rate = 1.0});
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    const auto losses = strategy.run([&] {
      const std::int64_t first = ReplicaContext::current().replica_id() * kRows / 2;
      GradientTape tape;
      const Tensor own = x.detached_rows(first, kRows / 2).copy();
      const Tensor p = sigmoid(matmul(own, w.value()) + b.value());
      const Tensor error = p - y.detached_rows(first, kRows / 2).copy();
      const Tensor own_loss = reduce_sum(square(error)) / static_cast<float>(kRows);
      optimizer.minimize(tape, own_loss);
      return own_loss;
    });
    loss = strategy.reduce(ReduceOp::kSum, losses).item();
  }
  return loss;
}

TEST(PluginExamples, ErrorFeedbackTrainsAsWellAsCanonicalSum) {
  constexpr int kSteps = 300;
  const double before = final_loss(make_cross_device_ops("canonical"), 1);
  const double canonical = final_loss(make_cross_device_ops("canonical"), kSteps);
  const double int8 = final_loss(make_cross_device_ops(plugin("int8_feedback")), kSteps);
  const double top_k = final_loss(make_cross_device_ops(plugin("top_k"), {}, "k=0.1"), kSteps);
  RecordProperty("losses", concat(before, " ", canonical, " ", int8, " ", top_k));
  EXPECT_LT(canonical, before / 5);
  EXPECT_LT(int8, 1.05 * canonical);
  EXPECT_LT(top_k, 1.5 * canonical);
}

}  // namespace tutti::conformance::plugin_examples_test

// Tests strategies that name XLA's devices: they run TpuStrategy's steps, and unsupported options
// are refused.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "tests/xla/xla_test_support.h"

namespace tutti {
namespace {

/// Returns 16 examples of 6 features and their sum, in batches of 8.
Dataset sums() {
  const Tensor features = random_normal({16, 6}, RandomKey{5});
  return Dataset::from_tensor_slices(features, reduce_sum(features, {{1}, true})).batch(8);
}

Trainee regression() {
  auto model = std::make_shared<Sequential>(Input{{6}}, Dense(4, {.activation = "tanh"}),
                                            Dropout(0.25), Dense(1));
  auto optimizer = std::make_shared<Adam>(model->trainable_variables(), AdamOptions{});
  auto step = [model, optimizer](const Batch& batch) {
    GradientTape tape;
    const Tensor predicted = (*model)(batch.features(), {.training = true});
    const Tensor losses = losses::mean_squared_error(batch.labels(), predicted);
    const Tensor loss = compute_average_loss(losses, batch.global_rows());
    optimizer->minimize(tape, loss);
    return loss;
  };
  const auto& all = model->variables();
  return {step, {all.begin(), all.end()}};
}

/// Trains with TpuStrategy, once per number of replicas.
const Trained& trained_by_tpu_strategy(int replicas) {
  static std::map<int, Trained> kept;
  const auto found = kept.find(replicas);
  if (found != kept.end()) return found->second;
  TpuStrategy tpu({.replicas = replicas});
  return kept[replicas] = train(tpu, sums(), regression, 4);
}

void expect_the_bits_of_tpu_strategy(Strategy& strategy, int replicas) {
  const Trained& expected = trained_by_tpu_strategy(replicas);
  const Trained got = train(strategy, sums(), regression, 4);
  EXPECT_EQ(strategy.num_replicas_in_sync(), replicas);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.weights, expected.weights);
  EXPECT_EQ(strategy.reduction_name(), "stablehlo.all_reduce");
}

TEST(MirroredOnXla, EverySpellingOfDevicesHasTheBitsOfTpuStrategy) {
  MirroredStrategy range("xla:0-3");
  expect_the_bits_of_tpu_strategy(range, 4);
  EXPECT_EQ(range.num_compiled(), 1);
  EXPECT_NE(range.last_program().find("stablehlo.all_reduce"), std::string::npos);
  MirroredStrategy names({.devices = {"xla:0", "/device:TPU:1"}, .replicas = 2});
  expect_the_bits_of_tpu_strategy(names, 2);
  MirroredStrategy values(std::vector<Device>{{DeviceType::kXla, 0}, {DeviceType::kXla, 1}});
  expect_the_bits_of_tpu_strategy(values, 2);
  TpuStrategy tpus({.devices = "tpu:0-1"});
  expect_the_bits_of_tpu_strategy(tpus, 2);
  expect_the_bits_of_tpu_strategy(*make_strategy("mirrored", {.devices = "xla:0,xla:1"}), 2);
  OneDeviceStrategy one("xla:0");
  expect_the_bits_of_tpu_strategy(one, 1);
  expect_the_bits_of_tpu_strategy(*make_strategy("one_device", {.devices = "tpu:0"}), 1);
}

TEST(MirroredOnXla, AnyDevicesInAnyOrderCompute) {
  MirroredStrategy last("xla:6-7"), turned({.devices = {"xla:2", "xla:1"}});
  OneDeviceStrategy third("xla:2");
  expect_the_bits_of_tpu_strategy(last, 2);
  expect_the_bits_of_tpu_strategy(turned, 2);
  expect_the_bits_of_tpu_strategy(third, 1);
}

TEST(MirroredOnXla, ValuesOfOneStrategyAreInputsOfAnother) {
  MirroredStrategy first("xla:0-1"), second("xla:2-3");
  const PerReplica<Tensor> made = first.run([] { return square(Tensor::full({2}, 3.0)); });
  const PerReplica<Tensor> used =
      second.run([](const Tensor& own) { return own + Tensor::ones({2}); }, made);
  for (const Tensor& each : used) EXPECT_EQ(each.to_doubles(), (std::vector<double>{10, 10}));
}

TEST(MirroredOnXla, ACapturedStepIsTheStepItself) {
  const auto run = [](bool captures) {
    MirroredStrategy strategy("xla:0-1");
    const auto make = [captures] {
      Trainee trainee = regression();
      if (captures) trainee.step = captured(trainee.step);
      return trainee;
    };
    const Trained result = train(strategy, sums(), make, 4);
    EXPECT_EQ(strategy.num_compiled(), 1);
    return result;
  };
  const Trained plain = run(false), captured_ones = run(true);
  EXPECT_EQ(captured_ones.losses, plain.losses);
  EXPECT_EQ(captured_ones.weights, plain.weights);
}

TEST(MirroredOnXla, WhatHasNoPartInItsStepsIsRefusedByName) {
  const auto expect_refused = [](const LocalStrategyOptions& options, const char* word) {
    try {
      MirroredStrategy strategy(options);
      ADD_FAILURE() << word << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
      EXPECT_NE(error.message().find(word), std::string::npos) << error.message();
    }
  };
  const DeviceList two = "xla:0-1";
  expect_refused({.devices = two, .replicas = 4}, "TUTTI_XLA_CPU_DEVICES");
  expect_refused({.devices = std::vector<Device>(2, {DeviceType::kXla, 0})}, "stands twice");
  expect_refused({.devices = two, .cross_device_ops = {"ring"}}, "cross_device_ops");
  const auto with = [&](const CommunicationOptions& communication) {
    return LocalStrategyOptions{.devices = two, .cross_device_ops = {"", communication}};
  };
  expect_refused(with({.bytes_per_pack = 1024}), "bytes_per_pack");
  expect_refused(with({.first_bytes_per_pack = 1024}), "first_bytes_per_pack");
  expect_refused(with({.implementation = CommunicationImplementation::kRing}), "cross_device_ops");
  expect_refused(with({.compression = WireCompression::kBFloat16}), "compression");
  expect_refused(with({.non_finite = NonFinitePolicy::kSkip}), "non_finite");
  expect_refused({.devices = two, .deterministic = true}, "deterministic");
  expect_refused({.devices = two, .replica_weights = {1, 2}}, "replica_weights");
  EXPECT_NO_THROW(MirroredStrategy({.devices = two, .cross_device_ops = {"canonical"}}));
}

TEST(MirroredOnXla, ADeviceThatIsNotThereIsUnavailableAndNamesThoseHere) {
  try {
    MirroredStrategy strategy("xla:7-8");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    for (const char* word : {"xla:8", "xla:0 ... xla:7 (cpu)", "TUTTI_XLA_CPU_DEVICES"})
      EXPECT_NE(error.message().find(word), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace tutti

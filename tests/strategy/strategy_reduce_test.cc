// Tests Strategy::reduce(), gather(), and values that a function creates for each replica.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/strategy/factory/make_strategy.h"

namespace tutti::strategy_tests::strategy_reduce_test {

using ReduceOnEveryStrategy = AllStrategies;
INSTANTIATE_TEST_SUITE_P(, ReduceOnEveryStrategy, ::testing::ValuesIn(all_strategies()), case_name);

TEST_P(ReduceOnEveryStrategy, AxisReductionIsExactForUnevenReplicas) {
  for (const DType dtype : {DType::kFloat32, DType::kInt32, DType::kInt64, DType::kFloat64}) {
    const auto lists = strategy_->run([dtype] {
      const int r = ReplicaContext::current().replica_id();
      return filled({r + 1}, r, dtype);
    });
    double sum = 0, count = 0;
    for (int r = 0; r < replicas(); ++r) {
      sum += r * (r + 1);
      count += r + 1;
    }
    EXPECT_EQ(strategy_->reduce(ReduceOp::kSum, lists, 0).item_double(), sum);
    EXPECT_EQ(strategy_->reduce(ReduceOp::kSum, lists, -1).item_double(), sum);
    const Tensor mean = strategy_->reduce(ReduceOp::kMean, lists, 0);
    EXPECT_NEAR(mean.item_double(), sum / count, 1e-6);
    EXPECT_TRUE(is_floating(mean.dtype()));
  }
}

TEST_P(ReduceOnEveryStrategy, HandlesSeveralAxesAndEmptyReplicas) {
  const auto values = strategy_->run([this] {
    const int r = ReplicaContext::current().replica_id();
    const bool is_last = r == replicas() - 1 && replicas() > 1;
    return filled({is_last ? 0 : 2, 3}, r + 1);
  });
  const int with_rows = replicas() > 1 ? replicas() - 1 : 1;
  double sum = 0;
  for (int r = 0; r < with_rows; ++r) sum += 6 * (r + 1);
  const std::vector<int> axes = {0, 1};
  EXPECT_EQ(strategy_->reduce(ReduceOp::kSum, values, axes).item(), static_cast<float>(sum));
  EXPECT_FLOAT_EQ(strategy_->reduce(ReduceOp::kMean, values, axes).item(),
                  static_cast<float>(sum / (6 * with_rows)));
  EXPECT_EQ(strategy_->reduce(ReduceOp::kMean, values, 0).shape(), Shape{3});
  EXPECT_INVALID(strategy_->reduce(ReduceOp::kSum, values, 2), "Strategy::reduce");
}

TEST_P(ReduceOnEveryStrategy, MeanOfIntegersUsesTrueDivision) {
  const auto values =
      strategy_->run([] { return num(ReplicaContext::current().replica_id(), DType::kInt32); });
  const Tensor mean = strategy_->reduce(ReduceOp::kMean, values);
  EXPECT_EQ(mean.dtype(), DType::kFloat32);
  EXPECT_FLOAT_EQ(mean.item(), static_cast<float>(replicas() - 1) / 2.0f);
}

TEST_P(ReduceOnEveryStrategy, UndistributedValueAllowsOnlyMean) {
  EXPECT_EQ(strategy_->reduce(ReduceOp::kMean, Tensor(3.0f)).item(), 3.0f);
  if (replicas() == 1) {
    EXPECT_EQ(strategy_->reduce(ReduceOp::kSum, Tensor(3.0f)).item(), 3.0f);
  } else {
    EXPECT_INVALID(strategy_->reduce(ReduceOp::kSum, Tensor(3.0f)), "not distributed");
  }
}

TEST_P(ReduceOnEveryStrategy, FailsInsideReplica) {
  EXPECT_ERROR(strategy_->run([this] { strategy_->reduce(ReduceOp::kMean, num(1.0)); }),
               kFailedPrecondition, "inside a replica");
}

TEST_P(ReduceOnEveryStrategy, DistributeValuesFromFunctionPassesReplicaId) {
  const auto ids = strategy_->distribute_values_from_function([this](const ValueContext& context) {
    EXPECT_EQ(context.num_replicas_in_sync, replicas());
    return context.replica_id_in_sync_group;
  });
  const auto squares = strategy_->run([](int i) { return i * i; }, ids);
  for (int r = 0; r < replicas(); ++r) {
    EXPECT_EQ(ids[static_cast<std::size_t>(r)], r);
    EXPECT_EQ(squares[static_cast<std::size_t>(r)], r * r);
  }
  const auto constants =
      strategy_->distribute_values_from_function([](const ValueContext&) { return 4.0f; });
  EXPECT_EQ(constants.values(), std::vector<float>(static_cast<std::size_t>(replicas()), 4.0f));
}

TEST_P(ReduceOnEveryStrategy, NestedValuesKeepStructurePerReplica) {
  const auto count = static_cast<std::size_t>(replicas());
  const auto arrays = strategy_->distribute_values_from_function([](const ValueContext&) {
    return vec({1, 2, 3});
  });
  ASSERT_EQ(arrays.size(), count);
  for (const Tensor& each : arrays) EXPECT_EQ(numbers(each), (std::vector<double>{1, 2, 3}));

  const auto nests = strategy_->distribute_values_from_function([](const ValueContext& context) {
    const int id = context.replica_id_in_sync_group;
    return std::tuple(std::tuple(1, 2, 3), std::vector<int>{id, 2 * id, 3 * id});
  });
  const auto in_replicas = strategy_->run([](const auto& nest) { return nest; }, nests);
  for (std::size_t r = 0; r < count; ++r) {
    const int id = static_cast<int>(r);
    EXPECT_EQ(std::get<0>(in_replicas[r]), std::tuple(1, 2, 3));
    EXPECT_EQ(std::get<1>(in_replicas[r]), (std::vector<int>{id, 2 * id, 3 * id}));
  }
  // Extracts one member of the tuple on every replica; tf has a tuple of PerReplica instead.
  const auto seconds = nests.map([](const auto& nest) { return std::get<1>(std::get<0>(nest)); });
  EXPECT_EQ(seconds.values(), std::vector<int>(count, 2));
}

TEST_P(ReduceOnEveryStrategy, ValueFunctionDeterminesPlacement) {
  const auto values =
      strategy_->distribute_values_from_function([](const ValueContext&) { return Tensor(1.0f); });
  for (const Tensor& each : values) EXPECT_EQ(each.device(), Device{});
  const Device other = Device::parse("cpu:5");
  const auto placed = strategy_->distribute_values_from_function(
      [&](const ValueContext&) { return Tensor::zeros({1}, DType::kFloat32, other); });
  for (const Tensor& each : placed) EXPECT_EQ(each.device(), other);
}

TEST_P(ReduceOnEveryStrategy, DistributedValuesMayBeSparse) {
  const auto values = strategy_->distribute_values_from_function([](const ValueContext&) {
    return IndexedSlices{Tensor::from<float>({2, 4}, {1, 0, 0, 0, 0, 0, 2, 0}),
                         Tensor::from<std::int64_t>({2}, {0, 1}), Shape{3, 4}};
  });
  for (const IndexedSlices& each : strategy_->local_results(values)) {
    EXPECT_EQ(numbers(each.to_dense()), (std::vector<double>{1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0}));
  }
}

TEST_P(ReduceOnEveryStrategy, VariableArgumentIsPassedUnsplit) {
  const auto scope = strategy_->scope();
  const Variable v(Tensor(1.0f));
  const auto same = strategy_->run([&](const Variable& argument) { return argument == v; }, v);
  for (const bool each : same) EXPECT_TRUE(each);
}

TEST_P(ReduceOnEveryStrategy, ReduceToPlacesResultsOnDestinations) {
  const std::vector<Device> devices = {Device::parse("cpu:3"), Device::parse("cpu:0")};
  const auto ones = strategy_->run([] { return vec({1, 2}); });
  const auto reduced = strategy_->reduce_to(ReduceOp::kSum, ones, devices);
  ASSERT_EQ(reduced.size(), 2U);
  EXPECT_EQ(reduced[0].device(), devices[0]);
  EXPECT_EQ(numbers(reduced[1]), (std::vector<double>{1.0 * replicas(), 2.0 * replicas()}));
  const auto twos = strategy_->run([] { return num(2.0); });
  const std::vector<std::pair<PerReplica<Tensor>, std::vector<Device>>> pairs = {
      {twos, {devices[1]}}, {ones, {devices[0]}}};
  const auto results = strategy_->batch_reduce_to(ReduceOp::kMean, pairs);
  EXPECT_EQ(results[0][0].item(), 2.0f);
  EXPECT_EQ(numbers(results[1][0]), (std::vector<double>{1, 2}));
  EXPECT_EQ(results[1][0].device(), devices[0]);
  EXPECT_INVALID(strategy_->reduce_to(ReduceOp::kSum, ones, {}), "no destinations");
  EXPECT_EQ(strategy_->broadcast_to(Tensor(1.0f), devices)[0].device(), devices[0]);
}

// devices_test.cc covers the defaults with GPUs.
TEST(StrategyOptions, DefaultToCpuAndCanonicalOrder) {
  MirroredStrategy strategy;
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  EXPECT_EQ(strategy.worker_devices(), std::vector<Device>{Device{}});
  EXPECT_EQ(strategy.cross_device_ops().name(), "canonical");
}

// tests/xla contains the tests that need a PJRT plugin.
TEST(StrategyOptions, MissingTpuErrorNamesRemedy) {
#ifdef TUTTI_WITHOUT_XLA
  EXPECT_ERROR(MirroredStrategy({.devices = "tpu:0"}), kUnimplemented, "-DTUTTI_XLA=ON");
#else
  setenv("TUTTI_PJRT_PLUGIN", "/nowhere/plugin.so", 1);
  EXPECT_ERROR(MirroredStrategy({.devices = "tpu:0"}), kUnavailable, "/nowhere/plugin.so");
  EXPECT_ERROR(OneDeviceStrategy("/device:TPU:0"), kUnavailable, "TUTTI_PJRT_PLUGIN");
#endif
}

TEST(StrategyOptions, XlaDevicesRequireMirroredStrategy) {
  const char* const kRemedy = "use MirroredStrategy(\"xla:0\")";
  EXPECT_ERROR(CentralStorageStrategy("xla:0-1"), kUnimplemented, kRemedy);
  EXPECT_ERROR(ParameterServerStrategy({.local = {.devices = "xla:0"}}), kUnimplemented, kRemedy);
  EXPECT_ERROR(make_strategy("multi_worker_mirrored", {.devices = "xla:0"}), kUnimplemented,
               kRemedy);
  EXPECT_ERROR(MirroredStrategy({.devices = {"cpu:0", "xla:0"}}), kUnimplemented, "one kind");
}

TEST(StrategyOptions, DevicesAreParsedByNameAndRange) {
  MirroredStrategy strategy({.devices = {"cpu:0", "/cpu:2"}});
  EXPECT_EQ(strategy.worker_devices(),
            (std::vector<Device>{{DeviceType::kCpu, 0}, {DeviceType::kCpu, 2}}));
  EXPECT_EQ(MirroredStrategy({.devices = "cpu:0-3"}).num_replicas_in_sync(), 4);
  EXPECT_ERROR(MirroredStrategy({.devices = {"cpu:0", "gpu:7"}}), kUnavailable, "gpu:7");
  EXPECT_INVALID(MirroredStrategy({.devices = {"cpu:1", "cpu:1"}}), "cpu:1");
}

// Some of these constructions are from the table of strategies in README.md.
TEST(StrategyOptions, EveryStrategyAcceptsDevices) {
  const std::vector<Device> two = parse_devices("cpu:0-1");
  CentralStorageStrategy central({.devices = "cpu:0-1"});
  EXPECT_EQ(central.worker_devices(), two);
  EXPECT_EQ(central.parameter_devices(), std::vector<Device>{Device{}});
  EXPECT_EQ(CentralStorageStrategy("cpu:0-1").worker_devices(), two);
  EXPECT_EQ(MirroredStrategy("cpu:0-1").worker_devices(), two);
  EXPECT_EQ(MirroredStrategy(std::string("cpu:0-1")).worker_devices(), two);
  EXPECT_EQ(CentralStorageStrategy({.local = {.devices = "cpu:0-1"}}).worker_devices(), two);
  EXPECT_EQ(ParameterServerStrategy({.local = {.devices = "cpu:0-1"}}).worker_devices(), two);
  EXPECT_EQ(OneDeviceStrategy("cpu:0").worker_devices(), std::vector<Device>{Device{}});
}

TEST(StrategyOptions, ReplicasShareDevicesInOrder) {
  MirroredStrategy strategy({.devices = "cpu:0-1", .replicas = 5});
  std::vector<int> devices;
  for (const Device& device : strategy.replica_devices()) devices.push_back(device.index);
  EXPECT_EQ(devices, (std::vector<int>{0, 0, 0, 1, 1}));
  EXPECT_INVALID(MirroredStrategy({.devices = "cpu:0-3", .replicas = 2}), "replicas");
}

TEST(StrategyOptions, DeterministicOptionRejectsOrPermitsNonCanonicalOps) {
  const CrossDeviceOpsSpec ring = make_cross_device_ops("ring");
  const auto make = [&](std::optional<bool> deterministic, const CrossDeviceOpsSpec& spec) {
    return MirroredStrategy(
        {.devices = "cpu:0-1", .cross_device_ops = spec, .deterministic = deterministic});
  };
  EXPECT_INVALID(make(true, ring), "deterministic");
  EXPECT_NO_THROW(make(true, make_cross_device_ops("reduction_to_one_device")));
  const auto lines_of = [&](std::optional<bool> deterministic) {
    return thrown::lines_of([&] { make(deterministic, ring); });
  };
  const auto says_so = ::testing::Contains(
      ::testing::HasSubstr("mirrored: ring: results are bit-identical between runs, "
                           "but may differ from those of other strategies"));
  EXPECT_THAT(lines_of(std::nullopt), says_so);
  EXPECT_THAT(lines_of(false), ::testing::Not(says_so));
}

TEST(StrategyOptions, ReplicaWeightsMustBePositiveAndComplete) {
  const auto make = [](std::vector<double> weights) {
    return MirroredStrategy({.devices = "cpu:0-1", .replica_weights = std::move(weights)});
  };
  EXPECT_EQ(make({1, 2}).replica_weights()[1], 2.0);
  EXPECT_INVALID(make({1}), "replica_weights");
  EXPECT_INVALID(make({1, 0}), "replica_weights");
}

TEST(StrategyOptions, CentralStorageAcceptsParameterDevice) {
  CentralStorageStrategy strategy(
      {.local = {.devices = "cpu:0-1"}, .parameter_device = Device::parse("cpu:7")});
  EXPECT_EQ(strategy.parameter_devices(), std::vector<Device>{Device::parse("cpu:7")});
  const auto scope = strategy.scope();
  EXPECT_EQ(Variable(Tensor(1.0f)).storage().devices()[0], Device::parse("cpu:7"));
}

}  // namespace tutti::strategy_tests::strategy_reduce_test

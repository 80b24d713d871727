// Helpers for tests of strategies: strategies over virtual devices, and shortcuts to read values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/thrown.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/strategy/fully_sharded_strategy.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::strategy_tests {

/// Returns options with devices cpu:0 to cpu:<devices - 1> and `replicas` replicas (0: one per
/// device).
inline LocalStrategyOptions on_cpus(int devices, int replicas = 0) {
  LocalStrategyOptions options;
  for (int i = 0; i < devices; ++i) options.devices.devices.push_back({DeviceType::kCpu, i});
  options.replicas = replicas;
  return options;
}

inline std::unique_ptr<MirroredStrategy> mirrored(int devices, int replicas = 0) {
  return std::make_unique<MirroredStrategy>(on_cpus(devices, replicas));
}

inline std::unique_ptr<CentralStorageStrategy> central(int devices, int replicas = 0) {
  return std::make_unique<CentralStorageStrategy>(
      CentralStorageOptions{on_cpus(devices, replicas), std::nullopt});
}

/// Returns a strategy that shards even small variables.
inline std::unique_ptr<FullyShardedStrategy> fully_sharded(int devices, int replicas = 0,
                                                           int stage = 3) {
  return std::make_unique<FullyShardedStrategy>(FullyShardedOptions{
      .local = on_cpus(devices, replicas), .stage = stage, .min_shard_bytes = 0});
}

/// Returns a strategy with two servers in this process. If `num_shards` exceeds 1, the shards are
/// placed on the two servers alternately.
inline std::unique_ptr<ParameterServerStrategy> parameter_server(int devices, int replicas = 0,
                                                                 std::int64_t num_shards = 1) {
  ParameterServerOptions options;
  options.local = on_cpus(devices, replicas);
  options.num_servers = 2;
  options.variable_partitioner = FixedShardsPartitioner(num_shards);
  return std::make_unique<ParameterServerStrategy>(std::move(options));
}

/// Returns the current replica's device (cpu:0 outside replicas).
inline Device here() {
  ReplicaContext* context = get_replica_context();
  return context ? context->device() : Device{};
}

/// Returns a float32 vector on the current replica's device.
inline Tensor vec(std::vector<float> values) {
  return Tensor::from<float>({static_cast<std::int64_t>(values.size())}, values, here());
}

/// Returns a scalar on the current replica's device.
inline Tensor num(double value, DType dtype = DType::kFloat32) {
  return Tensor::scalar(value, dtype, here());
}

/// Returns a tensor whose elements all equal `value`, on the current replica's device.
inline Tensor filled(const Shape& shape, double value, DType dtype = DType::kFloat32) {
  return Tensor::full(shape, value, dtype, here());
}

/// Returns the current replica's number as a float.
inline float replica_number() { return static_cast<float>(ReplicaContext::current().replica_id()); }

/// Returns an ON_READ variable, which has one component per replica.
inline Variable on_read(const Tensor& initial, VariableAggregation aggregation,
                        const std::string& name = "v") {
  return Variable(initial, {.name = name,
                            .synchronization = VariableSynchronization::kOnRead,
                            .aggregation = aggregation});
}

inline std::vector<double> numbers(const Tensor& tensor) { return tensor.to_doubles(); }

/// Returns the elements of all local components, in replica order.
inline std::vector<double> components(const Variable& variable) {
  std::vector<double> values;
  for (const Tensor& each : variable.storage().local_components()) {
    for (const double value : each.to_doubles()) values.push_back(value);
  }
  return values;
}

inline std::vector<double> numbers(const PerReplica<Tensor>& tensors) {
  std::vector<double> values;
  for (const Tensor& tensor : tensors) {
    for (const double value : tensor.to_doubles()) values.push_back(value);
  }
  return values;
}

/// Returns a function, for restore(), that finds saved values by name.
inline TensorLookup lookup_in(std::vector<NamedTensor> saved) {
  return [saved = std::move(saved)](const std::string& name) {
    const auto found = std::ranges::find(saved, name, &NamedTensor::name);
    return found == saved.end() ? Tensor() : found->value;
  };
}

/// Returns, for each variable, the sum of gradient_of(index) over all replicas. Must be called in
/// every replica.
inline std::vector<Gradient> reduced_gradients(
    std::span<const Variable> variables,
    const std::function<Gradient(std::size_t index)>& gradient_of) {
  GradientReducer& reducer = *GradientReducer::current();
  reducer.begin(variables);
  for (std::size_t i = variables.size(); i-- > 0;) reducer.ready(i, gradient_of(i));
  std::vector<Gradient> sums = reducer.finish();
  reducer.updates_done();
  return sums;
}

/// Returns the sum of the replicas' gradients of a variable. Must be called in every replica.
inline Tensor summed(const Variable& variable, const Gradient& own) {
  return reduced_gradients({&variable, 1}, [&](std::size_t) { return own; })[0].to_dense();
}

/// Returns n copies of x.
inline std::vector<double> copies_of(double x, int n) {
  return std::vector<double>(static_cast<std::size_t>(n), x);
}

/// Runs `fn`, which must throw a tutti::Error, and returns the error.
inline Error error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "expected a tutti::Error, got none";
  return Error(ErrorCode::kOk, "");
}

/// Named strategy; each test of AllStrategies runs once per case.
struct StrategyCase {
  std::string name;
  std::function<std::unique_ptr<Strategy>()> make;
};
inline void PrintTo(const StrategyCase& each, std::ostream* out) { *out << each.name; }

inline std::vector<StrategyCase> all_strategies() {
  return {
      {"one_device", [] { return std::make_unique<OneDeviceStrategy>("cpu:0"); }},
      {"mirrored_1", [] { return mirrored(1); }},
      {"mirrored_2", [] { return mirrored(2); }},
      {"mirrored_3", [] { return mirrored(3); }},
      {"mirrored_2_devices_4_replicas", [] { return mirrored(2, 4); }},
      {"central_2", [] { return central(2); }},
      {"central_1_device_3_replicas", [] { return central(1, 3); }},
      {"fully_sharded_3", [] { return fully_sharded(3); }},
      {"fully_sharded_2_stage_1", [] { return fully_sharded(2, 0, 1); }},
      {"fully_sharded_2_devices_4_replicas_stage_2", [] { return fully_sharded(2, 4, 2); }},
      {"parameter_server_1", [] { return parameter_server(1); }},
      {"parameter_server_2_sharded", [] { return parameter_server(2, 0, 3); }},
      {"parameter_server_1_device_3_replicas", [] { return parameter_server(1, 3); }},
      {"mirrored_2_sequential",
       [] {
         LocalStrategyOptions options = on_cpus(2);
         options.execution = ReplicaExecution::kSequential;
         return std::make_unique<MirroredStrategy>(options);
       }},
  };
}

class AllStrategies : public ::testing::TestWithParam<StrategyCase> {
 protected:
  testing::HangWatchdog watchdog_{"a strategy"};
  std::unique_ptr<Strategy> strategy_ = GetParam().make();
  int replicas() const { return strategy_->num_replicas_in_sync(); }
};
inline std::string case_name(const ::testing::TestParamInfo<StrategyCase>& info) {
  return info.param.name;
}

}  // namespace tutti::strategy_tests

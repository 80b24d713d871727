// Tests reports of variable bytes per device, and estimates for other variable policies.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/variables/memory_report.h"

#include "tests/strategy/strategy_helpers.h"
#include "tutti/optimizer/adam.h"

namespace tutti::strategy_tests::memory_report_test {

/// Training state: weights of 100 and 20 floats, Adam's two slots for each, its step counter, and
/// an ON_READ mean of 5 floats per replica.
struct Training {
  explicit Training(Strategy& strategy) {
    const auto scope = strategy.scope();
    const std::vector<Variable> weights = {Variable(Tensor::zeros({10, 10}), {.name = "w"}),
                                           Variable(Tensor::zeros({20}), {.name = "b"})};
    optimizer = std::make_unique<Adam>(weights);
    groups = {{"parameters", weights},
              {"slots", {}},
              {"moving averages", {on_read(Tensor::zeros({5}), VariableAggregation::kMean)}}};
    for (const Variable& variable : optimizer->state_variables()) {
      if (variable.shape().rank() > 0) groups[1].variables.push_back(variable);
    }
  }
  std::unique_ptr<Adam> optimizer;
  std::vector<VariableGroup> groups;
};

/// Name of each device, with the bytes of each group of variables on it.
using Table = std::vector<std::pair<std::string, std::vector<std::uint64_t>>>;

Table table_of(const std::vector<DeviceBytes>& rows) {
  Table table;
  for (const DeviceBytes& row : rows) table.emplace_back(row.device.to_string(), row.bytes);
  return table;
}

// The 120 parameters take 480 bytes, and Adam's slots 960. The mean takes 20 bytes on every device.
TEST(MemoryReport, CountsCentralVariablesOnceAndMirroredOnesPerDevice) {
  CentralStorageStrategy central({on_cpus(3), Device{DeviceType::kCpu, 0}});
  const Training on_first(central);
  const std::vector<Device> devices(central.replica_devices().begin(),
                                    central.replica_devices().end());
  const auto first = memory_by_device(on_first.groups, devices);
  EXPECT_EQ(table_of(first),
            (Table{{"cpu:0", {480, 960, 20}}, {"cpu:1", {0, 0, 20}}, {"cpu:2", {0, 0, 20}}}));
  EXPECT_EQ(first[0].total() - first[1].total(), 480u + 960u);

  MirroredStrategy mirrored(on_cpus(3));
  const Training everywhere(mirrored);
  const auto equal = memory_by_device(everywhere.groups, devices);
  EXPECT_EQ(
      table_of(equal),
      (Table{{"cpu:0", {480, 960, 20}}, {"cpu:1", {480, 960, 20}}, {"cpu:2", {480, 960, 20}}}));

  // The estimate for a policy equals the report under that policy, whichever strategy created
  // the variables.
  for (const Training* each : {&on_first, &everywhere}) {
    const auto under = [&](VariablePolicy policy) {
      return table_of(memory_under(policy, each->groups, devices));
    };
    EXPECT_EQ(under(VariablePolicy::kFirstDevice), table_of(first));
    EXPECT_EQ(under(VariablePolicy::kMirrored), table_of(equal));
  }
}

TEST(MemoryReport, HostVariablesAreCountedOnTheHost) {
  CentralStorageStrategy strategy({{.devices = "cpu:1-2"}, Device{}});
  const Training training(strategy);
  const auto found = memory_by_device(training.groups, strategy.replica_devices());
  EXPECT_EQ(table_of(found),
            (Table{{"cpu:1", {0, 0, 20}}, {"cpu:2", {0, 0, 20}}, {"cpu:0", {480, 960, 0}}}));
  EXPECT_EQ(
      table_of(memory_under(VariablePolicy::kCpu, training.groups, strategy.replica_devices())),
      table_of(found));
}

TEST(MemoryReport, ReplicasOnOneDeviceShareVariables) {
  MirroredStrategy strategy(on_cpus(1, 4));
  const Training training(strategy);
  const Table expected = {{"cpu:0", {480, 960, 80}}};
  EXPECT_EQ(table_of(memory_by_device(training.groups, strategy.replica_devices())), expected);
  EXPECT_EQ(table_of(memory_under(VariablePolicy::kMirrored, training.groups,
                                  strategy.replica_devices())),
            expected);
}

TEST(MemoryReport, TableListsEveryDeviceUnderEveryPolicy) {
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const auto scope = strategy.scope();
  const std::vector<VariableGroup> groups = {
      {"parameters", {Variable(Tensor::zeros({1'068'298}), {.name = "all"})}}};
  EXPECT_EQ(memory_report(groups, strategy.replica_devices()),
            "bytes         device       parameters          total\n"
            "first device  cpu:0         4,273,192      4,273,192\n"
            "              cpu:1                 0              0\n"
            "cpu           cpu:0         4,273,192      4,273,192\n"
            "              cpu:1                 0              0\n"
            "mirrored      cpu:0         4,273,192      4,273,192\n"
            "              cpu:1         4,273,192      4,273,192\n"
            "as it is      cpu:0         4,273,192      4,273,192\n"
            "              cpu:1         4,273,192      4,273,192\n");
  EXPECT_INVALID(memory_report(groups, {}), "at least one replica");
}

}  // namespace tutti::strategy_tests::memory_report_test

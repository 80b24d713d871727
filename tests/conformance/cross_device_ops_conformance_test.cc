// Tests every registered operation, and ranks over shared memory, TCP and both, with a sample of
// the conformance kit. ./test --full runs the whole kit.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/support/sanitizers.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {
namespace {
using Parameter = std::tuple<std::string, GroupShape>;

/// One operation works on shared memory, all support local groups, some send messages.
std::vector<Parameter> operations_and_shapes() {
  std::vector<Parameter> all{{"canonical", GroupShape::kThreads}};
  for (const std::string& name : registered_cross_device_ops(DeviceType::kCpu)) {
    all.emplace_back(name, GroupShape::kLocal);
    all.emplace_back(name, GroupShape::kSpread);
  }
  return all;
}

class EveryOperation : public ::testing::TestWithParam<Parameter> {};

INSTANTIATE_TEST_SUITE_P(All, EveryOperation, ::testing::ValuesIn(operations_and_shapes()),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), "_",
                                         to_string(std::get<1>(info.param)));
                         });

TEST_P(EveryOperation, ConformsInASampleOfTheKit) {
  const auto& [name, shape] = GetParam();
  const Report report = run(Plan{.shapes = {shape}, .sample = 80}, Subject(name));
  EXPECT_EQ(report.count(Verdict::kFailed) + report.count(Verdict::kNotRun), 0u)
      << report.table("tutti conform " + name);
  // Every operation supports one object for all replicas.
  EXPECT_TRUE(report.passed() || shape != GroupShape::kLocal);
  if (!report.passed()) GTEST_SKIP() << report.results.front().message;
}

// Ranks that are connected as processes are.

using Way = ConnectOptions::Way;

// Sixteen ranks in one process map 256 segments; ThreadSanitizer leaves 1.5 TiB for all mappings.
constexpr std::size_t kPlaceBytes = std::size_t{1} << (testing::kIsSanitized ? 30 : 34);

/// Ranks are threads here, each with its own mappings, as in processes.
RankFactory connected_ranks(const std::string& algorithm, Way way, int world, Duration timeout) {
  const auto store = std::make_shared<InProcessStore>();
  return [=](int rank) {
    const ConnectedRanks connected =
        connect_ranks(rank, world, *store, {.way = way, .place_bytes = kPlaceBytes});
    return make_communicator(connected.transport,
                             CommunicatorOptions{.algorithm = algorithm, .timeout = timeout});
  };
}

struct Connection {
  const char* name;
  const char* algorithm;
  Way way;
};

class OverProcesses : public ::testing::TestWithParam<Connection> {};

INSTANTIATE_TEST_SUITE_P(All, OverProcesses,
                         ::testing::Values(Connection{"windows", "canonical", Way::kSharedMemory},
                                           Connection{"auto_windows", "auto", Way::kAuto},
                                           Connection{"rings", "tree", Way::kSharedMemory},
                                           Connection{"tcp", "canonical", Way::kTcp}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OverProcesses, ConformsInASampleOfTheKit) {
  Subject subject;
  subject.name = GetParam().name;
  subject.spread = [](int world, Duration timeout) {
    return connected_ranks(GetParam().algorithm, GetParam().way, world, timeout);
  };
  const Report report = run({.shapes = {GroupShape::kSpread}, .sample = 70}, subject);
  EXPECT_TRUE(report.passed() && report.count(Verdict::kNotRun) == 0) << report.table("kit");
}

}  // namespace
}  // namespace tutti::conformance

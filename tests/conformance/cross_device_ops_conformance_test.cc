// Every registered operation against a sample of the conformance kit. ./test --full runs all of it.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/support/hang_watchdog.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {
namespace {

using Parameter = std::tuple<std::string, GroupShape>;

/// One operation works on shared memory, all have local groups, some send messages.
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
  testing::HangWatchdog watchdog("conformance of " + name, std::chrono::seconds(110));
  Subject subject(name);
  const Report report = run(Plan{.shapes = {shape}, .sample = 250}, subject);
  const Counts total = report.total();
  EXPECT_EQ(total.failed, 0u) << report.table("tutti conform " + name);
  EXPECT_EQ(total.not_run, 0u);
  // One object for all replicas is what every operation has.
  EXPECT_TRUE(total.passed > 0 || shape != GroupShape::kLocal);
  if (total.passed == 0) GTEST_SKIP() << report.skip_reasons.front().reason;
}

}  // namespace
}  // namespace tutti::conformance

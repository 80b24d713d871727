// Communicators over shared memory, TCP and both against the kit of every operation.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/hang_watchdog.h"
#include "tests/support/sanitizers.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {
namespace processes_conformance_test {

using Way = ConnectOptions::Way;

// Sixteen ranks in one process map 256 windows; ThreadSanitizer leaves 1.5 TiB for all mappings.
constexpr std::size_t kPlaceBytes = std::size_t{1} << (testing::kIsSanitized ? 30 : 34);

/// The ranks are threads here, each with mappings of its own, as processes have.
SubjectFactories over(const std::string& algorithm, Way way) {
  return {.spread = [=](int world, Duration timeout) -> RankFactory {
    const auto store = std::make_shared<InProcessStore>();
    return [=](int rank) {
      const ConnectedRanks connected =
          connect_ranks(rank, world, *store, {.way = way, .place_bytes = kPlaceBytes});
      return make_communicator(connected.transport,
                               CommunicatorOptions{.algorithm = algorithm, .timeout = timeout});
    };
  }};
}

struct Parameter {
  const char* name;
  const char* algorithm;
  Way way;
};

class OverProcesses : public ::testing::TestWithParam<Parameter> {};

INSTANTIATE_TEST_SUITE_P(All, OverProcesses,
                         ::testing::Values(Parameter{"windows", "canonical", Way::kSharedMemory},
                                           Parameter{"auto_windows", "auto", Way::kAuto},
                                           Parameter{"rings", "tree", Way::kSharedMemory},
                                           Parameter{"tcp", "canonical", Way::kTcp}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OverProcesses, ConformsInASampleOfTheKit) {
  const testing::HangWatchdog watchdog(std::string("conformance of ") + GetParam().name,
                                       std::chrono::seconds(110));
  Subject subject(GetParam().name, over(GetParam().algorithm, GetParam().way));
  const Plan plan{.shapes = {GroupShape::kSpread}, .sample = 200};
  const Report report = run(plan, subject);
  const Counts total = report.total();
  EXPECT_EQ(total.failed, 0u) << report.table("kit");
  EXPECT_EQ(total.not_run, 0u);
  EXPECT_GT(total.passed, 0u);
}

}  // namespace processes_conformance_test
}  // namespace tutti::conformance

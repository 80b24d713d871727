// The conformance kit is worth what it finds: every planted bug, and nothing in what is right.
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/planted_bugs.h"

#include <algorithm>
#include <vector>

#include "cross_device_ops/shared/shared_engine.h"
#include "gtest/gtest.h"
#include "tests/conformance/planted_engine_bugs.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/sanitizers.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::planted_bugs {
namespace {

using conformance::Case;
using conformance::GroupShape;
using conformance::Plan;
using conformance::RankFactory;
using conformance::Report;
using conformance::Subject;
using conformance::Verdict;

Subject subject_with(Bug bug) {
  return Subject("reference", {.local = [bug](int) { return std::make_unique<Reference>(bug); }});
}

Subject subject_with(EngineBug bug, const std::shared_ptr<Graveyard>& graveyard) {
  const auto make_group = [=](int world, Duration timeout) -> RankFactory {
    auto engines = std::make_shared<std::vector<std::unique_ptr<internal::CollectiveEngine>>>(
        internal::shared_engines(world));
    return [=](int rank) {
      auto& engine = (*engines)[static_cast<std::size_t>(rank)];
      return std::make_unique<Communicator>(
          std::make_unique<BuggyEngine>(std::move(engine), bug, graveyard),
          CommunicatorOptions{.timeout = timeout});
    };
  };
  return Subject("engine", {.threads = make_group});
}

template <class AnyPlanted>
bool names(const Case& c, const AnyPlanted& planted) {
  return c.id().find(planted.found_by) != std::string::npos;
}

// Sanitized code takes ten times as long.
constexpr std::size_t kSample = testing::kIsSanitized ? 400 : 1500;

// Under a sanitizer the process ends where such a bug strikes, before the kit can see what came of
// it.
bool ends_a_sanitized_process(const Planted& planted) {
  const Bug bug = planted.bug;
  return bug == Bug::kWritesBehind || bug == Bug::kWritesBefore || bug == Bug::kSharesMember ||
         bug == Bug::kSharesScratch || bug == Bug::kGatherEvenParts;
}

/// Those that are the kit's to find in this build.
std::vector<Planted> planted_here() {
  std::vector<Planted> planted(std::begin(kPlanted), std::end(kPlanted));
  if (testing::kIsSanitized) std::erase_if(planted, ends_a_sanitized_process);
  return planted;
}

class PlantedBug : public ::testing::TestWithParam<Planted> {};
INSTANTIATE_TEST_SUITE_P(All, PlantedBug, ::testing::ValuesIn(planted_here()),
                         [](const auto& info) { return std::string(info.param.what); });

TEST_P(PlantedBug, IsFoundByACaseThatNamesIt) {
  testing::HangWatchdog watchdog("planted bug", std::chrono::seconds(100));
  const Planted& planted = GetParam();
  Subject subject = subject_with(planted.bug);
  Plan plan{.shapes = {GroupShape::kLocal}, .seed = 3, .sample = kSample};
  const bool needs_large = planted.bug == Bug::kCountsIn16Bits || planted.bug == Bug::kSharesMember;
  plan.max_count = needs_large ? 70000 : 5000;
  const Report report = run(plan, subject, {.max_failures = 1000});
  const std::string table = report.table("tutti conform reference");
  EXPECT_FALSE(report.passed()) << table;
  EXPECT_NE(table.find("FAILS"), std::string::npos) << table;
  EXPECT_NE(table.find("--case " + report.failures.front().failed_case.id()), std::string::npos);
  const auto named = std::ranges::find_if(
      report.failures, [&](const auto& failure) { return names(failure.failed_case, planted); });
  ASSERT_NE(named, report.failures.end()) << table;
  // What the report says repeats the failure.
  Subject another = subject_with(planted.bug);
  const Case again = Case::parse(named->failed_case.id());
  EXPECT_EQ(to_string(run(again, another).verdict), "failed") << again.id();
}

class PlantedEngineBug : public ::testing::TestWithParam<PlantedEngine> {};
INSTANTIATE_TEST_SUITE_P(All, PlantedEngineBug, ::testing::ValuesIn(kPlantedEngines),
                         [](const auto& info) { return std::string(info.param.what); });

TEST_P(PlantedEngineBug, IsFoundByTheCasesOfItsKind) {
  testing::HangWatchdog watchdog("planted bug of an engine", std::chrono::seconds(100));
  const PlantedEngine& planted = GetParam();
  const auto graveyard = std::make_shared<Graveyard>();
  Subject subject = subject_with(planted.bug, graveyard);
  const Plan plan{.shapes = {GroupShape::kThreads}, .seed = 3, .sample = 1, .max_count = 5000};
  bool is_found = false;
  for (const Case& c : conformance::cases(plan)) {
    if (is_found || c.dtype != DType::kFloat32 || !names(c, planted)) continue;
    is_found = run(c, subject).verdict == Verdict::kFailed;
  }
  EXPECT_TRUE(is_found);
}

TEST(ConformanceKit, FindsNothingInAPlainOperationThatIsRight) {
  testing::HangWatchdog watchdog("reference", std::chrono::seconds(100));
  Subject subject = subject_with(Bug::kNone);
  const Report report =
      run(Plan{.shapes = {GroupShape::kLocal}, .sample = 2 * kSample, .max_count = 5000}, subject);
  EXPECT_TRUE(report.passed()) << report.table("tutti conform reference");
  EXPECT_EQ(report.total().skipped, 0u);
  EXPECT_EQ(report.total().not_run, 0u);
}

TEST(ConformanceKit, FindsNothingInEnginesThatAreRight) {
  testing::HangWatchdog watchdog("engine", std::chrono::seconds(100));
  Subject subject = subject_with(EngineBug::kNone, std::make_shared<Graveyard>());
  const Report report =
      run(Plan{.shapes = {GroupShape::kThreads}, .sample = kSample, .max_count = 5000}, subject);
  EXPECT_TRUE(report.passed()) << report.table("tutti conform engine");
  EXPECT_EQ(report.total().skipped, 0u);
}

}  // namespace
}  // namespace tutti::planted_bugs

// Tests that the strategy suite accepts the library's strategies and detects every planted bug.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/strategy/suite.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/conformance/planted_strategies.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/thrown.h"
#include "tutti/strategy/strategies.h"

namespace tutti::conformance {
inline void PrintTo(const StrategySubject& subject, std::ostream* out) { *out << subject.name; }

namespace strategy_suite_test {
using planted_bugs::PlantedStrategy;
using ::testing::HasSubstr;

struct PlantedStrategyBug {
  const char* name;
  const char* found_by;  // name of the check
  const char* said;      // fragment of its message
};
void PrintTo(const PlantedStrategyBug& planted, std::ostream* out) { *out << planted.name; }

constexpr PlantedStrategyBug kPlantedStrategies[] = {
    {"LeavesAReplicaOut", "replicas", "got replica 0 of 3 on cpu:0, tensors on cpu:0; replica 1"},
    {"RunsAReplicaTwice", "replicas", "got replica 0 of 3 on cpu:0, tensors on cpu:0; replica 0"},
    {"CountsOneMore", "replicas", "num_replicas_in_sync()"},
    {"ComputesOnTheFirstDevice", "replicas", "replica 1 of 3 on cpu:1, tensors on cpu:0"},
    {"ResultsBackwards", "results", "its own argument"},
    {"MergesPerReplica", "merge_call", "calls of the function: expected 1, got 3"},
    {"MergesBackwards", "merge_call", "results in the replicas"},
    {"GathersBackwards", "collectives", "all_gather()"},
    {"MeanIsSum", "collectives", "all_reduce(MEAN)"},
    {"AnotherOrder", "collectives", "expected the bits"},
    {"ReduceTwiceTheFirst", "reduce", "reduce(SUM)"},
    {"GatherBackwards", "gather", "in replica order"},
    {"OpsKeepTheirOwn", "copies", "reduce_to(SUM)"},
    {"InputBackwards", "input", "batch of replica 0: device: expected cpu:0, got cpu:2"},
    {"InputOfOneWorkerOfTwo", "input", "rows"},
    {"InputByElement", "input", "one for each global batch"},
    {"FunctionInputIsCut", "input_from_function", "rows of a batch: expected 2, got 1"},
    {"VariablesOfNobody", "scope", "variable_created_in_scope()"},
    {"ScopeOfLocalVariables", "on_write_variables", "of a strategy that did not make the variable"},
    {"OneComponentOther", "new_variables", "components"},
    {"SumForMean", "on_write_variables", "ON_WRITE, MEAN"},
    {"FirstForAll", "on_write_variables", "ON_WRITE, MEAN"},
    {"WritesOneComponent", "on_write_variables", "components"},
    {"OnReadAsOnWrite", "on_read_variables", "value() in replicas"},
    {"TakesUnknownUse", "unknown_use", "got no error"},
    {"SavesNothing", "saved_variables", "a tensor called 'w'"},
    {"RestoresOneComponent", "saved_variables", "restore()"},
    {"SwallowsErrors", "failures", "got no error"},
    {"DoesNotNameTheReplica", "failures", "with 'replica 0', got DATA_LOSS: the planted reason"},
    {"StaysBroken", "failures", "broken by an earlier step"},
    {"ForgetsTheFailure", "failures", "last_failure().replica"},
    {"StepNumberStands", "random_numbers", "restore_state()"},
    {"UpdatesOneComponent", "training", "components of"},
};

StrategySubject with_ring() {
  const auto make = [] {
    return std::make_unique<MirroredStrategy>(
        LocalStrategyOptions{.devices = "cpu:0-2",
                             .cross_device_ops = make_cross_device_ops("ring"),
                             .deterministic = false});
  };
  return {.name = "mirrored_3_ring", .make = make, .is_canonical = false};
}

StrategySubject planted(const char* name) {
  return {"planted", [name] { return std::make_unique<PlantedStrategy>(name); }};
}

/// Returns the library's strategies, one that adds in another order, and the base of the planted
/// bugs.
std::vector<StrategySubject> right_strategies() {
  std::vector<StrategySubject> all{with_ring(), planted("None")};
  for (const strategy_tests::StrategyCase& each : strategy_tests::all_strategies()) {
    all.push_back({each.name, each.make});
  }
  return all;
}

class RightStrategy : public ::testing::TestWithParam<StrategySubject> {};
INSTANTIATE_TEST_SUITE_P(All, RightStrategy, ::testing::ValuesIn(right_strategies()),
                         [](const auto& info) { return info.param.name; });

TEST_P(RightStrategy, PassesEveryCheck) {
  const StrategyReport report = run_strategy_suite(GetParam());
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_EQ(report.num_checks, strategy_checks().size());
}

class PlantedStrategies : public ::testing::TestWithParam<PlantedStrategyBug> {};
INSTANTIATE_TEST_SUITE_P(All, PlantedStrategies, ::testing::ValuesIn(kPlantedStrategies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PlantedStrategies, AreFoundByTheCheckThatNamesThem) {
  const std::string message = run_strategy_check(planted(GetParam().name), GetParam().found_by);
  EXPECT_THAT(message, HasSubstr(GetParam().said));
}

TEST(StrategySuite, EveryCheckFindsABugThatWasPlantedForIt) {
  for (const std::string& check : strategy_checks()) {
    EXPECT_TRUE(std::ranges::any_of(kPlantedStrategies, [&](const auto& each) {
      return each.found_by == check;
    })) << check;
  }
}

TEST(StrategySuite, ReportsReplicasThatAreMissingAndNothingThatFollowsFromThem) {
  const StrategyReport report = run_strategy_suite(planted("LeavesAReplicaOut"));
  ASSERT_EQ(report.failures.size(), 1u) << report.text();
  EXPECT_EQ(report.failures[0].first, "replicas");
  EXPECT_THAT(report.text(), HasSubstr("FAILED replicas: calls of the step function"));
  EXPECT_THAT(report.text(), HasSubstr("planted: 0 of 1 checks passed"));
}

TEST(StrategySuite, EndsAProcessWhoseReplicasWaitForEver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto make = []() -> std::unique_ptr<Strategy> {
    Clock::system().sleep_for(std::chrono::minutes(10));
    return nullptr;
  };
  const StrategySubject subject{"slow", make, true, std::chrono::milliseconds(50)};
  EXPECT_EXIT(run_strategy_check(subject, "reduce"), ::testing::ExitedWithCode(1),
              "strategy 'slow': check 'replicas' did not end in time");
}

TEST(StrategySuite, RefusesUnknownChecks) {
  const std::string message =
      thrown::error_of([] { run_strategy_check(planted("None"), "speed"); });
  EXPECT_THAT(message,
              HasSubstr("no check of strategies is named 'speed'; expected one of replicas"));
}

}  // namespace strategy_suite_test
}  // namespace tutti::conformance

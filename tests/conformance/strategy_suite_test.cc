// The strategy suite finds nothing in the strategies of the library, and every planted bug.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/strategy/suite.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/conformance/planted_strategies.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/thrown.h"
#include "tutti/strategy/fully_sharded_strategy.h"
#include "tutti/strategy/strategies.h"

namespace tutti::conformance {

inline void PrintTo(const StrategySubject& subject, std::ostream* out) { *out << subject.name; }

namespace strategy_suite_test {

using planted_bugs::PlantedStrategy;
using planted_bugs::StrategyBug;
using ::testing::HasSubstr;

struct PlantedStrategyBug {
  StrategyBug bug;
  const char* what;
  const char* found_by;  // a check
  const char* said;      // part of its message
};
void PrintTo(const PlantedStrategyBug& planted, std::ostream* out) { *out << planted.what; }

constexpr PlantedStrategyBug kPlantedStrategies[] = {
    {StrategyBug::kLeavesAReplicaOut, "LeavesAReplicaOut", "replicas",
     "expected [0, 1, 2], got [0, 1]"},
    {StrategyBug::kRunsAReplicaTwice, "RunsAReplicaTwice", "replicas",
     "expected [0, 1, 2], got [0, 0, 1, 2]"},
    {StrategyBug::kCountsOneMore, "CountsOneMore", "replicas", "num_replicas_in_sync()"},
    {StrategyBug::kComputesOnTheFirstDevice, "ComputesOnTheFirstDevice", "replicas",
     "replica 1: device of a tensor that the step function makes: expected cpu:1, got cpu:0"},
    {StrategyBug::kResultsBackwards, "ResultsBackwards", "results", "what replicas return"},
    {StrategyBug::kMergesPerReplica, "MergesPerReplica", "merge_call", "expected [1], got [3]"},
    {StrategyBug::kMergesBackwards, "MergesBackwards", "merge_call", "results in the replicas"},
    {StrategyBug::kGathersBackwards, "GathersBackwards", "collectives", "all_gather()"},
    {StrategyBug::kMeanIsSum, "MeanIsSum", "collectives", "all_reduce(MEAN)"},
    {StrategyBug::kAnotherOrder, "AnotherOrder", "collectives", "expected the bits"},
    {StrategyBug::kReduceTwiceTheFirst, "ReduceTwiceTheFirst", "reduce", "reduce(SUM)"},
    {StrategyBug::kGatherBackwards, "GatherBackwards", "gather", "in replica order"},
    {StrategyBug::kOpsKeepTheirOwn, "OpsKeepTheirOwn", "copies", "reduce_to(SUM)"},
    {StrategyBug::kInputBackwards, "InputBackwards", "input", "device of its batch"},
    {StrategyBug::kInputOfOneWorkerOfTwo, "InputOfOneWorkerOfTwo", "input", "rows"},
    {StrategyBug::kInputByElement, "InputByElement", "input", "one for each global batch"},
    {StrategyBug::kFunctionInputIsCut, "FunctionInputIsCut", "input_from_function",
     "consecutive batches"},
    {StrategyBug::kVariablesOfNobody, "VariablesOfNobody", "scope", "variable_created_in_scope()"},
    {StrategyBug::kScopeOfLocalVariables, "ScopeOfLocalVariables", "on_write_variables",
     "of a strategy that did not make the variable"},
    {StrategyBug::kOneComponentOther, "OneComponentOther", "new_variables", "components"},
    {StrategyBug::kSumForMean, "SumForMean", "on_write_variables", "ON_WRITE, MEAN"},
    {StrategyBug::kFirstForAll, "FirstForAll", "on_write_variables", "ON_WRITE, MEAN"},
    {StrategyBug::kWritesOneComponent, "WritesOneComponent", "on_write_variables", "components"},
    {StrategyBug::kOnReadAsOnWrite, "OnReadAsOnWrite", "on_read_variables", "value() in replicas"},
    {StrategyBug::kTakesUnknownUse, "TakesUnknownUse", "unknown_use", "got no error"},
    {StrategyBug::kSavesNothing, "SavesNothing", "saved_variables", "a tensor called 'w'"},
    {StrategyBug::kRestoresOneComponent, "RestoresOneComponent", "saved_variables", "restore()"},
    {StrategyBug::kSwallowsErrors, "SwallowsErrors", "failures", "got no error"},
    {StrategyBug::kDoesNotNameTheReplica, "DoesNotNameTheReplica", "failures",
     "expected a message with 'replica 0'"},
    {StrategyBug::kStaysBroken, "StaysBroken", "failures", "broken by an earlier step"},
    {StrategyBug::kForgetsTheFailure, "ForgetsTheFailure", "failures", "last_failure().replica"},
    {StrategyBug::kStepNumberStands, "StepNumberStands", "random_numbers", "restore_state()"},
    {StrategyBug::kUpdatesOneComponent, "UpdatesOneComponent", "training", "components of"},
};

template <class Made>
StrategySubject of_cpus(const std::string& name, const char* devices, int replicas = 0) {
  return {name, [=] {
            return std::make_unique<Made>(
                LocalStrategyOptions{.devices = devices, .replicas = replicas});
          }};
}

StrategySubject cut_over_replicas(int stage) {
  return {.name = concat("fully_sharded_stage_", stage), .make = [stage] {
            return std::make_unique<FullyShardedStrategy>(FullyShardedOptions{
                .local = {.devices = "cpu:0-2"}, .stage = stage, .min_shard_bytes = 0});
          }};
}

StrategySubject with_ring() {
  const auto make = [] {
    return std::make_unique<MirroredStrategy>(
        LocalStrategyOptions{.devices = "cpu:0-2",
                             .cross_device_ops = make_cross_device_ops("ring"),
                             .deterministic = false});
  };
  return {.name = "mirrored_3_ring", .make = make, .is_canonical = false};
}

StrategySubject planted(StrategyBug bug) {
  return {"planted", [bug] { return std::make_unique<PlantedStrategy>(bug); }};
}

class RightStrategy : public ::testing::TestWithParam<StrategySubject> {};
INSTANTIATE_TEST_SUITE_P(
    All, RightStrategy,
    ::testing::Values(StrategySubject{"one_device",
                                      [] { return std::make_unique<OneDeviceStrategy>("cpu:0"); }},
                      of_cpus<MirroredStrategy>("mirrored_2", "cpu:0-1"),
                      of_cpus<MirroredStrategy>("mirrored_4", "cpu:0-3"),
                      of_cpus<MirroredStrategy>("mirrored_4_on_2", "cpu:0-1", 4),
                      of_cpus<CentralStorageStrategy>("central_2", "cpu:0-1"),
                      of_cpus<CentralStorageStrategy>("central_3", "cpu:0-2"), with_ring(),
                      cut_over_replicas(1), cut_over_replicas(3), planted(StrategyBug::kNone)),
    [](const auto& info) { return info.param.name; });

TEST_P(RightStrategy, PassesEveryCheck) {
  testing::HangWatchdog watchdog(GetParam().name, std::chrono::seconds(100));
  const StrategyReport report = run_strategy_suite(GetParam());
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_EQ(report.num_checks, strategy_checks().size());
}

class PlantedStrategies : public ::testing::TestWithParam<PlantedStrategyBug> {};
INSTANTIATE_TEST_SUITE_P(All, PlantedStrategies, ::testing::ValuesIn(kPlantedStrategies),
                         [](const auto& info) { return std::string(info.param.what); });

TEST_P(PlantedStrategies, AreFoundByTheCheckThatNamesThem) {
  testing::HangWatchdog watchdog(GetParam().what, std::chrono::seconds(100));
  const std::string message = run_strategy_check(planted(GetParam().bug), GetParam().found_by);
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
  const StrategyReport report = run_strategy_suite(planted(StrategyBug::kLeavesAReplicaOut));
  ASSERT_EQ(report.failures.size(), 1u) << report.text();
  EXPECT_EQ(report.failures[0].check, "replicas");
  EXPECT_THAT(report.text(), HasSubstr("FAILED replicas: run(): replica_id() of the calls"));
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
              "strategy 'slow': check 'replicas' is not done in time");
}

TEST(StrategySuite, RefusesUnknownChecks) {
  const std::string message =
      thrown::error_of([] { run_strategy_check(planted(StrategyBug::kNone), "speed"); });
  EXPECT_THAT(message, HasSubstr("no such check of strategies: 'speed'; expected one of replicas"));
}

}  // namespace strategy_suite_test
}  // namespace tutti::conformance

// Tests the coordinator's protocol in every state that a few workers and servers can reach.
// SPDX-License-Identifier: Apache-2.0
//
// The environment variable TUTTI_MODEL_BOUNDS="closures faults versions" replaces the bounds of the
// tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "tests/strategy/parameter_server/model_checker.h"

namespace tutti::testing {
namespace protocol_model_test {

using Fault = ModelFault;

constexpr std::size_t kMostStates = std::size_t{400} << 20;
const char* other_bounds() { return std::getenv("TUTTI_MODEL_BOUNDS"); }

/// Returns a test's bounds: those in TUTTI_MODEL_BOUNDS, if set, with all kinds of faults;
/// otherwise `usual`.
ModelOptions bounds(ModelOptions usual) {
  if (other_bounds() == nullptr) return usual;
  ::alarm(0);  // cancels the time limit, which a larger search may exceed
  usual.faults.clear();
  std::istringstream in(other_bounds());
  in >> usual.num_closures >> usual.num_faults >> usual.num_versions;
  return usual;
}

std::string trace_of(const ModelCheckResult& result) {
  return concat(result.violation, "\n  ", join(result.trace, "\n  "));
}

void print(const ModelOptions& options, const ModelCheckResult& result) {
  std::printf(
      "model: %d workers, %d servers, %d closures, %d faults, %d versions: %zu states, %zu steps, "
      "depth %zu\n",
      options.num_workers, options.num_servers, options.num_closures, options.num_faults,
      options.num_versions, result.num_states, result.num_steps, result.depth);
}

void expect_sound(const ModelOptions& options) {
  const ModelCheckResult result = check_model(options, kMostStates);
  print(options, result);
  EXPECT_EQ(result.violation, "") << trace_of(result);
  EXPECT_TRUE(result.is_exhausted);
  EXPECT_GT(result.num_states, 100u);
}

TEST(ProtocolModel, EveryScheduleTerminatesAndAppliesChangesExactlyOnce) {
  expect_sound(bounds({2, 2, 1}));
}

TEST(ProtocolModel, SeveralCheckpointVersionsAreConsistent) { expect_sound(bounds({2, 1, 2})); }

/// Servers and the coordinator die, even while a version is saved or restored.
TEST(ProtocolModel, FinishedClosuresSurviveServerFailures) {
  expect_sound(
      bounds({3, 2, 1, PlantedBug::kNone, {Fault::kServerKilled, Fault::kCoordinatorKilled}}));
}

TEST(ProtocolModel, FinishedClosuresSurviveFailuresAmongThreeServers) {
  ModelOptions options = bounds({2, 2, 1, PlantedBug::kNone, {Fault::kServerKilled}});
  options.num_servers = 3;
  options.num_workers = 1;
  expect_sound(options);
}

TEST(ProtocolModel, RandomWalksWithManyFaultsKeepInvariants) {
  ModelOptions options{6, 8, 4};
  options.num_servers = 3;
  options.num_workers = 3;
  const ModelCheckResult result = walk_model(options, 1, other_bounds() != nullptr ? 50 : 500);
  print(options, result);
  EXPECT_EQ(result.violation, "") << trace_of(result);
  EXPECT_GT(result.depth, 100u);
}

class PlantedBugTest : public ::testing::TestWithParam<std::tuple<PlantedBug, ModelOptions>> {
 protected:
  ModelOptions planted() const {
    ModelOptions options = std::get<1>(GetParam());
    options.bug = std::get<0>(GetParam());
    return options;
  }
};

TEST_P(PlantedBugTest, IsFoundWithTrace) {
  const ModelCheckResult result = check_model(planted(), kMostStates);
  print(planted(), result);
  std::printf("%s\n", trace_of(result).c_str());
  EXPECT_NE(result.violation, "");
  EXPECT_FALSE(result.trace.empty());
}

/// Explores the correct protocol within the bounds that suffice to find the bug.
TEST_P(PlantedBugTest, ProtocolWithoutBugIsSound) { expect_sound(std::get<1>(GetParam())); }

INSTANTIATE_TEST_SUITE_P(
    EachBug, PlantedBugTest,
    ::testing::Values(std::tuple(PlantedBug::kOldIdsAccepted, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kTableKept, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kIdsWithoutGeneration, ModelOptions{1, 1, 1}),
                      std::tuple(PlantedBug::kVersionDuringInterruption, ModelOptions{1, 1, 1}),
                      std::tuple(PlantedBug::kFinishedBeforeConfirmed, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kRetryTakesNewNumber, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kRestoreSkipsSurvivors, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kFinishedNotQueuedAgain, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kRepeatedFreezeObeyed, ModelOptions{1, 1, 1}),
                      std::tuple(PlantedBug::kHeldNotChecked, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kReleasedBeforeNoted, ModelOptions{1, 1, 1}),
                      std::tuple(PlantedBug::kClosuresGivenOutWhilePaused, ModelOptions{1, 1, 1})));

}  // namespace protocol_model_test
}  // namespace tutti::testing

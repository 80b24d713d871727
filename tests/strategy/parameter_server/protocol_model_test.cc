// The coordinator's protocol in every state that a few workers and servers can reach.
// SPDX-License-Identifier: Apache-2.0
//
// TUTTI_MODEL_BOUNDS="closures faults cuts" sets other bounds than those below.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "tests/strategy/parameter_server/model_checker.h"

namespace tutti::testing {
namespace protocol_model_test {

constexpr std::size_t kMostStates = std::size_t{400} << 20;

/// Other bounds are for all kinds of faults.
ModelOptions bounds(ModelOptions usual) {
  const char* text = std::getenv("TUTTI_MODEL_BOUNDS");
  if (text == nullptr) return usual;
  ::alarm(0);  // the program's limit is for what hangs; such a search takes as long as it takes
  usual.kinds_of_faults.clear();
  std::istringstream in(text);
  in >> usual.num_closures >> usual.num_faults >> usual.num_cuts;
  return usual;
}

std::string trace_of(const ModelCheckResult& result) {
  return concat(result.violation, "\n  ", join(result.trace, "\n  "));
}

void print(const ModelOptions& options, const ModelCheckResult& result) {
  std::printf(
      "model: %d workers, %d servers, %d closures, %d faults, %d cuts: %zu states, %zu steps, "
      "depth %zu\n",
      options.num_workers, options.num_servers, options.num_closures, options.num_faults,
      options.num_cuts, result.num_states, result.num_steps, result.depth);
}

TEST(ProtocolModel, NoStateBreaksExactlyOnceAndEveryScheduleEnds) {
  for (const ModelOptions& usual : {ModelOptions{2, 1, 0}, ModelOptions{1, 2, 0}}) {
    const ModelOptions options = bounds(usual);
    const ModelCheckResult result = check_model(options, kMostStates);
    print(options, result);
    EXPECT_EQ(result.violation, "") << trace_of(result);
    EXPECT_TRUE(result.is_exhausted);
    EXPECT_GT(result.num_states, 100u);
    if (std::getenv("TUTTI_MODEL_BOUNDS") != nullptr) break;  // once is enough
  }
}

TEST(ProtocolModel, CutsAreConsistent) {
  const ModelOptions options = bounds(ModelOptions{1, 1, 2});
  const ModelCheckResult result = check_model(options, kMostStates);
  print(options, result);
  EXPECT_EQ(result.violation, "") << trace_of(result);
  EXPECT_TRUE(result.is_exhausted);
}

/// What was confirmed is there, whoever dies; nothing is applied twice. TUTTI_MODEL_BOUNDS sets
/// other bounds here, too.
TEST(ProtocolModel, NoStateLosesConfirmedUpdates) {
  using Kind = ModelStep::Kind;
  ModelOptions options{2, 2, 0, PlantedBug::kNone, {Kind::kKillServer, Kind::kDeliverAnswerLost}};
  options = bounds(options);
  const ModelCheckResult result = check_model(options, kMostStates);
  print(options, result);
  EXPECT_EQ(result.violation, "") << trace_of(result);
  EXPECT_TRUE(result.is_exhausted);
  EXPECT_GT(result.num_states, 100u);
}

TEST(ProtocolModel, NoStateWithSnapshotsLosesConfirmedUpdates) {
  using Kind = ModelStep::Kind;
  const ModelOptions options{
      1,
      2,
      1,
      PlantedBug::kNone,
      {Kind::kKillServer, Kind::kDeliverAnswerLost, Kind::kKillCoordinator, Kind::kDuplicate}};
  const ModelCheckResult result = check_model(options, kMostStates);
  print(options, result);
  EXPECT_EQ(result.violation, "") << trace_of(result);
  EXPECT_TRUE(result.is_exhausted);
}

TEST(ProtocolModel, NoStateWithThreeServersLosesConfirmedUpdates) {
  ModelOptions options{2, 2, 0, PlantedBug::kNone, {ModelStep::Kind::kKillServer}};
  options.num_servers = 3;
  options.num_workers = 1;
  const ModelCheckResult result = check_model(options, kMostStates);
  print(options, result);
  EXPECT_EQ(result.violation, "") << trace_of(result);
  EXPECT_TRUE(result.is_exhausted);
  EXPECT_GT(result.num_states, 100u);
}

/// A cut is begun and never taken: the server that saved it dies, and dies again.
ModelOptions of_void_cut() { return {1, 2, 1, PlantedBug::kNone, {ModelStep::Kind::kKillServer}}; }

class PlantedBugTest : public ::testing::TestWithParam<std::tuple<PlantedBug, ModelOptions>> {};

TEST_P(PlantedBugTest, IsFoundWithTheFewestSteps) {
  ModelOptions options = std::get<1>(GetParam());
  options.bug = std::get<0>(GetParam());
  const ModelCheckResult result = check_model(options, kMostStates);
  print(options, result);
  std::printf("%s\n", trace_of(result).c_str());
  EXPECT_NE(result.violation, "");
  EXPECT_FALSE(result.trace.empty());
}

INSTANTIATE_TEST_SUITE_P(
    EachBug, PlantedBugTest,
    ::testing::Values(std::tuple(PlantedBug::kSnapshotWithoutTable, ModelOptions{1, 1, 1}),
                      std::tuple(PlantedBug::kFinishedBeforeConfirmed, ModelOptions{1, 0, 0}),
                      std::tuple(PlantedBug::kRetryTakesNewNumber, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kOldTermAccepted, ModelOptions{2, 2, 0}),
                      std::tuple(PlantedBug::kAcknowledgeBeforeKept, ModelOptions{1, 1, 0}),
                      std::tuple(PlantedBug::kReplayWithoutTable, ModelOptions{1, 2, 0}),
                      std::tuple(PlantedBug::kLogGoesOnBeforeVoidCut, of_void_cut()),
                      std::tuple(PlantedBug::kLateSnapshotOverwrites,
                                 ModelOptions{2,
                                              2,
                                              1,
                                              PlantedBug::kNone,
                                              {ModelStep::Kind::kDuplicate,
                                               ModelStep::Kind::kKillServer}})));

}  // namespace protocol_model_test
}  // namespace tutti::testing

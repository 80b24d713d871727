// Tests creation of strategies by name, from options, flags and the environment.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/factory/make_strategy.h"
#include "tests/support/scopes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown.h"
#include "tests/support/warnings.h"
#include "tutti/strategy/strategies.h"

namespace tutti::make_strategy_test {

using test_scopes::EnvironmentScope;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MakeStrategy, EveryNameCreatesMatchingStrategy) {
  for (const std::string& name : strategy_names()) {
    SCOPED_TRACE(name);
    if (name == "tpu") continue;  // tests/xla covers "tpu", which needs a PJRT plugin
    const bool is_one = name == "one_device";
    const auto strategy = make_strategy(name, {.devices = is_one ? "cpu:0" : "cpu:0-1"});
    EXPECT_EQ(strategy->name(), name);
    EXPECT_EQ(strategy->num_replicas_in_sync(), is_one || name == "mesh" ? 1 : 2);
  }
}

TEST(MakeStrategy, DefaultsToAllDevicesOfMachine) {
  EXPECT_EQ(make_strategy("mirrored")->num_replicas_in_sync(),
            static_cast<int>(default_devices().size()));
  EXPECT_EQ(make_strategy("mirrored", {.replicas = 3})->num_replicas_in_sync(), 3);
}

TEST(MakeStrategy, ErrorNamesInvalidOption) {
  EXPECT_INVALID(make_strategy("mirorred"), "mirrored, central_storage", "'mirorred'",
                 "did you mean 'mirrored'?");
  EXPECT_INVALID(make_strategy("miror"), "'miror'", "did you mean 'mirrored'?");
  EXPECT_INVALID(make_strategy("mirrored", {.replicas = -1}), "replicas", "got -1");
  EXPECT_INVALID(make_strategy("one_device", {.replicas = 2}), "expected 1 replica for one_device",
                 "got 2", "use mirrored");
  EXPECT_INVALID(make_strategy("one_device", {.devices = "cpu:0-1"}),
                 "expected 1 device for one_device", "got 2", "'cpu:0-1'", "use mirrored");
  EXPECT_INVALID(make_strategy("central_storage", {.update_mode = "async"}),
                 "update_mode sync for central_storage, got async", "use parameter_server");
  EXPECT_INVALID(make_strategy("mirrored", {.compression = "zip"}), "'zip'");
  EXPECT_ERROR(make_strategy("mirrored", {.cross_device_ops = "star"}), kNotFound, "'star'",
               "ring");
}

/// Returns the warnings logged when a task of type `type` creates single-process strategies in a
/// job with a chief and two workers.
std::vector<std::string> warnings_as(const std::string& type) {
  const std::string config =
      concat(R"({"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "evaluator": ["d:1"]},)",
             R"( "task": {"index": 0, "type": ")", type, R"("}})");
  const EnvironmentScope environment("TF_CONFIG", config);
  return thrown::warnings_of([] {
    for (const char* name : {"mirrored", "one_device", "central_storage"})
      (void)make_strategy(name, {.devices = "cpu:0"});
  });
}

TEST(MakeStrategy, SingleProcessStrategyInsideJobWarnsOnce) {
  EXPECT_EQ(warnings_as("evaluator"), std::vector<std::string>());
  const std::vector<std::string> lines = warnings_as("worker");
  EXPECT_THAT(lines, ElementsAre(HasSubstr(
                         "trains alone, though TF_CONFIG names 3 processes: 3 copies train "
                         "and write the same files; use MultiWorkerMirroredStrategy")));
}

TEST(MakeStrategy, WarnsAboutUncoordinatedTorchrunProcesses) {
  const EnvironmentScope rank("RANK", "1"), size("WORLD_SIZE", "4");
  const std::vector<std::string> lines = thrown::warnings_of([] {
    for (const char* name : {"mirrored", "multi_worker_mirrored"})
      (void)make_strategy(name, {.devices = "cpu:0"});
  });
  const auto text = HasSubstr("trains alone, though WORLD_SIZE=4 (torchrun) names 4 processes");
  EXPECT_THAT(lines, ElementsAre(text, text));  // the two warnings suggest different remedies
}

TEST(MakeStrategy, WarnsOnceAboutUnusedOptions) {
  const auto lines = thrown::warnings_of([] {
    for (int i = 0; i < 2; ++i) {
      (void)make_strategy("mirrored", {.devices = "cpu:0", .transport = "tcp", .stage = 2});
      (void)make_strategy("one_device", {.devices = "cpu:0", .replicas_to_aggregate = 5});
    }
    (void)make_strategy("fully_sharded", {.devices = "cpu:0", .stage = 2});
  });
  EXPECT_THAT(
      lines,
      ElementsAre(
          "strategy options: stage 2 is an option of fully_sharded; mirrored does not use it",
          HasSubstr("transport tcp is an option of multi_worker_mirrored, "),
          HasSubstr(
              "replicas_to_aggregate 5 is an option of parameter_server; one_device does not")));
}

TEST(MakeStrategy, LogUsesSingularAndPluralForReplicas) {
  for (const auto& each :
       {std::pair{"cpu:0", ": 1 replica on cpu:0"}, {"cpu:0-1", ": 2 replicas on "}}) {
    const auto lines =
        thrown::lines_of([&] { (void)make_strategy("mirrored", {.devices = each.first}); });
    EXPECT_THAT(lines, ::testing::Contains(::testing::AllOf(
                           ::testing::StartsWith("strategy 'mirrored'"), HasSubstr(each.second))));
  }
}

TEST(MakeStrategy, EnvironmentVariablesSelectStrategy) {
  const EnvironmentScope name("TUTTI_STRATEGY", "central_storage"),
      devices("TUTTI_DEVICES", "cpu:0-2"), ops("TUTTI_CROSS_DEVICE_OPS", "ring");
  const StrategySpec spec = strategy_spec_from_environment({.devices = "cpu:0", .replicas = 6});
  const auto strategy = make_strategy(spec);
  EXPECT_EQ(strategy->name(), "central_storage");
  EXPECT_EQ(strategy->num_replicas_in_sync(), 6);
  EXPECT_EQ(spec.devices, "cpu:0-2");
  EXPECT_EQ(spec.cross_device_ops, "ring");
  const EnvironmentScope empty("TUTTI_STRATEGY", "");
  EXPECT_EQ(strategy_spec_from_environment().strategy, "mirrored");
}

TEST(MakeStrategy, FlagsSelectStrategy) {
  StrategySpec spec;
  Flags flags("test");
  add_strategy_flags(flags, spec);
  const char* words[] = {"program", "--strategy",    "parameter_server", "--devices",
                         "cpu:0-1", "--update-mode", "sync_replicas",    "--replicas-to-aggregate",
                         "1"};
  ASSERT_EQ(flags.parse(static_cast<int>(std::size(words)), const_cast<char**>(words)), -1);
  EXPECT_EQ(make_strategy(spec)->name(), "parameter_server");
  EXPECT_EQ(spec.replicas_to_aggregate, 1);
}

TEST(MakeStrategy, UnknownUpdateModeIsNamedInError) {
  EXPECT_INVALID(make_strategy("parameter_server", {.update_mode = "ssp"}),
                 "expected sync, async or sync_replicas", "'ssp'");
  StrategySpec spec;
  Flags flags("test");
  add_strategy_flags(flags, spec);
  const char* words[] = {"program", "--update-mode", "ssp"};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(flags.parse(3, const_cast<char**>(words)), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("sync_replicas"));
}

}  // namespace tutti::make_strategy_test

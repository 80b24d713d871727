// Which resolver the environment suggests; environments and addresses themselves.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolver_registry.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/resolvers/static_resolver.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace resolver_registry_test {

using testing::expect_error;

const Environment::Variables& slurm() {
  static const Environment::Variables variables{{"SLURM_PROCID", "1"},
                                                {"SLURM_STEP_NUM_TASKS", "2"},
                                                {"SLURM_STEP_NODELIST", "n[1-2]"},
                                                {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  return variables;
}

Environment with(Environment::Variables variables, const Environment::Variables& more = {}) {
  variables.insert(more.begin(), more.end());
  return Environment(std::move(variables));
}

std::string chosen(const Environment& environment) {
  return choose_resolver(environment).resolver->name();
}

TEST(ResolverRegistry, TakesWhatTheEnvironmentSuggests) {
  const Environment::Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "0"},
                                        {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(chosen(Environment()), "local");
  EXPECT_EQ(chosen(with({{"TF_CONFIG", " "}})), "local");
  EXPECT_EQ(chosen(with({{"TF_CONFIG", "{}"}}, slurm())), "TF_CONFIG");
  EXPECT_EQ(chosen(with(open_mpi)), "MPI");
  EXPECT_EQ(chosen(with(slurm())), "Slurm");
  EXPECT_EQ(chosen(with({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})), "MPI");
  EXPECT_EQ(chosen(with({{"HOSTNAME", "a-0"}, {"TUTTI_KUBERNETES_JOBS", "worker=2"}})),
            "Kubernetes");
  EXPECT_EQ(chosen(with({{"SM_HOSTS", "[\"a\"]"}, {"SM_CURRENT_HOST", "a"}})), "SageMaker");
}

TEST(ResolverRegistry, AnMpirunInsideSlurmBeatsSlurm) {
  EXPECT_EQ(chosen(with({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "8"}}, slurm())),
            "MPI");
  EXPECT_EQ(chosen(with({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, slurm())), "Slurm");  // srun's own
  EXPECT_EQ(chosen(with({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}}, slurm())),
            "MPI");
}

TEST(ResolverRegistry, SaysWhatItTookAndWhyInOneLine) {
  std::vector<std::string> lines;
  const LogSink before =
      set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  const std::unique_ptr<ClusterResolver> local = resolver_from_environment(Environment());
  const std::unique_ptr<ClusterResolver> resolver = resolver_from_environment(
      with({{"TF_CONFIG", R"({"cluster": {"chief": ["localhost:1"], "worker": ["b:1"]},
                              "task": {"type": "worker", "index": 0}})"}}));
  set_log_sink(before);
  EXPECT_EQ(local->task(), (Task{"worker", 0}));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0],
            "cluster: TF_CONFIG: this is worker 0 of 1 chief (localhost:1), 1 worker (b:1), "
            "because TF_CONFIG is set");
  EXPECT_NE(lines[1].find("chief 0 at localhost:1"), std::string::npos) << lines[1];
}

TEST(ResolverRegistry, WarnsOnceOfCopiesThatAnotherLauncherStarted) {
  std::vector<std::string> lines;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) lines.emplace_back(line);
  });
  const auto resolve = [](const Environment::Variables& variables) {
    EXPECT_TRUE(resolver_from_environment(Environment(variables))->cluster_spec().empty());
  };
  for (int time = 0; time < 2; ++time) {
    resolve({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
    resolve({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  }
  resolve({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  resolve({{"WORLD_SIZE", "8"}});  // of something else
  resolve({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "1"}});
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(
      lines[0].find("trains alone, though WORLD_SIZE=8 (torchrun) names 8 processes: 8 copies "
                    "train and write the same files; try tutti run"),
      std::string::npos)
      << lines[0];
  EXPECT_NE(lines[1].find("SLURM_NTASKS=4 (Slurm) names 4 processes"), std::string::npos)
      << lines[1];
}

TEST(ResolverRegistry, MakesResolversByName) {
  const std::vector<std::string> names = registered_cluster_resolvers();
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 7),
            (std::vector<std::string>{"auto", "tf_config", "slurm", "mpi", "kubernetes",
                                      "sagemaker", "local"}));
  EXPECT_EQ(make_cluster_resolver("slurm", with(slurm()))->task(), (Task{"worker", 1}));
  EXPECT_EQ(make_cluster_resolver("auto", with(slurm()))->name(), "Slurm");
  EXPECT_TRUE(make_cluster_resolver("local", with(slurm()))->cluster_spec().empty());
  EXPECT_TRUE(make_cluster_resolver("tf_config", Environment())->cluster_spec().empty());
  expect_error(ErrorCode::kNotFound, {"'pbs'", "auto, tf_config, slurm"},
               [] { make_cluster_resolver("pbs", Environment()); });
}

TEST(ResolverRegistry, TakesResolversOfOthers) {
  register_cluster_resolver("table", [](const Environment&) {
    return std::make_unique<StaticResolver>(ClusterSpec({{"worker", {"a:1"}}}));
  });
  EXPECT_EQ(make_cluster_resolver("table")->cluster_spec().num_tasks("worker"), 1);
  expect_error(ErrorCode::kAlreadyExists, {"'table'"},
               [] { register_cluster_resolver("table", nullptr); });
  expect_error(ErrorCode::kInvalidArgument, {"a name"},
               [] { register_cluster_resolver("", nullptr); });
}

TEST(ResolverRegistry, KnowsWhereTheTasksMeet) {
  EXPECT_EQ(control_address(with({{"TUTTI_CONTROL", "grpc://a:1"}})), "grpc://a:1");
  EXPECT_EQ(control_address(Environment()), "");
}

TEST(Environment, IsReadOnceAndStays) {
  ::setenv("TUTTI_TEST_OF_ENVIRONMENT", "before=1", 1);
  const Environment environment = Environment::of_process();
  ::setenv("TUTTI_TEST_OF_ENVIRONMENT", "after", 1);
  EXPECT_EQ(environment.find("TUTTI_TEST_OF_ENVIRONMENT"), "before=1");
  ::unsetenv("TUTTI_TEST_OF_ENVIRONMENT");
  EXPECT_TRUE(environment.has("TUTTI_TEST_OF_ENVIRONMENT"));
  EXPECT_FALSE(Environment::of_process().has("TUTTI_TEST_OF_ENVIRONMENT"));
}

TEST(Environment, NamesTheVariableThatIsNoNumber) {
  const Environment environment({{"A", "7"}, {"B", "x"}, {"C", ""}, {"D", "07"}, {"E", "-1"}});
  EXPECT_EQ(environment.find_int("A", 0, 7), 7);
  EXPECT_EQ(environment.find_int("F", 0, 7), std::nullopt);
  EXPECT_EQ(environment.first_of({"F", "C", "A"}), "");
  for (const char* name : {"B", "C", "D", "E"}) {
    expect_error(ErrorCode::kInvalidArgument,
                 {concat(name, ": expected a whole number from 0 to 9")},
                 [&] { environment.find_int(name, 0, 9); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"A: expected", "from 8"},
               [&] { environment.find_int("A", 8, 9); });
  expect_error(ErrorCode::kFailedPrecondition, {"me: the variable F is not set; do that"},
               [&] { environment.at("me", "F", "do that"); });
}

}  // namespace resolver_registry_test
}  // namespace tutti

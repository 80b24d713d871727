// Tests cluster specifications, the choice of the chief and of the resolver, and environments
// without a cluster.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/file.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/warnings.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/cluster/resolvers/launcher_resolvers.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"

namespace tutti::cluster_spec_test {

using testing::expect_error;
using Addresses = std::vector<std::optional<std::string>>;

const ClusterSpec& ps_and_workers() {
  static const ClusterSpec cluster({{"ps", {"ps0:2222", "ps1:2222"}},
                                    {"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}});
  return cluster;
}

TEST(ClusterSpec, EveryInputFormatYieldsSameSpec) {
  const ClusterSpec& cluster = ps_and_workers();
  EXPECT_EQ(ClusterSpec(cluster), cluster);
  EXPECT_EQ(ClusterSpec(cluster.as_dict()), cluster);
  EXPECT_EQ(ClusterSpec::from_json(cluster.to_json()), cluster);
  EXPECT_EQ(ClusterSpec::from_cluster_def(cluster.as_cluster_def()), cluster);
  const Json text = Json::parse(cluster.as_cluster_def().dump());
  EXPECT_EQ(ClusterSpec::from_cluster_def(text), cluster);
}

TEST(ClusterSpec, EqualityComparesJobsTasksAndOrder) {
  EXPECT_EQ(ClusterSpec({{"job", {{0, "a:1"}}}}), ClusterSpec({{"job", {"a:1"}}}));
  EXPECT_EQ(ClusterSpec({{"job", {{1, "b:1"}, {0, "a:1"}}}}),
            ClusterSpec({{"job", {"a:1", "b:1"}}}));
  EXPECT_NE(ClusterSpec({{"job", {"a:1", "b:1"}}}), ClusterSpec({{"job", {"b:1", "a:1"}}}));
  EXPECT_NE(ClusterSpec({{"job", {"a:1"}}}), ClusterSpec({{"other", {"a:1"}}}));
  EXPECT_NE(ClusterSpec({{"job", {{0, "a:1"}}}}), ClusterSpec({{"job", {{1, "a:1"}}}}));
  EXPECT_NE(ClusterSpec({{"job", {"a:1"}}}), ClusterSpec({{"job", {"a:1"}}, {"other", {"b:1"}}}));
}

TEST(ClusterSpec, ConvertsToFalseWhenEmpty) {
  EXPECT_FALSE(ClusterSpec());
  EXPECT_TRUE(ClusterSpec().empty());
  EXPECT_FALSE(ClusterSpec::from_json(Json::object()));
  EXPECT_FALSE(ClusterSpec::from_cluster_def(Json::object()));
  EXPECT_TRUE(ClusterSpec({{"job", {"a:1"}}}));
  EXPECT_EQ(ClusterSpec().total_tasks(), 0);
}

TEST(ClusterSpec, SupportsDenseAndSparseJobs) {
  const ClusterSpec cluster({{"ps", {"ps0:2222", "ps1:2222"}},
                             {"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}},
                             {"sparse", {{0, "sparse0:2222"}, {3, "sparse3:2222"}}}});
  EXPECT_EQ(cluster.jobs(), (std::vector<std::string>{"ps", "sparse", "worker"}));
  EXPECT_EQ(cluster.num_tasks("ps"), 2);
  EXPECT_EQ(cluster.num_tasks("worker"), 3);
  EXPECT_EQ(cluster.num_tasks("sparse"), 2);
  EXPECT_EQ(cluster.task_indices("worker"), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(cluster.task_indices("sparse"), (std::vector<int>{0, 3}));
  EXPECT_EQ(cluster.task_address("worker", 2), "worker2:2222");
  EXPECT_EQ(cluster.task_address("sparse", 0), "sparse0:2222");
  EXPECT_EQ(cluster.task_address("sparse", 3), "sparse3:2222");
  EXPECT_EQ(cluster.job_tasks("ps"), (Addresses{"ps0:2222", "ps1:2222"}));
  EXPECT_EQ(cluster.job_tasks("sparse"),
            (Addresses{"sparse0:2222", std::nullopt, std::nullopt, "sparse3:2222"}));
  EXPECT_EQ(cluster.total_tasks(), 7);
}

TEST(ClusterSpec, MissingTaskErrorListsExistingTasks) {
  const ClusterSpec cluster({{"ps", {"a:1"}}, {"sparse", {{0, "b:1"}, {3, "c:1"}}}});
  EXPECT_ERROR(cluster.task_address("sparse", 2), kNotFound, "'sparse' has no task 2", "0, 3");
  const std::vector<std::string> parts{"no job 'worker'", "jobs are ps, sparse"};
  expect_error(ErrorCode::kNotFound, parts, [&] { cluster.num_tasks("worker"); });
  expect_error(ErrorCode::kNotFound, parts, [&] { cluster.task_indices("worker"); });
  expect_error(ErrorCode::kNotFound, parts, [&] { cluster.task_address("worker", 0); });
  expect_error(ErrorCode::kNotFound, parts, [&] { cluster.job_tasks("worker"); });
  EXPECT_ERROR(ClusterSpec().num_tasks("worker"), kNotFound, "the cluster is empty");
  EXPECT_EQ(cluster.count("worker"), 0);
  EXPECT_FALSE(cluster.has_job("worker"));
  EXPECT_FALSE(cluster.has_task({"sparse", 2}));
  EXPECT_TRUE(cluster.has_task({"sparse", 3}));
}

TEST(ClusterSpec, KeepsJobWithoutTasks) {
  const ClusterSpec cluster({{"ps", {}}, {"worker", {"a:1"}}});
  EXPECT_EQ(cluster.num_tasks("ps"), 0);
  EXPECT_TRUE(cluster.job_tasks("ps").empty());
  EXPECT_EQ(ClusterSpec::from_json(cluster.to_json()), cluster);
  EXPECT_EQ(ClusterSpec::from_cluster_def(cluster.as_cluster_def()), cluster);
  EXPECT_ERROR(cluster.task_address("ps", 0), kNotFound, "it has no tasks");
}

TEST(ClusterSpec, RefusesInvalidClusters) {
  EXPECT_INVALID(ClusterSpec({{"a", {"a:1"}}, {"a", {"b:1"}}}), "'a' is given twice");
  EXPECT_INVALID(ClusterSpec({{"", {"a:1"}}}), "no name");
  EXPECT_INVALID(JobTasks({{-1, "a:1"}, {0, "b:1"}}), ">= 0, got -1");
  EXPECT_INVALID(JobTasks(std::map<int, std::string>{{-2, "a:1"}}), ">= 0, got -2");
  EXPECT_INVALID(JobTasks({{1, "a:1"}, {1, "b:1"}}), "index 1 is given twice, as 'a:1' and 'b:1'");
}

TEST(ClusterSpec, SerializesDenseAndSparseJobsLikeTensorFlow) {
  const ClusterSpec cluster({{"worker", {"a:1", "b:1"}}, {"ps", {{1, "c:1"}, {10, "d:1"}}}});
  EXPECT_EQ(cluster.to_json().dump(), R"({"ps":{"1":"c:1","10":"d:1"},"worker":["a:1","b:1"]})");
  EXPECT_EQ(cluster.as_cluster_def().dump(),
            R"({"job":[{"name":"ps","tasks":{"1":"c:1","10":"d:1"}},)"
            R"({"name":"worker","tasks":{"0":"a:1","1":"b:1"}}]})");
  EXPECT_EQ(concat(cluster), "2 ps (1 at c:1, 10 at d:1), 2 workers (a:1, b:1)");
  EXPECT_EQ(concat(ClusterSpec()), "no cluster");
}

TEST(ClusterSpec, TruncatesLongListsWhenPrinted) {
  const ClusterSpec cluster({{"worker", std::vector<std::string>(500, "a:1")}});
  EXPECT_EQ(concat(cluster),
            "500 workers (a:1, a:1, a:1, a:1, a:1, a:1, a:1, a:1, ... (500 in all))");
}

TEST(ClusterSpec, ListsTasksByJobAndIndex) {
  const std::vector<Task> expected{
      {"ps", 0}, {"ps", 1}, {"worker", 0}, {"worker", 1}, {"worker", 2}};
  EXPECT_EQ(ps_and_workers().tasks(), expected);
  EXPECT_EQ(concat(expected[3]), "worker 1");
  EXPECT_EQ(expected[3].device_prefix(), "/job:worker/replica:0/task:1");
}

TEST(ClusterSpec, ClusterDefErrorsHaveFieldPath) {
  const auto error_at = [](const char* text, const std::vector<std::string>& parts) {
    expect_error(ErrorCode::kInvalidArgument, parts,
                 [&] { ClusterSpec::from_cluster_def(Json::parse(text), "def"); });
  };
  error_at("[]", {"def: expected", "got []"});
  error_at(R"({"job": {}})", {"def.job: expected a list", "got {}"});
  error_at(R"({"job": [{}]})", {"def.job[0]: expected a member 'name'"});
  error_at(R"({"job": [{"name": "a"}, {"name": "a"}]})",
           {"def.job[1].name: expected each job once"});
  error_at(R"({"job": [{"name": "a", "tasks": []}]})", {"def.job[0].tasks: expected an object"});
  error_at(R"({"job": [{"name": "a b"}]})", {"def.job[0].name: expected a job's name"});
}

const ClusterSpec& with_chief() {
  static const ClusterSpec cluster({{"chief", {"a:1"}},
                                    {"worker", {"b:1", "c:1"}},
                                    {"ps", {"d:1", "e:1"}},
                                    {"evaluator", {"f:1"}}});
  return cluster;
}

const ClusterSpec& workers_alone() {
  static const ClusterSpec cluster({{"worker", {"b:1", "c:1", "d:1"}}});
  return cluster;
}

TEST(MultiWorkerUtil, DerivesChiefIdWorkerCountAndLeaderFromTask) {
  EXPECT_TRUE(is_chief(with_chief(), {"chief", 0}));
  EXPECT_TRUE(is_chief(with_chief(), {"evaluator", 0}));
  EXPECT_FALSE(is_chief(with_chief(), {"worker", 0}));
  EXPECT_FALSE(is_chief(with_chief(), {"ps", 0}));
  EXPECT_TRUE(is_chief(workers_alone(), {"worker", 0}));
  EXPECT_FALSE(is_chief(workers_alone(), {"worker", 1}));
  EXPECT_TRUE(is_chief(ClusterSpec({{"chief", {}}, {"worker", {"b:1"}}}), {"worker", 0}));
  EXPECT_EQ(id_in_cluster(with_chief(), {"chief", 0}), 0);
  EXPECT_EQ(id_in_cluster(with_chief(), {"worker", 0}), 1);
  EXPECT_EQ(id_in_cluster(with_chief(), {"worker", 1}), 2);
  EXPECT_EQ(id_in_cluster(with_chief(), {"evaluator", 0}), 0);
  EXPECT_EQ(id_in_cluster(workers_alone(), {"worker", 2}), 2);
  EXPECT_INVALID(id_in_cluster(with_chief(), {"ps", 0}), "id_in_cluster", "ps");
  EXPECT_EQ(worker_count(with_chief(), "chief"), 3);
  EXPECT_EQ(worker_count(with_chief(), "worker"), 3);
  EXPECT_EQ(worker_count(with_chief(), "evaluator"), 1);
  EXPECT_EQ(worker_count(workers_alone(), "worker"), 3);
  EXPECT_INVALID(worker_count(with_chief(), "ps"), "worker_count", "ps");
  EXPECT_EQ(collective_leader(with_chief(), {"worker", 1}), "/job:chief/replica:0/task:0");
  EXPECT_EQ(collective_leader(with_chief(), {"ps", 0}), "/job:chief/replica:0/task:0");
  EXPECT_EQ(collective_leader(workers_alone(), {"worker", 1}), "/job:worker/replica:0/task:0");
  EXPECT_EQ(collective_leader(with_chief(), {"evaluator", 0}), "");
  EXPECT_EQ(collective_leader({}, {}), "");
}

TEST(MultiWorkerUtil, RefusesInvalidClusters) {
  const auto refused = [](const ClusterSpec& cluster, const Task& task,
                          const std::vector<std::string>& parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { validate_cluster(cluster, task); });
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { is_chief(cluster, task); });
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { id_in_cluster(cluster, task); });
  };
  refused(workers_alone(), {"helper", 0}, {"ClusterSpec.task.type", "chief, worker", "\"helper\""});
  refused(workers_alone(), {"chief", 0}, {"ClusterSpec.task.type", "worker", "\"chief\""});
  refused(ClusterSpec({{"chief", {"a:1", "b:1"}}, {"worker", {"c:1"}}}), {"worker", 0},
          {"ClusterSpec.cluster.chief: expected at most one", "2"});
  refused(ClusterSpec({{"evaluator", {"a:1", "b:1"}}, {"worker", {"c:1"}}}), {"worker", 0},
          {"ClusterSpec.cluster.evaluator: expected at most one", "2"});
  refused(workers_alone(), {"worker", 3}, {"ClusterSpec.task.index", "0 to 2", "got 3"});
  refused(workers_alone(), {"worker", -1}, {"ClusterSpec.task.index", "got -1"});
  refused(ClusterSpec({{"helper", {"a:1"}}, {"worker", {"c:1"}}}), {"worker", 0},
          {"ClusterSpec.cluster.helper"});
  refused(ClusterSpec({{"worker", {{0, "a:1"}, {2, "c:1"}}}}), {"worker", 0},
          {"ClusterSpec.cluster.worker", "without gaps", "0, 2"});
  EXPECT_INVALID(validate_cluster(ClusterSpec({{"ps", {}}, {"worker", {"a:1"}}}), {"ps", 0}),
                 "ps has no tasks");
}

TEST(MultiWorkerUtil, EmptyClusterCountsAsOneWorker) {
  EXPECT_TRUE(is_chief({}, {"worker", 0}));
  EXPECT_EQ(id_in_cluster({}, {"worker", 0}), 0);
  EXPECT_EQ(worker_count({}, "worker"), 1);
  EXPECT_FALSE(has_worker({}));
  EXPECT_TRUE(should_save_checkpoint({}, {"worker", 0}));
  EXPECT_TRUE(training_tasks({}).empty());
}

TEST(MultiWorkerUtil, OnlyChiefSavesAndTaskIdsAreConsecutive) {
  EXPECT_TRUE(has_worker(with_chief()));
  EXPECT_FALSE(has_worker(ClusterSpec({{"worker", {"a:1"}}, {"ps", {"b:1"}}})));
  for (const Task& task : training_tasks(with_chief())) {
    EXPECT_EQ(should_save_checkpoint(with_chief(), task), task.type == "chief") << task;
    EXPECT_EQ(should_save_summary(with_chief(), task), task.type == "chief") << task;
  }
  const std::vector<Task> tasks = training_tasks(with_chief());
  ASSERT_EQ(tasks.size(), 3U);
  for (int id = 0; id < 3; ++id) {
    EXPECT_EQ(id_in_cluster(with_chief(), tasks[static_cast<std::size_t>(id)]), id);
  }
}

TEST(MultiWorkerUtil, EvaluatorOutsideClusterIsSingleWorker) {
  const Task evaluator{"evaluator", 0};
  EXPECT_TRUE(is_chief(workers_alone(), evaluator));
  EXPECT_EQ(id_in_cluster(workers_alone(), evaluator), 0);
  EXPECT_EQ(worker_count(workers_alone(), "evaluator"), 1);
  EXPECT_EQ(collective_leader(workers_alone(), evaluator), "");
  EXPECT_INVALID(is_chief(workers_alone(), {"evaluator", 1}), "ClusterSpec.task.type");
}

TEST(MultiWorkerUtil, ResolverForSeveralTasksMustNameItsOwnTask) {
  EXPECT_INVALID(validate_cluster(StaticResolver(workers_alone())),
                 "StaticResolver.task: expected the task");
  EXPECT_NO_THROW(validate_cluster(StaticResolver(ClusterSpec({{"worker", {"a:1"}}}))));
  EXPECT_NO_THROW(validate_cluster(StaticResolver(ClusterSpec())));
}

TEST(MultiWorkerUtil, WarnsAboutLoopbackAmongOtherAddresses) {
  const auto doubts = [](const ClusterSpec& cluster) {
    return doubts_about(StaticResolver(cluster));
  };
  EXPECT_TRUE(doubts(with_chief()).empty());
  EXPECT_TRUE(doubts(ClusterSpec({{"worker", {"127.0.0.1:1", "localhost:2", "[::1]:3"}}})).empty());
  const std::vector<std::string> lines =
      doubts(ClusterSpec({{"worker", {"10.0.0.1:1", "localhost:2222"}}}));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("worker 1 at localhost:2222"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("worker 0 at 10.0.0.1:1"), std::string::npos) << lines[0];
  const Environment mpi({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
  EXPECT_TRUE(doubts_about(MpiResolver({}, mpi)).empty());
}

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

TEST(ResolverRegistry, ChoosesResolverByEnvironment) {
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

TEST(ResolverRegistry, MpirunInsideSlurmTakesPrecedence) {
  EXPECT_EQ(chosen(with({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "8"}}, slurm())),
            "MPI");
  EXPECT_EQ(chosen(with({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, slurm())), "Slurm");  // set by srun
  EXPECT_EQ(chosen(with({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}}, slurm())),
            "MPI");
}

TEST(ResolverRegistry, LogsChoiceInOneLine) {
  const thrown::LogLines log;
  const std::unique_ptr<ClusterResolver> local = resolver_from_environment(Environment());
  const std::unique_ptr<ClusterResolver> resolver = resolver_from_environment(
      with({{"TF_CONFIG", R"({"cluster": {"chief": ["localhost:1"], "worker": ["b:1"]},
                              "task": {"type": "worker", "index": 0}})"}}));
  const std::vector<std::string> lines = log.list();
  EXPECT_EQ(local->task(), (Task{"worker", 0}));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0],
            "cluster: TF_CONFIG: this is worker 0 of 1 chief (localhost:1), 1 worker (b:1), "
            "because TF_CONFIG is set");
  EXPECT_NE(lines[1].find("chief 0 at localhost:1"), std::string::npos) << lines[1];
}

TEST(ResolverRegistry, WarnsOnceIfLauncherStartedIndependentCopies) {
  const thrown::LogLines log(LogLevel::kWarning);
  const auto resolve = [](const Environment::Variables& variables) {
    EXPECT_TRUE(resolver_from_environment(Environment(variables))->cluster_spec().empty());
  };
  for (int time = 0; time < 2; ++time) {
    resolve({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
    resolve({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  }
  resolve({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  resolve({{"WORLD_SIZE", "8"}});  // set by an unrelated tool
  resolve({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "1"}});
  const std::vector<std::string> lines = log.list();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(
      lines[0].find("trains alone, though WORLD_SIZE=8 (torchrun) names 8 processes: 8 copies "
                    "train and write the same files; use tutti run"),
      std::string::npos)
      << lines[0];
  EXPECT_NE(lines[1].find("SLURM_NTASKS=4 (Slurm) names 4 processes"), std::string::npos)
      << lines[1];
}

TEST(ResolverRegistry, CreatesResolversByName) {
  const std::vector<std::string> names = registered_cluster_resolvers();
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 7),
            (std::vector<std::string>{"auto", "tf_config", "slurm", "mpi", "kubernetes",
                                      "sagemaker", "local"}));
  EXPECT_EQ(make_cluster_resolver("slurm", with(slurm()))->task(), (Task{"worker", 1}));
  EXPECT_EQ(make_cluster_resolver("auto", with(slurm()))->name(), "Slurm");
  EXPECT_TRUE(make_cluster_resolver("local", with(slurm()))->cluster_spec().empty());
  EXPECT_TRUE(make_cluster_resolver("tf_config", Environment())->cluster_spec().empty());
  EXPECT_ERROR(make_cluster_resolver("pbs", Environment()), kNotFound, "'pbs'",
               "auto, tf_config, slurm");
}

TEST(ResolverRegistry, AcceptsUserResolversAndReadsControlAddress) {
  register_cluster_resolver("table", [](const Environment&) {
    return std::make_unique<StaticResolver>(ClusterSpec({{"worker", {"a:1"}}}));
  });
  EXPECT_EQ(make_cluster_resolver("table")->cluster_spec().num_tasks("worker"), 1);
  EXPECT_ERROR(register_cluster_resolver("table", nullptr), kAlreadyExists, "'table'");
  EXPECT_INVALID(register_cluster_resolver("", nullptr), "a name");
  EXPECT_EQ(control_address(with({{"TUTTI_CONTROL", "grpc://a:1"}})), "grpc://a:1");
  EXPECT_EQ(control_address(Environment()), "");
}

TEST(Environment, SnapshotIgnoresLaterChanges) {
  ::setenv("TUTTI_TEST_OF_ENVIRONMENT", "before=1", 1);
  const Environment environment = Environment::of_process();
  ::setenv("TUTTI_TEST_OF_ENVIRONMENT", "after", 1);
  EXPECT_EQ(environment.find("TUTTI_TEST_OF_ENVIRONMENT"), "before=1");
  ::unsetenv("TUTTI_TEST_OF_ENVIRONMENT");
  EXPECT_TRUE(environment.has("TUTTI_TEST_OF_ENVIRONMENT"));
  EXPECT_FALSE(Environment::of_process().has("TUTTI_TEST_OF_ENVIRONMENT"));
}

TEST(Environment, ErrorNamesNonNumericVariable) {
  const Environment environment({{"A", "7"}, {"B", "x"}, {"C", ""}, {"D", "07"}, {"E", "-1"}});
  EXPECT_EQ(environment.find_int("A", 0, 7), 7);
  EXPECT_EQ(environment.find_int("F", 0, 7), std::nullopt);
  EXPECT_EQ(environment.first_of({"F", "C", "A"}), "");
  for (const char* name : {"B", "C", "D", "E"}) {
    EXPECT_INVALID(environment.find_int(name, 0, 9),
                   concat(name, ": expected a whole number from 0 to 9"));
  }
  EXPECT_INVALID(environment.find_int("A", 8, 9), "A: expected", "from 8");
  EXPECT_ERROR(environment.at("me", "F", "do that"), kFailedPrecondition,
               "me: the variable F is not set; do that");
}

// The cases are in malformed_clusters.json; tests/tools/tutti_cluster_test.py runs a program with
// each case.

Environment environment_of(const Json& variables) {
  Environment::Variables values;
  for (const auto& [name, value] : variables.as_object()) values[name] = value.as_string();
  return Environment(std::move(values));
}

std::string error_of(const Environment& environment) {
  try {
    validate_cluster(*choose_resolver(environment).resolver);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(MalformedClusters, ErrorStatesPathAndExpectedAndActualValues) {
  const Json table = Json::parse(read_file(TUTTI_MALFORMED_CLUSTERS));
  EXPECT_GE(table.as_array().size(), 60U);
  for (const Json& entry : table.as_array()) {
    const std::string error = error_of(environment_of(entry.at("environment")));
    EXPECT_EQ(error, entry.at("error").as_string()) << entry.at("name").as_string();
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

}  // namespace tutti::cluster_spec_test

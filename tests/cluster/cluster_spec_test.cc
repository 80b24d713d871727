// Cluster specifications: making, asking, comparing, JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/cluster_spec.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace cluster_spec_test {

using testing::expect_error;
using Addresses = std::vector<std::optional<std::string>>;

const ClusterSpec& ps_and_workers() {
  static const ClusterSpec cluster({{"ps", {"ps0:2222", "ps1:2222"}},
                                    {"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}});
  return cluster;
}

TEST(ClusterSpec, EveryInputFormGivesTheSameSpec) {
  const ClusterSpec& cluster = ps_and_workers();
  EXPECT_EQ(ClusterSpec(cluster), cluster);
  EXPECT_EQ(ClusterSpec(cluster.as_dict()), cluster);
  EXPECT_EQ(ClusterSpec::from_json(cluster.to_json()), cluster);
  EXPECT_EQ(ClusterSpec::from_cluster_def(cluster.as_cluster_def()), cluster);
  const Json text = Json::parse(cluster.as_cluster_def().dump());
  EXPECT_EQ(ClusterSpec::from_cluster_def(text), cluster);
}

TEST(ClusterSpec, ComparesJobsTasksAndTheirOrder) {
  EXPECT_EQ(ClusterSpec({{"job", {{0, "a:1"}}}}), ClusterSpec({{"job", {"a:1"}}}));
  EXPECT_EQ(ClusterSpec({{"job", {{1, "b:1"}, {0, "a:1"}}}}),
            ClusterSpec({{"job", {"a:1", "b:1"}}}));
  EXPECT_NE(ClusterSpec({{"job", {"a:1", "b:1"}}}), ClusterSpec({{"job", {"b:1", "a:1"}}}));
  EXPECT_NE(ClusterSpec({{"job", {"a:1"}}}), ClusterSpec({{"other", {"a:1"}}}));
  EXPECT_NE(ClusterSpec({{"job", {{0, "a:1"}}}}), ClusterSpec({{"job", {{1, "a:1"}}}}));
  EXPECT_NE(ClusterSpec({{"job", {"a:1"}}}), ClusterSpec({{"job", {"a:1"}}, {"other", {"b:1"}}}));
}

TEST(ClusterSpec, IsFalseWhenEmpty) {
  EXPECT_FALSE(ClusterSpec());
  EXPECT_TRUE(ClusterSpec().empty());
  EXPECT_FALSE(ClusterSpec::from_json(Json::object()));
  EXPECT_FALSE(ClusterSpec::from_cluster_def(Json::object()));
  EXPECT_TRUE(ClusterSpec({{"job", {"a:1"}}}));
  EXPECT_EQ(ClusterSpec().total_tasks(), 0);
}

TEST(ClusterSpec, SupportsListsAndSparseJobs) {
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
  expect_error(ErrorCode::kNotFound, {"'sparse' has no task 2", "0, 3"},
               [&] { cluster.task_address("sparse", 2); });
  const std::vector<std::string> parts{"no job 'worker'", "jobs are ps, sparse"};
  expect_error(ErrorCode::kNotFound, parts, [&] { cluster.num_tasks("worker"); });
  expect_error(ErrorCode::kNotFound, parts, [&] { cluster.task_indices("worker"); });
  expect_error(ErrorCode::kNotFound, parts, [&] { cluster.task_address("worker", 0); });
  expect_error(ErrorCode::kNotFound, parts, [&] { cluster.job_tasks("worker"); });
  expect_error(ErrorCode::kNotFound, {"the cluster is empty"},
               [] { ClusterSpec().num_tasks("worker"); });
  EXPECT_EQ(cluster.count("worker"), 0);
  EXPECT_FALSE(cluster.has_job("worker"));
  EXPECT_FALSE(cluster.has_task({"sparse", 2}));
  EXPECT_TRUE(cluster.has_task({"sparse", 3}));
}

TEST(ClusterSpec, KeepsAJobWithoutTasks) {
  const ClusterSpec cluster({{"ps", {}}, {"worker", {"a:1"}}});
  EXPECT_EQ(cluster.num_tasks("ps"), 0);
  EXPECT_TRUE(cluster.job_tasks("ps").empty());
  EXPECT_EQ(ClusterSpec::from_json(cluster.to_json()), cluster);
  EXPECT_EQ(ClusterSpec::from_cluster_def(cluster.as_cluster_def()), cluster);
  expect_error(ErrorCode::kNotFound, {"it has no tasks"}, [&] { cluster.task_address("ps", 0); });
}

TEST(ClusterSpec, RefusesInvalidClusters) {
  expect_error(ErrorCode::kInvalidArgument, {"'a' is given twice"}, [] {
    ClusterSpec({{"a", {"a:1"}}, {"a", {"b:1"}}});
  });
  expect_error(ErrorCode::kInvalidArgument, {"no name"}, [] { ClusterSpec({{"", {"a:1"}}}); });
  expect_error(ErrorCode::kInvalidArgument, {"at least 0, got -1"}, [] {
    JobTasks({{-1, "a:1"}, {0, "b:1"}});
  });
  expect_error(ErrorCode::kInvalidArgument, {"at least 0, got -2"}, [] {
    JobTasks(std::map<int, std::string>{{-2, "a:1"}});
  });
  expect_error(ErrorCode::kInvalidArgument, {"index 1 is given twice, as 'a:1' and 'b:1'"}, [] {
    JobTasks({{1, "a:1"}, {1, "b:1"}});
  });
}

TEST(ClusterSpec, WritesListsAndSparseJobsAsTfDoes) {
  const ClusterSpec cluster({{"worker", {"a:1", "b:1"}}, {"ps", {{1, "c:1"}, {10, "d:1"}}}});
  EXPECT_EQ(cluster.to_json().dump(), R"({"ps":{"1":"c:1","10":"d:1"},"worker":["a:1","b:1"]})");
  EXPECT_EQ(cluster.as_cluster_def().dump(),
            R"({"job":[{"name":"ps","tasks":{"1":"c:1","10":"d:1"}},)"
            R"({"name":"worker","tasks":{"0":"a:1","1":"b:1"}}]})");
  EXPECT_EQ(concat(cluster), "2 ps (1 at c:1, 10 at d:1), 2 workers (a:1, b:1)");
  EXPECT_EQ(concat(ClusterSpec()), "no cluster");
}

TEST(ClusterSpec, CutsLongListsWhenPrinted) {
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

TEST(ClusterSpec, ClusterDefMistakesHaveTheirPath) {
  const auto error_at = [](const char* text, const std::vector<std::string>& parts) {
    expect_error(ErrorCode::kInvalidArgument, parts,
                 [&] { ClusterSpec::from_cluster_def(Json::parse(text), "def"); });
  };
  error_at("[]", {"def: expected", "got []"});
  error_at(R"({"job": {}})", {"def.job: expected a list", "got {}"});
  error_at(R"({"job": [{}]})", {"def.job[0]: expected a member name"});
  error_at(R"({"job": [{"name": "a"}, {"name": "a"}]})",
           {"def.job[1].name: expected each job once"});
  error_at(R"({"job": [{"name": "a", "tasks": []}]})", {"def.job[0].tasks: expected an object"});
  error_at(R"({"job": [{"name": "a b"}]})", {"def.job[0].name: expected a job's name"});
}

}  // namespace cluster_spec_test
}  // namespace tutti

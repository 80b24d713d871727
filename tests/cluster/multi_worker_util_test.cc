// The chief, the tasks that count, what is no cluster.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/multi_worker_util.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/resolvers/mpi_resolver.h"
#include "tutti/cluster/resolvers/static_resolver.h"

namespace tutti {
namespace multi_worker_util_test {

using testing::expect_error;

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

TEST(MultiWorkerUtil, IsChief) {
  EXPECT_TRUE(is_chief(with_chief(), {"chief", 0}));
  EXPECT_TRUE(is_chief(with_chief(), {"evaluator", 0}));
  EXPECT_FALSE(is_chief(with_chief(), {"worker", 0}));
  EXPECT_FALSE(is_chief(with_chief(), {"ps", 0}));
  EXPECT_TRUE(is_chief(workers_alone(), {"worker", 0}));
  EXPECT_FALSE(is_chief(workers_alone(), {"worker", 1}));
  EXPECT_TRUE(is_chief(ClusterSpec({{"chief", {}}, {"worker", {"b:1"}}}), {"worker", 0}));
}

TEST(MultiWorkerUtil, IdInCluster) {
  EXPECT_EQ(id_in_cluster(with_chief(), {"chief", 0}), 0);
  EXPECT_EQ(id_in_cluster(with_chief(), {"worker", 0}), 1);
  EXPECT_EQ(id_in_cluster(with_chief(), {"worker", 1}), 2);
  EXPECT_EQ(id_in_cluster(with_chief(), {"evaluator", 0}), 0);
  EXPECT_EQ(id_in_cluster(workers_alone(), {"worker", 2}), 2);
  expect_error(ErrorCode::kInvalidArgument, {"id_in_cluster", "ps"}, [] {
    id_in_cluster(with_chief(), {"ps", 0});
  });
}

TEST(MultiWorkerUtil, WorkerCount) {
  EXPECT_EQ(worker_count(with_chief(), "chief"), 3);
  EXPECT_EQ(worker_count(with_chief(), "worker"), 3);
  EXPECT_EQ(worker_count(with_chief(), "evaluator"), 1);
  EXPECT_EQ(worker_count(workers_alone(), "worker"), 3);
  expect_error(ErrorCode::kInvalidArgument, {"worker_count", "ps"},
               [] { worker_count(with_chief(), "ps"); });
}

TEST(MultiWorkerUtil, CollectiveLeader) {
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
  expect_error(ErrorCode::kInvalidArgument, {"no ps"}, [] {
    validate_cluster(ClusterSpec({{"ps", {}}, {"worker", {"a:1"}}}), {"ps", 0});
  });
}

TEST(MultiWorkerUtil, AnEmptyClusterIsOneWorker) {
  EXPECT_TRUE(is_chief({}, {"worker", 0}));
  EXPECT_EQ(id_in_cluster({}, {"worker", 0}), 0);
  EXPECT_EQ(worker_count({}, "worker"), 1);
  EXPECT_FALSE(has_worker({}));
  EXPECT_TRUE(should_save_checkpoint({}, {"worker", 0}));
  EXPECT_TRUE(training_tasks({}).empty());
}

TEST(MultiWorkerUtil, TheChiefSaves) {
  EXPECT_TRUE(has_worker(with_chief()));
  EXPECT_FALSE(has_worker(ClusterSpec({{"worker", {"a:1"}}, {"ps", {"b:1"}}})));
  for (const Task& task : training_tasks(with_chief())) {
    EXPECT_EQ(should_save_checkpoint(with_chief(), task), task.type == "chief") << task;
    EXPECT_EQ(should_save_summary(with_chief(), task), task.type == "chief") << task;
  }
}

TEST(MultiWorkerUtil, TrainingTasksComeInOrderOfTheirIds) {
  const std::vector<Task> tasks = training_tasks(with_chief());
  ASSERT_EQ(tasks.size(), 3U);
  for (int id = 0; id < 3; ++id) {
    EXPECT_EQ(id_in_cluster(with_chief(), tasks[static_cast<std::size_t>(id)]), id);
  }
}

TEST(MultiWorkerUtil, AnEvaluatorOutsideTheClusterIsAlone) {
  const Task evaluator{"evaluator", 0};
  EXPECT_TRUE(is_chief(workers_alone(), evaluator));
  EXPECT_EQ(id_in_cluster(workers_alone(), evaluator), 0);
  EXPECT_EQ(worker_count(workers_alone(), "evaluator"), 1);
  EXPECT_EQ(collective_leader(workers_alone(), evaluator), "");
  expect_error(ErrorCode::kInvalidArgument, {"ClusterSpec.task.type"}, [] {
    is_chief(workers_alone(), {"evaluator", 1});
  });
}

TEST(MultiWorkerUtil, ResolversNeedATaskWhenThereAreSeveral) {
  expect_error(ErrorCode::kInvalidArgument, {"StaticResolver.task: expected the task"},
               [] { validate_cluster(StaticResolver(workers_alone())); });
  EXPECT_NO_THROW(validate_cluster(StaticResolver(ClusterSpec({{"worker", {"a:1"}}}))));
  EXPECT_NO_THROW(validate_cluster(StaticResolver(ClusterSpec())));
}

TEST(MultiWorkerUtil, DoubtsAddressesOfThisMachineBesideOthers) {
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

}  // namespace multi_worker_util_test
}  // namespace tutti

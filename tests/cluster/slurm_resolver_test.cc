// Slurm: its two lists, the layout of tasks, GPUs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/slurm_resolver.h"

#include <gtest/gtest.h>

#include "cluster/resolvers/slurm_grammar.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace slurm_resolver_test {

using testing::expect_error;
using Names = std::vector<std::string>;

Environment slurm(Environment::Variables more = {}) {
  more.insert({{"SLURM_PROCID", "0"},
               {"SLURM_STEP_NUM_TASKS", "3"},
               {"SLURM_STEP_NODELIST", "t02n13,t02n41,t02n43"},
               {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"}});
  return Environment(std::move(more));
}

Environment two_nodes(const std::string& rank, Environment::Variables more = {}) {
  more.insert({{"SLURM_PROCID", rank},
               {"SLURM_STEP_NUM_TASKS", "5"},
               {"SLURM_STEP_NODELIST", "n[1-2]"},
               {"SLURM_STEP_TASKS_PER_NODE", "3,2"}});
  return slurm(std::move(more));
}

TEST(SlurmGrammar, ExpandsNodeLists) {
  EXPECT_EQ(expand_node_list("t02n13"), (Names{"t02n13"}));
  EXPECT_EQ(expand_node_list("t02n[13,41-43]"), (Names{"t02n13", "t02n41", "t02n42", "t02n43"}));
  EXPECT_EQ(expand_node_list("t02n13,t02n41,t02n43"), (Names{"t02n13", "t02n41", "t02n43"}));
  EXPECT_EQ(expand_node_list("n[08-11],login"), (Names{"n08", "n09", "n10", "n11", "login"}));
  EXPECT_EQ(expand_node_list("n[0-1]-ib"), (Names{"n0-ib", "n1-ib"}));
  EXPECT_EQ(expand_node_list("r[1-2]n[3,5]"), (Names{"r1n3", "r1n5", "r2n3", "r2n5"}));
  EXPECT_EQ(expand_node_list("n[98-101]"), (Names{"n98", "n99", "n100", "n101"}));
  EXPECT_EQ(expand_node_list("n[0-65535]").size(), 65536U);
}

TEST(SlurmGrammar, ExpandsTasksPerNode) {
  EXPECT_EQ(expand_tasks_per_node("2"), (std::vector<int>{2}));
  EXPECT_EQ(expand_tasks_per_node("2,1,3"), (std::vector<int>{2, 1, 3}));
  EXPECT_EQ(expand_tasks_per_node("3(x2),2,1"), (std::vector<int>{3, 3, 2, 1}));
  EXPECT_EQ(expand_tasks_per_node("13(x10)"), std::vector<int>(10, 13));
}

TEST(SlurmGrammar, SaysWhereAListBreaks) {
  expect_error(ErrorCode::kInvalidArgument, {"SLURM_STEP_NODELIST", "character 6", "got ']'"},
               [] { expand_node_list("n[13,]"); });
  expect_error(ErrorCode::kInvalidArgument, {"mine: cannot read", "character 1", "got its end"},
               [] { expand_tasks_per_node("", "mine"); });
  for (const char* list : {"[1-2", "n[", "n[1-]", "n[a]", "n]", "n[1][", "n,", ",n", "n[-1]",
                           "n[1-2", "n[[1]]", "n[1234567890]", "n\x01", "n[3-1]"}) {
    expect_error(ErrorCode::kInvalidArgument, {"cannot read"}, [&] { expand_node_list(list); });
  }
  for (const char* list : {"x", "2,", "2(", "2(x", "2(x3", "2(3)", "-1", "2(x0)", "1234567890"}) {
    expect_error(ErrorCode::kInvalidArgument, {"cannot read"},
                 [&] { expand_tasks_per_node(list); });
  }
  for (const char* list : {"n[0-65536]", "n[0-999999999]", "n[0-255][0-256]"}) {
    expect_error(ErrorCode::kResourceExhausted, {"65536"}, [&] { expand_node_list(list); });
  }
  expect_error(ErrorCode::kResourceExhausted, {"65536"},
               [] { expand_tasks_per_node("1(x999999999)"); });
}

TEST(SlurmResolver, MakesEveryTaskAWorker) {
  const Environment environment = slurm({{"CUDA_VISIBLE_DEVICES", "0"}});
  const SlurmResolver resolver({}, environment);
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker", {"t02n13:8888", "t02n41:8888", "t02n43:8888"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 0}));
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://t02n13:8888");
  EXPECT_EQ(resolver.master(), "grpc://t02n13:8888");
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 1}}));
  EXPECT_EQ(resolver.cuda_visible_devices(), "0");  // said, not set
  EXPECT_EQ(environment.find("CUDA_VISIBLE_DEVICES"), "0");
}

TEST(SlurmResolver, FillsJobsInOrder) {
  SlurmResolverOptions options{.jobs = {{"ps", 1}, {"worker", 2}}};
  const SlurmResolver resolver(options, slurm({{"SLURM_PROCID", "2"}}));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"ps", {"t02n13:8888"}}, {"worker", {"t02n41:8888", "t02n43:8888"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
  EXPECT_EQ(resolver.master(), "grpc://t02n43:8888");
  options.jobs = {{"worker", 2}, {"ps", 1}};
  EXPECT_EQ(SlurmResolver(options, slurm({{"SLURM_PROCID", "2"}})).task(), (Task{"ps", 0}));
}

TEST(SlurmResolver, CountsPortsUpOnANode) {
  const SlurmResolver resolver({.port_base = 1000}, two_nodes("4"));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker", {"n1:1000", "n1:1001", "n1:1002", "n2:1000", "n2:1001"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 4}));
  expect_error(ErrorCode::kInvalidArgument, {"port_base: expected 1 to 65533", "got 65534"},
               [] { SlurmResolver({.port_base = 65534}, two_nodes("0")); });
}

TEST(SlurmResolver, FollowsTheCyclicDistribution) {
  const SlurmResolver resolver(
      {}, two_nodes("1", {{"SLURM_DISTRIBUTION", "cyclic:block"}, {"SLURM_NODEID", "1"}}));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker", {"n1:8888", "n2:8888", "n1:8889", "n2:8889", "n1:8890"}}}));
  expect_error(ErrorCode::kInvalidArgument, {"SLURM_NODEID: expected 0", "got 1"}, [] {
    SlurmResolver({}, two_nodes("1", {{"SLURM_NODEID", "1"}}));
  });
}

TEST(SlurmResolver, SharesTheGpusOfANode) {
  const auto visible = [](const std::string& rank, Environment::Variables more) {
    return SlurmResolver({}, two_nodes(rank, std::move(more))).cuda_visible_devices();
  };
  EXPECT_EQ(visible("0", {{"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5"}}), "0,1");
  EXPECT_EQ(visible("2", {{"CUDA_VISIBLE_DEVICES", "2,3,5,7,8,9"}}), "8,9");
  EXPECT_EQ(visible("4", {{"SLURM_GPUS_ON_NODE", "4"}}), "2,3");  // two tasks on that node
  EXPECT_EQ(visible("2", {{"SLURM_GPUS_ON_NODE", "2"}}), "0");    // fewer GPUs than tasks
  EXPECT_EQ(visible("0", {}), std::nullopt);
  EXPECT_EQ(visible("0", {{"CUDA_VISIBLE_DEVICES", ""}}), std::nullopt);
}

TEST(SlurmResolver, LeavesGpusThatSlurmBoundAlone) {
  const SlurmResolver resolver(
      {}, two_nodes("1", {{"SLURM_GPUS_PER_TASK", "2"}, {"CUDA_VISIBLE_DEVICES", "2,3"}}));
  EXPECT_EQ(resolver.cuda_visible_devices(), std::nullopt);
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 2}}));
}

TEST(SlurmResolver, NumAcceleratorsOfOtherTasksAreTheirShareOfTheirNode) {
  // 6 GPUs on each node, which has 3 tasks or 2.
  const SlurmResolver resolver({}, two_nodes("0", {{"SLURM_GPUS_ON_NODE", "6"}}));
  const auto gpus = [](int count) { return std::map<std::string, int>{{"GPU", count}}; };
  EXPECT_EQ(resolver.num_accelerators(), gpus(2));
  EXPECT_EQ(resolver.num_accelerators("worker", 2), gpus(2));
  EXPECT_EQ(resolver.num_accelerators("worker", 4), gpus(3));
  expect_error(ErrorCode::kNotFound, {"worker"}, [&] { resolver.num_accelerators("worker", 5); });
  const SlurmResolver without({}, two_nodes("0"));
  EXPECT_TRUE(without.num_accelerators("worker", 4).empty());
}

TEST(SlurmResolver, RefusesMoreThanThereIs) {
  expect_error(ErrorCode::kInvalidArgument, {"at most 3 tasks", "ps=2,worker=2"}, [] {
    SlurmResolver({.jobs = {{"ps", 2}, {"worker", 2}}}, slurm());
  });
  expect_error(ErrorCode::kInvalidArgument, {"gpus_per_node: expected 0 to 1", "got 4"}, [] {
    SlurmResolver({.gpus_per_node = 4}, slurm({{"CUDA_VISIBLE_DEVICES", "0"}}));
  });
  expect_error(ErrorCode::kInvalidArgument, {"gpus_per_task: expected 1 to 1", "got 2"},
               [] { SlurmResolver({.gpus_per_node = 4, .gpus_per_task = 2}, two_nodes("0")); });
}

TEST(SlurmResolver, ATaskBeyondTheJobsHasNone) {
  const SlurmResolver resolver({.jobs = {{"worker", 2}}}, slurm({{"SLURM_PROCID", "2"}}));
  EXPECT_EQ(resolver.task(), std::nullopt);
  EXPECT_EQ(resolver.cluster_spec().total_tasks(), 2);
}

TEST(SlurmResolver, TasksPerNodeCanBeGiven) {
  const SlurmResolver resolver({.jobs = {{"worker", 4}}, .tasks_per_node = 2},
                               slurm({{"SLURM_PROCID", "3"}}));
  EXPECT_EQ(
      resolver.cluster_spec(),
      ClusterSpec({{"worker", {"t02n13:8888", "t02n13:8889", "t02n41:8888", "t02n41:8889"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 3}));
}

TEST(SlurmResolver, NamesJobAndStep) {
  EXPECT_EQ(SlurmResolver({}, slurm({{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "2"}})).job_id(),
            "77.2");
}

}  // namespace slurm_resolver_test
}  // namespace tutti

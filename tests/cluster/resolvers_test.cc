// Tests resolvers: MPI launchers, Kubernetes, SageMaker, Slurm, TF_CONFIG, and unions of resolvers.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cluster/resolvers/slurm_grammar.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolvers/kubernetes_resolver.h"
#include "tutti/cluster/resolvers/launcher_resolvers.h"
#include "tutti/cluster/resolvers/slurm_resolver.h"
#include "tutti/cluster/resolvers/tf_config_resolver.h"

namespace tutti::resolvers_test {

TEST(MpiResolver, ReadsOpenMpiVariables) {
  const MpiResolver resolver({}, Environment({{"OMPI_COMM_WORLD_RANK", "3"},
                                              {"OMPI_COMM_WORLD_SIZE", "4"},
                                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                              {"PMIX_NAMESPACE", "prterun-host-17@1"}}));
  EXPECT_EQ(resolver.rank(), 3);
  EXPECT_EQ(resolver.size(), 4);
  EXPECT_EQ(resolver.local_rank(), 1);
  EXPECT_EQ(resolver.local_size(), 2);
  EXPECT_FALSE(resolver.is_one_host());
  EXPECT_EQ(resolver.launcher(), "Open MPI");
  EXPECT_EQ(resolver.job_id(), "prterun-host-17@1");
  EXPECT_EQ(resolver.task(), (Task{"worker", 3}));
  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"", "", "", ""}}}));
  EXPECT_EQ(resolver.master(), "");  // ranks exchange addresses on their own
  EXPECT_NO_THROW(validate_cluster(resolver));
}

TEST(MpiResolver, ReadsPmiAndPmixVariables) {
  const MpiResolver hydra({}, Environment({{"PMI_RANK", "1"},
                                           {"PMI_SIZE", "2"},
                                           {"MPI_LOCALRANKID", "1"},
                                           {"MPI_LOCALNRANKS", "2"}}));
  EXPECT_EQ(hydra.task(), (Task{"worker", 1}));
  EXPECT_TRUE(hydra.is_one_host());
  const MpiResolver pmix({}, Environment({{"PMIX_RANK", "2"}, {"SLURM_STEP_NUM_TASKS", "3"}}));
  EXPECT_EQ(pmix.task(), (Task{"worker", 2}));
  EXPECT_FALSE(pmix.is_one_host());  // the environment does not give the number of hosts
  EXPECT_EQ(pmix.local_rank(), std::nullopt);
}

TEST(MpiResolver, AssignsRanksToJobsInOrder) {
  const Environment environment({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  const MpiResolver resolver({.jobs = {{"chief", 1}, {"worker", 2}}}, environment);
  EXPECT_EQ(resolver.task(), (Task{"worker", 0}));
  EXPECT_EQ(id_in_cluster(resolver.cluster_spec(), *resolver.task()), 1);
  EXPECT_INVALID(MpiResolver({.jobs = {{"worker", 4}}}, environment),
                 "MPI: expected jobs for at most 3 tasks", "worker=4");
}

TEST(KubernetesResolver, DerivesPodNamesForHeadlessServiceAndStatefulSet) {
  const KubernetesResolver resolver({.jobs = {{"chief", 1}, {"worker", 2}}},
                                    Environment({{"HOSTNAME", "name-worker-1"}}));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"chief", {"name-chief-0.name:2222"}},
                         {"worker", {"name-worker-0.name:2222", "name-worker-1.name:2222"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
  EXPECT_EQ(resolver.master(), "grpc://name-worker-1.name:2222");
  EXPECT_EQ(id_in_cluster(resolver.cluster_spec(), *resolver.task()), 2);
  const KubernetesResolver stateful(
      {}, Environment({{"HOSTNAME", "my-train-2.my-train.default.svc.cluster.local"},
                       {"TUTTI_KUBERNETES_JOBS", "worker=3"},
                       {"TUTTI_KUBERNETES_PORT", "80"},
                       {"TUTTI_KUBERNETES_SERVICE", "peers"}}));
  EXPECT_EQ(stateful.cluster_spec(),
            ClusterSpec({{"worker",
                          {"my-train-0.peers:80", "my-train-1.peers:80", "my-train-2.peers:80"}}}));
  EXPECT_EQ(stateful.task(), (Task{"worker", 2}));
}

Pod pod(const std::string& name, const std::string& ip, const std::string& job_name,
        const std::string& phase = "Running") {
  return {.name = name, .phase = phase, .ip = ip, .labels = {{"job-name", job_name}}};
}

TEST(KubernetesPodsResolver, SortsRunningPodsByName) {
  const KubernetesPodsResolver one(
      {pod("tensorflow-abc123", "10.1.2.3", "tensorflow"), pod("other", "10.9.9.9", "other")});
  EXPECT_EQ(one.cluster_spec(), ClusterSpec({{"worker", {"10.1.2.3:8470"}}}));
  const KubernetesPodsResolver three({pod("tensorflow-abc123", "10.1.2.3", "tensorflow"),
                                      pod("tensorflow-def456", "10.1.2.4", "tensorflow"),
                                      pod("tensorflow-999999", "10.1.2.5", "tensorflow")});
  EXPECT_EQ(three.cluster_spec(),
            ClusterSpec({{"worker", {"10.1.2.5:8470", "10.1.2.3:8470", "10.1.2.4:8470"}}}));
  EXPECT_EQ(three.task(), std::nullopt);
}

TEST(KubernetesPodsResolver, SortsPodsWithinEachSelector) {
  const std::vector<Pod> pods{pod("tensorflow-abc123", "10.1.2.3", "tensorflow"),
                              pod("tensorflow-def456", "10.1.2.4", "tensorflow"),
                              pod("tensorflow-999999", "10.1.2.5", "tensorflow"),
                              pod("tensorflow-jkl789", "10.1.2.6", "tensorflow1"),
                              pod("tensorflow-mno012", "10.1.2.7", "tensorflow1"),
                              pod("tensorflow-ghi123", "10.1.2.8", "tensorflow1")};
  const KubernetesPodsResolver resolver(
      pods, {.job_to_label_mapping = {{"worker", {"job-name=tensorflow", "job-name=tensorflow1"}}},
             .overrides = {.task_type = "worker", .task_id = 3}});
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker",
                          {"10.1.2.5:8470", "10.1.2.3:8470", "10.1.2.4:8470", "10.1.2.8:8470",
                           "10.1.2.6:8470", "10.1.2.7:8470"}}}));
  EXPECT_EQ(resolver.master(), "grpc://10.1.2.8:8470");
}

TEST(KubernetesPodsResolver, ErrorNamesPodThatIsNotRunning) {
  EXPECT_ERROR(KubernetesPodsResolver({pod("tensorflow-1", "10.1.2.3", "tensorflow", "Failed")}),
               kFailedPrecondition, "'tensorflow-1'", "'Failed'");
  EXPECT_ERROR(KubernetesPodsResolver({pod("tensorflow-1", "", "tensorflow")}), kFailedPrecondition,
               "'tensorflow-1' has no address");
}

TEST(KubernetesPodsResolver, NumAcceleratorsOfTaskIsGpuLimitOfItsPod) {
  const std::vector<Pod> pods = pods_from_json(Json::parse(R"({"items": [
      {"metadata": {"name": "t-0", "labels": {"job-name": "tensorflow"}},
       "spec": {"containers": [{"name": "a"}, {"resources": {"limits": {"cpu": "8"}}}]},
       "status": {"phase": "Running", "podIP": "10.0.0.1"}},
      {"metadata": {"name": "t-1", "labels": {"job-name": "tensorflow"}},
       "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "4"}}},
                               {"resources": {"limits": {"nvidia.com/gpu": 2}}}]},
       "status": {"phase": "Running", "podIP": "10.0.0.2"}}]})"));
  const KubernetesPodsResolver resolver(pods);
  EXPECT_TRUE(resolver.num_accelerators("worker", 0).empty());
  EXPECT_EQ(resolver.num_accelerators("worker", 1), (std::map<std::string, int>{{"GPU", 6}}));
}

TEST(KubernetesPodsResolver, SupportsSelectorsWithSeveralLabels) {
  Pod chosen = pod("a", "10.0.0.1", "j");
  chosen.labels["role"] = "ps";
  const std::vector<Pod> pods{pod("b", "10.0.0.2", "j"), chosen};
  const auto cluster = [&](const std::string& selector) {
    return KubernetesPodsResolver(pods, {.job_to_label_mapping = {{"ps", {selector}}}, .port = 1})
        .cluster_spec();
  };
  EXPECT_EQ(cluster("job-name=j,role==ps"), ClusterSpec({{"ps", {"10.0.0.1:1"}}}));
  EXPECT_EQ(cluster("role=none"), ClusterSpec({{"ps", {}}}));
  for (const char* selector : {"role", "", "=ps", "role!=ps", "role=ps,"}) {
    EXPECT_INVALID(cluster(selector), "job_to_label_mapping");
  }
}

TEST(KubernetesPodsResolver, ReadsKubectlOutput) {
  const std::vector<Pod> pods = pods_from_json(Json::parse(R"({"kind": "List", "items": [
      {"metadata": {"name": "t-0", "labels": {"job-name": "tensorflow"}},
       "status": {"phase": "Running", "podIP": "fd00::7"}},
      {"metadata": {"name": "t-1"}, "status": {"phase": "Pending"}}]})"));
  ASSERT_EQ(pods.size(), 2U);
  EXPECT_EQ(pods[1].phase, "Pending");
  EXPECT_EQ(KubernetesPodsResolver(pods).cluster_spec(),
            ClusterSpec({{"worker", {"[fd00::7]:8470"}}}));
  const auto error_at = [](const char* text, const std::string& path) {
    EXPECT_INVALID(pods_from_json(Json::parse(text)), path + ": expected");
  };
  error_at("[]", "pods");
  error_at("{}", "pods");
  error_at(R"({"items": {}})", "pods.items");
  error_at(R"({"items": [7]})", "pods.items[0]");
  error_at(R"({"items": [{}]})", "pods.items[0]");
  error_at(R"({"items": [{"metadata": {}}]})", "pods.items[0].metadata");
  error_at(R"({"items": [{"metadata": {"name": "a", "labels": {"x": 1}}}]})",
           "pods.items[0].metadata.labels.x");
  error_at(R"({"items": [{"metadata": {"name": "a"}, "spec": {"containers": 1}}]})",
           "pods.items[0].spec.containers");
  error_at(R"({"items": [{"metadata": {"name": "a"}, "status": {"podIP": 1}}]})",
           "pods.items[0].status.podIP");
}

Environment sage_maker(const std::string& hosts, const std::string& current) {
  return Environment({{"SM_HOSTS", hosts}, {"SM_CURRENT_HOST", current}});
}

TEST(SageMakerResolver, SortsHostsAndFindsOwnTask) {
  const SageMakerResolver resolver(2223, {}, sage_maker(R"(["algo-2", "algo-1"])", "algo-2"));
  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"algo-1:2223", "algo-2:2223"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
  EXPECT_EQ(resolver.master(), "algo-2:2223");
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://algo-1:2223");
}

TEST(SageMakerResolver, HasNoMasterForSingleOrUnlistedHost) {
  const SageMakerResolver resolver(2223, {}, sage_maker(R"(["algo-1", "algo-2"])", "algo-3"));
  EXPECT_TRUE(resolver.cluster_spec().empty());
  EXPECT_EQ(resolver.master(), "");
  EXPECT_EQ(SageMakerResolver(2223, {}, sage_maker(R"(["algo-1"])", "algo-1")).master(), "");
}

TEST(SageMakerResolver, ReportsMissingSageMakerEnvironment) {
  EXPECT_ERROR(SageMakerResolver(2223, {}, Environment()), kFailedPrecondition,
               "Not a SageMaker Environment", "SM_HOSTS");
  EXPECT_ERROR(SageMakerResolver(2223, {}, Environment({{"SM_HOSTS", "[]"}})), kFailedPrecondition,
               "Not a SageMaker Environment", "SM_CURRENT_HOST");
}

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

TEST(SlurmGrammar, ExpandsNodeListsAndTasksPerNode) {
  EXPECT_EQ(expand_node_list("t02n13"), (Names{"t02n13"}));
  EXPECT_EQ(expand_node_list("t02n[13,41-43]"), (Names{"t02n13", "t02n41", "t02n42", "t02n43"}));
  EXPECT_EQ(expand_node_list("t02n13,t02n41,t02n43"), (Names{"t02n13", "t02n41", "t02n43"}));
  EXPECT_EQ(expand_node_list("n[08-11],login"), (Names{"n08", "n09", "n10", "n11", "login"}));
  EXPECT_EQ(expand_node_list("n[0-1]-ib"), (Names{"n0-ib", "n1-ib"}));
  EXPECT_EQ(expand_node_list("r[1-2]n[3,5]"), (Names{"r1n3", "r1n5", "r2n3", "r2n5"}));
  EXPECT_EQ(expand_node_list("n[98-101]"), (Names{"n98", "n99", "n100", "n101"}));
  EXPECT_EQ(expand_node_list("n[0-65535]").size(), 65536U);
  EXPECT_EQ(expand_tasks_per_node("2"), (std::vector<int>{2}));
  EXPECT_EQ(expand_tasks_per_node("2,1,3"), (std::vector<int>{2, 1, 3}));
  EXPECT_EQ(expand_tasks_per_node("3(x2),2,1"), (std::vector<int>{3, 3, 2, 1}));
  EXPECT_EQ(expand_tasks_per_node("13(x10)"), std::vector<int>(10, 13));
}

TEST(SlurmGrammar, ErrorNamesPosition) {
  EXPECT_INVALID(expand_node_list("n[13,]"), "SLURM_STEP_NODELIST", "character 6", "got ']'");
  EXPECT_INVALID(expand_tasks_per_node("", "mine"), "mine: cannot read", "character 1",
                 "got the end of the text");
  for (const char* list : {"[1-2", "n[", "n[1-]", "n[a]", "n]", "n[1][", "n,", ",n", "n[-1]",
                           "n[1-2", "n[[1]]", "n[1234567890]", "n\x01", "n[3-1]"}) {
    EXPECT_INVALID(expand_node_list(list), "cannot read");
  }
  for (const char* list : {"x", "2,", "2(", "2(x", "2(x3", "2(3)", "-1", "2(x0)", "1234567890"}) {
    EXPECT_INVALID(expand_tasks_per_node(list), "cannot read");
  }
  for (const char* list : {"n[0-65536]", "n[0-999999999]", "n[0-255][0-256]"}) {
    EXPECT_ERROR(expand_node_list(list), kResourceExhausted, "65536");
  }
  EXPECT_ERROR(expand_tasks_per_node("1(x999999999)"), kResourceExhausted, "65536");
}

TEST(SlurmResolver, AssignsEveryTaskToWorkerByDefault) {
  const Environment environment = slurm({{"CUDA_VISIBLE_DEVICES", "0"}});
  const SlurmResolver resolver({}, environment);
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker", {"t02n13:8888", "t02n41:8888", "t02n43:8888"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 0}));
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://t02n13:8888");
  EXPECT_EQ(resolver.master(), "grpc://t02n13:8888");
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 1}}));
  EXPECT_EQ(resolver.cuda_visible_devices(), "0");  // the resolver does not set this variable
  EXPECT_EQ(environment.find("CUDA_VISIBLE_DEVICES"), "0");
}

TEST(SlurmResolver, AssignsTasksToJobsInOrder) {
  SlurmResolverOptions options{.jobs = {{"ps", 1}, {"worker", 2}}};
  const SlurmResolver resolver(options, slurm({{"SLURM_PROCID", "2"}}));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"ps", {"t02n13:8888"}}, {"worker", {"t02n41:8888", "t02n43:8888"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
  EXPECT_EQ(resolver.master(), "grpc://t02n43:8888");
  options.jobs = {{"worker", 2}, {"ps", 1}};
  EXPECT_EQ(SlurmResolver(options, slurm({{"SLURM_PROCID", "2"}})).task(), (Task{"ps", 0}));
}

TEST(SlurmResolver, AssignsIncreasingPortsPerNode) {
  const SlurmResolver resolver({.port_base = 1000}, two_nodes("4"));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker", {"n1:1000", "n1:1001", "n1:1002", "n2:1000", "n2:1001"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 4}));
  EXPECT_INVALID(SlurmResolver({.port_base = 65534}, two_nodes("0")),
                 "port_base: expected 1 to 65533", "got 65534");
}

TEST(SlurmResolver, SupportsCyclicDistribution) {
  const SlurmResolver resolver(
      {}, two_nodes("1", {{"SLURM_DISTRIBUTION", "cyclic:block"}, {"SLURM_NODEID", "1"}}));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker", {"n1:8888", "n2:8888", "n1:8889", "n2:8889", "n1:8890"}}}));
  EXPECT_INVALID(SlurmResolver({}, two_nodes("1", {{"SLURM_NODEID", "1"}})),
                 "SLURM_NODEID: expected 0", "got 1");
}

TEST(SlurmResolver, PartitionsGpusOfNodeAmongTasks) {
  const auto visible = [](const std::string& rank, Environment::Variables more) {
    return SlurmResolver({}, two_nodes(rank, std::move(more))).cuda_visible_devices();
  };
  EXPECT_EQ(visible("0", {{"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5"}}), "0,1");
  EXPECT_EQ(visible("2", {{"CUDA_VISIBLE_DEVICES", "2,3,5,7,8,9"}}), "8,9");
  EXPECT_EQ(visible("4", {{"SLURM_GPUS_ON_NODE", "4"}}), "2,3");  // node n2 runs two tasks
  // The node has fewer GPUs than tasks.
  EXPECT_EQ(visible("2", {{"SLURM_GPUS_ON_NODE", "2"}}), "0");
  EXPECT_EQ(visible("0", {}), std::nullopt);
  EXPECT_EQ(visible("0", {{"CUDA_VISIBLE_DEVICES", ""}}), std::nullopt);
}

TEST(SlurmResolver, KeepsSlurmGpuBinding) {
  const SlurmResolver resolver(
      {}, two_nodes("1", {{"SLURM_GPUS_PER_TASK", "2"}, {"CUDA_VISIBLE_DEVICES", "2,3"}}));
  EXPECT_EQ(resolver.cuda_visible_devices(), std::nullopt);
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 2}}));
}

TEST(SlurmResolver, DividesNodeAcceleratorsAmongTasks) {
  // Each node has 6 GPUs; node n1 runs 3 tasks, and node n2 runs 2.
  const SlurmResolver resolver({}, two_nodes("0", {{"SLURM_GPUS_ON_NODE", "6"}}));
  const auto gpus = [](int count) { return std::map<std::string, int>{{"GPU", count}}; };
  EXPECT_EQ(resolver.num_accelerators(), gpus(2));
  EXPECT_EQ(resolver.num_accelerators("worker", 2), gpus(2));
  EXPECT_EQ(resolver.num_accelerators("worker", 4), gpus(3));
  EXPECT_ERROR(resolver.num_accelerators("worker", 5), kNotFound, "worker");
  const SlurmResolver without({}, two_nodes("0"));
  EXPECT_TRUE(without.num_accelerators("worker", 4).empty());
}

TEST(SlurmResolver, RefusesMoreTasksOrGpusThanAllocated) {
  EXPECT_INVALID(SlurmResolver({.jobs = {{"ps", 2}, {"worker", 2}}}, slurm()), "at most 3 tasks",
                 "ps=2,worker=2");
  EXPECT_INVALID(SlurmResolver({.gpus_per_node = 4}, slurm({{"CUDA_VISIBLE_DEVICES", "0"}})),
                 "gpus_per_node: expected 0 to 1", "got 4");
  EXPECT_INVALID(SlurmResolver({.gpus_per_node = 4, .gpus_per_task = 2}, two_nodes("0")),
                 "gpus_per_task: expected 1 to 1", "got 2");
}

TEST(SlurmResolver, AcceptsTasksPerNodeAndLeavesExtraTaskUnassigned) {
  const SlurmResolver resolver({.jobs = {{"worker", 4}}, .tasks_per_node = 2},
                               slurm({{"SLURM_PROCID", "3"}}));
  EXPECT_EQ(
      resolver.cluster_spec(),
      ClusterSpec({{"worker", {"t02n13:8888", "t02n13:8889", "t02n41:8888", "t02n41:8889"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 3}));
  const SlurmResolver beyond({.jobs = {{"worker", 2}}}, slurm({{"SLURM_PROCID", "2"}}));
  EXPECT_EQ(beyond.task(), std::nullopt);
  EXPECT_EQ(beyond.cluster_spec().total_tasks(), 2);
}

TEST(SlurmResolver, JobIdContainsJobAndStep) {
  EXPECT_EQ(SlurmResolver({}, slurm({{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "2"}})).job_id(),
            "77.2");
}

constexpr const char* kCluster =
    R"("cluster": {"ps": ["ps0:2222", "ps1:2222"],
                   "worker": ["worker0:2222", "worker1:2222", "worker2:2222"]})";

TfConfigResolver read(const std::string& members, const ResolverOverrides& overrides = {}) {
  return TfConfigResolver(overrides, Environment({{"TF_CONFIG", "{" + members + "}"}}));
}

std::string with_cluster(const std::string& members) { return concat(kCluster, ", ", members); }

TEST(TfConfigResolver, ReadsClusterTaskAndMaster) {
  const TfConfigResolver resolver = read(with_cluster(R"("task": {"type": "ps", "index": 0})"));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"ps", {"ps0:2222", "ps1:2222"}},
                         {"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}}));
  EXPECT_EQ(resolver.task(), (Task{"ps", 0}));
  EXPECT_EQ(resolver.master(), "ps0:2222");
  EXPECT_EQ(resolver.master("worker", 1), "worker1:2222");
  EXPECT_EQ(resolver.master("ps", 1, "test"), "test://ps1:2222");
  EXPECT_ERROR(resolver.master("worker", 3), kNotFound, "'worker' has no task 3", "0, 1, 2");
}

TEST(TfConfigResolver, SessionMasterTakesPrecedenceAndMasterIncludesRpcLayer) {
  const TfConfigResolver resolver =
      read(with_cluster(R"("task": {"type": "ps", "index": 0}, "rpc_layer": "grpc")"));
  EXPECT_EQ(resolver.rpc_layer(), "grpc");
  EXPECT_EQ(resolver.master(), "grpc://ps0:2222");
  const TfConfigResolver session = read(with_cluster(
      R"("task": {"type": "ps", "index": 0}, "session_master": "sessionmaster:2222")"));
  EXPECT_EQ(session.master(), "sessionmaster:2222");
  EXPECT_EQ(session.master("worker", 1), "sessionmaster:2222");
}

TEST(TfConfigResolver, AcceptsNumericTaskTypeAndStringIndex) {
  const TfConfigResolver resolver =
      read(R"("cluster": {"123456": ["a:1", "b:1"]}, "task": {"type": 123456, "index": "1"})");
  EXPECT_EQ(resolver.task_type(), "123456");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.master(), "b:1");
}

TEST(TfConfigResolver, ArgumentsAndSettersOverrideEnvironment) {
  TfConfigResolver resolver =
      read(with_cluster(R"("task": {"type": "ps", "index": 1}, "rpc_layer": "grpc")"),
           {.task_type = "ps", .task_id = 0, .rpc_layer = "test", .environment = "lab"});
  EXPECT_EQ(resolver.master(), "test://ps0:2222");
  EXPECT_EQ(resolver.environment(), "lab");
  resolver.set_task_type("worker");
  resolver.set_task_id(1);
  resolver.set_rpc_layer("test");
  EXPECT_EQ(resolver.master(), "test://worker1:2222");
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
}

TEST(TfConfigResolver, HasNoMasterWithoutPeers) {
  EXPECT_EQ(read("").master(), "");
  EXPECT_EQ(read(R"("cluster": {"worker": ["worker0:2222"]})").master(), "");
  EXPECT_EQ(TfConfigResolver({}, Environment()).master(), "");
  EXPECT_EQ(read("").task(), std::nullopt);
}

TEST(TfConfigResolver, AcceptsEmptyConfigsAndUnusualAddresses) {
  for (const char* text : {"", "  \n", "{}", R"({"cluster": {}})", R"({"cluster": {"ps": []}})",
                           R"({"task": {"type": "worker", "index": 0}})",
                           R"({"model_dir": "/models", "job": {"args": []}})"}) {
    const TfConfigResolver resolver({}, Environment({{"TF_CONFIG", text}}));
    EXPECT_EQ(resolver.cluster_spec().total_tasks(), 0) << text;
    EXPECT_NO_THROW(validate_cluster(resolver)) << text;
  }
  for (const char* addresses :
       {R"(["[::1]:2222"])", R"(["[fe80::1%eth0]:1"])", R"(["a-b.example.com:65535"])",
        R"(["127.0.0.1:1", "127.0.0.1:2"])", R"({"0": "a:1", "1": "b:1"})", R"(["my_host:80"])"}) {
    const std::string text = concat(R"("cluster": {"worker": )", addresses,
                                    R"(}, "task": {"type": "worker", "index": 0})");
    EXPECT_NO_THROW(validate_cluster(read(text))) << text;
  }
}

TEST(TfConfigResolver, EvaluatorMayBeOutsideCluster) {
  const TfConfigResolver resolver =
      read(R"("cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0})");
  EXPECT_NO_THROW(validate_cluster(resolver));
  EXPECT_TRUE(is_chief(resolver.cluster_spec(), *resolver.task()));
}

TEST(TfConfigResolver, ReadsEnvironmentFieldOfTFJob) {
  const TfConfigResolver resolver = read(
      R"("cluster": {"worker": ["mnist-worker-0.default.svc:2222", "mnist-worker-1.default.svc:2222"]},
         "task": {"type": "worker", "index": 1}, "environment": "cloud")");
  EXPECT_EQ(resolver.environment(), "cloud");
  EXPECT_EQ(resolver.master(), "mnist-worker-1.default.svc:2222");
}

TEST(TfConfigResolver, OverrideErrorNamesArgument) {
  EXPECT_INVALID(read(with_cluster(R"("task": {"type": "worker", "index": 0})"), {.task_id = 3}),
                 "task_id: expected an index from 0 to 2", "got 3");
  EXPECT_INVALID(read(kCluster, {.task_type = "chief", .task_id = 0}), "task_type: expected a job",
                 "ps, worker", "\"chief\"");
}

TEST(TfConfigResolver, IgnoresLaterEnvironmentChanges) {
  const std::string name = "TF_CONFIG";
  Environment environment({{name, R"({"cluster": {"worker": ["a:1", "b:1"]}})"}});
  const TfConfigResolver resolver({}, environment);
  environment = Environment();
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 2);
  EXPECT_EQ(resolver.name(), name);
}

TEST(TfConfigResolver, FromTextErrorNamesSource) {
  const TfConfigResolver good = TfConfigResolver::from_text(R"({"cluster": {"worker": ["a:1"]}})");
  EXPECT_EQ(good.cluster_spec().num_tasks("worker"), 1);
  EXPECT_INVALID(
      TfConfigResolver::from_text(R"({"cluster": {"worker": ["a"]}})", {}, "cluster.json"),
      "cluster.json.cluster.worker[0]: expected");
}

TEST(TfConfigResolver, ErrorTruncatesLongText) {
  const std::vector<std::string> texts{
      R"({"cluster": {"worker": [")" + std::string(1 << 20, 'a') + R"("]}})",
      R"({"cluster": )" + std::string(1 << 20, '"') + "}",
      R"({"cluster": {"worker": {"0)" + std::string(1 << 20, '1') + R"(": ""}}})",
      R"({"cluster": {")" + std::string(1 << 20, '\x01') + R"(": []}})",
      R"({"cluster": {"a\nb": 1, "a\nb": 2}})",
      R"({"cluster": {"worker": ["\u2028\u0085\u007f"]}})",
      "{\"cluster\": \"" + std::string(100, '\xc3') + "\"}",
      std::string(17 << 20, ' ') + "{"};
  for (const std::string& text : texts) {
    try {
      TfConfigResolver::from_text(text);
      ADD_FAILURE() << "accepted " << text.substr(0, 80);
    } catch (const Error& error) {
      EXPECT_LT(error.message().size(), 500U) << error.message().substr(0, 500);
      EXPECT_EQ(error.message().find_first_of("\n\r"), std::string::npos) << text.substr(0, 80);
      EXPECT_EQ(error.message().find("\xe2\x80\xa8"), std::string::npos) << text.substr(0, 80);
    }
  }
}

StaticResolver of(ClusterSpec cluster) { return StaticResolver(std::move(cluster)); }

ClusterSpec joined(const StaticResolver& first, const StaticResolver& second) {
  return UnionResolver({&first, &second}).cluster_spec();
}

TEST(UnionResolver, UsesPropertiesOfFirstResolver) {
  const StaticResolver first({{"worker", {"a:1"}}}, {.task_type = "ps",
                                                     .task_id = 1,
                                                     .environment = "cloud",
                                                     .num_accelerators = {{"GPU", 8}},
                                                     .rpc_layer = "grpc"});
  const StaticResolver second({{"ps", {"b:1"}}}, {.task_type = "worker",
                                                  .task_id = 2,
                                                  .environment = "",
                                                  .num_accelerators = {{"GPU", 16}},
                                                  .rpc_layer = "http"});
  UnionResolver resolver({&first, &second});
  EXPECT_EQ(resolver.task_type(), "ps");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.environment(), "cloud");
  EXPECT_EQ(resolver.rpc_layer(), "grpc");
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 8}}));
  resolver.set_task_type("worker");
  resolver.set_task_id(3);
  resolver.set_rpc_layer("http");
  EXPECT_EQ(resolver.task(), (Task{"worker", 3}));
  EXPECT_EQ(resolver.rpc_layer(), "http");
}

TEST(UnionResolver, ArgumentsOverrideFirstResolver) {
  const StaticResolver first({{"worker", {"a:1"}}}, {.task_type = "worker", .task_id = 0});
  const UnionResolver resolver({&first}, {.task_type = "ps", .task_id = 2, .rpc_layer = "test"});
  EXPECT_EQ(resolver.task(), (Task{"ps", 2}));
  EXPECT_EQ(resolver.rpc_layer(), "test");
}

TEST(UnionResolver, MergesJobsAndTaskListsAndSparseIndices) {
  EXPECT_EQ(joined(of({{"ps", {"ps0:2222", "ps1:2222"}}}),
                   of({{"worker", {"worker0:2222", "worker1:2222"}}})),
            ClusterSpec(
                {{"ps", {"ps0:2222", "ps1:2222"}}, {"worker", {"worker0:2222", "worker1:2222"}}}));
  EXPECT_EQ(joined(of({{"worker", {"worker4:2222", "worker5:2222"}}}),
                   of({{"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}})),
            ClusterSpec({{"worker",
                          {"worker4:2222", "worker5:2222", "worker0:2222", "worker1:2222",
                           "worker2:2222"}}}));
  const StaticResolver odd = of({{"worker", {{1, "b:1"}, {3, "d:1"}}}});
  EXPECT_EQ(joined(odd, of({{"worker", {{0, "a:1"}, {2, "c:1"}}}})),
            ClusterSpec({{"worker", {"a:1", "b:1", "c:1", "d:1"}}}));
  EXPECT_EQ(joined(odd, of({{"worker", {{6, "g:1"}}}})),
            ClusterSpec({{"worker", {{1, "b:1"}, {3, "d:1"}, {6, "g:1"}}}}));
  EXPECT_ERROR(joined(odd, of({{"worker", {{3, "x:1"}, {9, "y:1"}}}})), kAlreadyExists, "worker 3",
               "d:1", "x:1");
  const StaticResolver list = of({{"worker", {"a:1", "b:1"}}});
  EXPECT_EQ(joined(list, of({{"worker", {{4, "e:1"}, {6, "g:1"}}}})),
            ClusterSpec({{"worker", {{0, "a:1"}, {1, "b:1"}, {4, "e:1"}, {6, "g:1"}}}}));
  EXPECT_ERROR(joined(list, of({{"worker", {{1, "x:1"}, {6, "g:1"}}}})), kAlreadyExists, "worker 1",
               "b:1", "x:1");
}

TEST(UnionResolver, MasterIsRequestedTaskOrMasterOfFirstResolver) {
  const StaticResolver first = of({{"ps", {"ps0:2222"}}});
  const StaticResolver second = of({{"worker", {"worker0:2222", "worker1:2222"}}});
  const UnionResolver resolver({&first, &second});
  EXPECT_EQ(resolver.master(), "");
  EXPECT_EQ(resolver.master("worker", 1), "worker1:2222");
  EXPECT_EQ(resolver.master("worker", 1, "grpc"), "grpc://worker1:2222");
  EXPECT_ERROR(resolver.master("chief", 0), kNotFound, "no job 'chief'", "ps, worker");
  const StaticResolver with_master({{"ps", {"ps0:2222"}}},
                                   {.master = "here:1", .rpc_layer = "grpc"});
  EXPECT_EQ(UnionResolver({&with_master}).master(), "grpc://here:1");
  EXPECT_EQ(UnionResolver({&with_master}, {.rpc_layer = "test"}).master(), "test://here:1");
}

TEST(UnionResolver, SingleSparseJobKeepsItsIndices) {
  const ClusterSpec sparse({{"worker", {{1, "b:1"}, {3, "d:1"}, {5, "f:1"}}}});
  const StaticResolver only = of(sparse), other = of({{"ps", {"p:1"}}});
  EXPECT_EQ(UnionResolver({&only}).cluster_spec(), sparse);
  EXPECT_EQ(joined(only, other).task_indices("worker"), (std::vector<int>{1, 3, 5}));
}

/// Resolver that knows only the accelerators of its own process.
class OwnProcessResolver final : public ClusterResolver {
 public:
  OwnProcessResolver() { apply({.task_type = "worker", .task_id = 0}); }
  std::string name() const override { return "Own"; }
  ClusterSpec cluster_spec() const override { return ClusterSpec({{"worker", {"a:1", "b:1"}}}); }
};

TEST(ClusterResolver, NumAcceleratorsFailsForUnknownTask) {
  const OwnProcessResolver own;
  EXPECT_EQ(own.num_accelerators("worker", 0), own.num_accelerators());
  EXPECT_EQ(own.num_accelerators("worker"), own.num_accelerators());
  EXPECT_ERROR(own.num_accelerators("worker", 1), kUnimplemented, "Own", "worker 1",
               "list_devices");
  EXPECT_ERROR(own.num_accelerators("worker", 2), kNotFound, "worker");
  const StaticResolver said({{"worker", {"a:1", "b:1"}}}, {.num_accelerators = {{"GPU", 8}}});
  EXPECT_EQ(said.num_accelerators("worker", 1), (std::map<std::string, int>{{"GPU", 8}}));
}

TEST(UnionResolver, NumAcceleratorsComesFromFirstResolver) {
  const StaticResolver said({{"worker", {"a:1"}}}, {.num_accelerators = {{"GPU", 8}}});
  const StaticResolver second({{"worker", {"b:1"}}}, {.num_accelerators = {{"GPU", 16}}});
  const UnionResolver resolver({&said, &second});
  EXPECT_EQ(resolver.num_accelerators("worker", 0), (std::map<std::string, int>{{"GPU", 8}}));
  EXPECT_ERROR(resolver.num_accelerators("worker", 1), kUnimplemented, "UnionResolver", "worker 1");
  const OwnProcessResolver own;
  EXPECT_ERROR(UnionResolver({&own}).num_accelerators("worker", 1), kUnimplemented, "worker 1");
  EXPECT_INVALID(UnionResolver({}), "at least one resolver");
}

TEST(StaticResolver, ReturnsItsArguments) {
  const StaticResolver resolver({{"worker", {"a:1", "b:1"}}},
                                {.master = "m:1", .task_type = "worker", .task_id = 1});
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
  EXPECT_EQ(resolver.master(), "m:1");  // as in TensorFlow, not the address of its own task
  EXPECT_EQ(resolver.master("worker", 0), "a:1");
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://a:1");
  EXPECT_TRUE(resolver.num_accelerators().empty());
  EXPECT_EQ(resolver.to_string(), "StaticResolver: this is worker 1 of 2 workers (a:1, b:1)");
}

}  // namespace tutti::resolvers_test

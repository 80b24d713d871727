// Resolvers of MPI launchers, Kubernetes and SageMaker.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolvers/kubernetes_resolver.h"
#include "tutti/cluster/resolvers/mpi_resolver.h"
#include "tutti/cluster/resolvers/sage_maker_resolver.h"

namespace tutti {
namespace launcher_resolvers_test {

using testing::expect_error;

TEST(MpiResolver, ReadsOpenMpisVariables) {
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
  EXPECT_EQ(resolver.master(), "");  // the ranks tell each other where they are
  EXPECT_NO_THROW(validate_cluster(resolver));
}

TEST(MpiResolver, ReadsPmiAndPmix) {
  const MpiResolver hydra({}, Environment({{"PMI_RANK", "1"},
                                           {"PMI_SIZE", "2"},
                                           {"MPI_LOCALRANKID", "1"},
                                           {"MPI_LOCALNRANKS", "2"}}));
  EXPECT_EQ(hydra.task(), (Task{"worker", 1}));
  EXPECT_TRUE(hydra.is_one_host());
  const MpiResolver pmix({}, Environment({{"PMIX_RANK", "2"}, {"SLURM_STEP_NUM_TASKS", "3"}}));
  EXPECT_EQ(pmix.task(), (Task{"worker", 2}));
  EXPECT_FALSE(pmix.is_one_host());  // nobody said so
  EXPECT_EQ(pmix.local_rank(), std::nullopt);
}

TEST(MpiResolver, FillsJobsInOrderOfRanks) {
  const Environment environment({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  const MpiResolver resolver({.jobs = {{"chief", 1}, {"worker", 2}}}, environment);
  EXPECT_EQ(resolver.task(), (Task{"worker", 0}));
  EXPECT_EQ(id_in_cluster(resolver.cluster_spec(), *resolver.task()), 1);
  expect_error(ErrorCode::kInvalidArgument, {"MPI: expected jobs for at most 3 tasks", "worker=4"},
               [&] {
                 MpiResolver({.jobs = {{"worker", 4}}}, environment);
               });
}

TEST(KubernetesResolver, NamesPodsOfAHeadlessService) {
  const KubernetesResolver resolver({.jobs = {{"chief", 1}, {"worker", 2}}},
                                    Environment({{"HOSTNAME", "name-worker-1"}}));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"chief", {"name-chief-0.name:2222"}},
                         {"worker", {"name-worker-0.name:2222", "name-worker-1.name:2222"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
  EXPECT_EQ(resolver.master(), "grpc://name-worker-1.name:2222");
  EXPECT_EQ(id_in_cluster(resolver.cluster_spec(), *resolver.task()), 2);
}

TEST(KubernetesResolver, NamesPodsOfAStatefulSet) {
  const KubernetesResolver resolver(
      {}, Environment({{"HOSTNAME", "my-train-2.my-train.default.svc.cluster.local"},
                       {"TUTTI_KUBERNETES_JOBS", "worker=3"},
                       {"TUTTI_KUBERNETES_PORT", "80"},
                       {"TUTTI_KUBERNETES_SERVICE", "peers"}}));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker",
                          {"my-train-0.peers:80", "my-train-1.peers:80", "my-train-2.peers:80"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 2}));
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

TEST(KubernetesPodsResolver, SortsWithinEachSelector) {
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

TEST(KubernetesPodsResolver, NamesPodThatIsNotRunning) {
  expect_error(ErrorCode::kFailedPrecondition, {"'tensorflow-1'", "'Failed'"}, [] {
    KubernetesPodsResolver({pod("tensorflow-1", "10.1.2.3", "tensorflow", "Failed")});
  });
  expect_error(ErrorCode::kFailedPrecondition, {"'tensorflow-1' has no address"},
               [] { KubernetesPodsResolver({pod("tensorflow-1", "", "tensorflow")}); });
}

TEST(KubernetesPodsResolver, NumAcceleratorsOfOtherTasksAreTheLimitsOfTheirPods) {
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

TEST(KubernetesPodsResolver, SelectsBySeveralLabels) {
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
    expect_error(ErrorCode::kInvalidArgument, {"job_to_label_mapping"}, [&] { cluster(selector); });
  }
}

TEST(KubernetesPodsResolver, ReadsWhatKubectlPrints) {
  const std::vector<Pod> pods = pods_from_json(Json::parse(R"({"kind": "List", "items": [
      {"metadata": {"name": "t-0", "labels": {"job-name": "tensorflow"}},
       "status": {"phase": "Running", "podIP": "fd00::7"}},
      {"metadata": {"name": "t-1"}, "status": {"phase": "Pending"}}]})"));
  ASSERT_EQ(pods.size(), 2U);
  EXPECT_EQ(pods[1].phase, "Pending");
  EXPECT_EQ(KubernetesPodsResolver(pods).cluster_spec(),
            ClusterSpec({{"worker", {"[fd00::7]:8470"}}}));
  const auto error_at = [](const char* text, const std::string& path) {
    expect_error(ErrorCode::kInvalidArgument, {path + ": expected"},
                 [&] { pods_from_json(Json::parse(text)); });
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

TEST(SageMakerResolver, SortsHostsAndFindsItself) {
  const SageMakerResolver resolver(2223, {}, sage_maker(R"(["algo-2", "algo-1"])", "algo-2"));
  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"algo-1:2223", "algo-2:2223"}}}));
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
  EXPECT_EQ(resolver.master(), "algo-2:2223");
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://algo-1:2223");
}

TEST(SageMakerResolver, IsEmptyWhenTheHostIsNotInTheList) {
  const SageMakerResolver resolver(2223, {}, sage_maker(R"(["algo-1", "algo-2"])", "algo-3"));
  EXPECT_TRUE(resolver.cluster_spec().empty());
  EXPECT_EQ(resolver.master(), "");
}

TEST(SageMakerResolver, ReportsMissingSageMakerEnvironment) {
  expect_error(ErrorCode::kFailedPrecondition, {"Not a SageMaker Environment", "SM_HOSTS"},
               [] { SageMakerResolver(2223, {}, Environment()); });
  expect_error(ErrorCode::kFailedPrecondition, {"Not a SageMaker Environment", "SM_CURRENT_HOST"},
               [] {
                 SageMakerResolver(2223, {}, Environment({{"SM_HOSTS", "[]"}}));
               });
}

TEST(SageMakerResolver, HasNoMasterWithOneHost) {
  EXPECT_EQ(SageMakerResolver(2223, {}, sage_maker(R"(["algo-1"])", "algo-1")).master(), "");
}

}  // namespace launcher_resolvers_test
}  // namespace tutti

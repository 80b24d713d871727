// Joining the workers of a job: what is refused before anybody is waited for.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/worker_group.h"

#include <gtest/gtest.h>

#include "tests/support/hang_watchdog.h"
#include "tests/support/thrown.h"
#include "tutti/cluster/resolvers/kubernetes_resolver.h"
#include "tutti/cluster/resolvers/static_resolver.h"
#include "tutti/cluster/resolvers/tf_config_resolver.h"
#include "tutti/cluster/resolvers/union_resolver.h"

namespace tutti {
namespace worker_group_test {

using thrown::expect_error;

/// Every resolver that may know a cluster without knowing which task of it this process is.
TEST(WorkerGroup, NeedsATaskAlsoInAClusterOfOne) {
  const auto tf_config =
      TfConfigResolver::from_text(R"({"cluster": {"worker": ["127.0.0.1:4000"]}})");
  const StaticResolver fixed({{"worker", {"127.0.0.1:4000"}}});
  const StaticResolver half({{"worker", {"127.0.0.1:4000"}}}, {.task_type = "worker"});
  const UnionResolver both({&tf_config});
  const KubernetesPodsResolver pods(
      {{"pod", "Running", "127.0.0.1", {{"job-name", "tensorflow"}}}});
  const std::vector<const ClusterResolver*> all{&tf_config, &fixed, &half, &both, &pods};
  for (const ClusterResolver* const resolver : all) {
    ASSERT_EQ(resolver->cluster_spec().total_tasks(), 1) << resolver->name();
    expect_error(ErrorCode::kInvalidArgument,
                 {concat(resolver->name(),
                         ".task: expected the task that this process is, got "
                         "nothing; try to add {\"type\": \"worker\", \"index\": 0}")},
                 [&] { (void)WorkerGroup::join(*resolver); });
  }
}

TEST(WorkerGroup, AnAddressThatIsNotOfThisMachineIsRefusedBeforeAnybodyIsWaitedFor) {
  const testing::HangWatchdog watchdog("addresses", std::chrono::seconds(60));
  // Of a network that is kept for documentation (RFC 5737).
  const StaticResolver elsewhere({{"worker", {"127.0.0.1:4000", "192.0.2.7:4000"}}},
                                 {.task_type = "worker", .task_id = 1});
  const StaticResolver here({{"worker", {"127.0.0.1:4000", "127.0.0.1:4001"}}},
                            {.task_type = "worker", .task_id = 1});
  const WorkerGroupOptions open{.join = {.allow_insecure_network = true}};
  expect_error(ErrorCode::kInvalidArgument,
               {"this task's address in the cluster (or TUTTI_DATA_LISTEN): expected an address of "
                "this machine where it may listen, got '192.0.2.7:0': Cannot assign requested "
                "address"},
               [&] { (void)WorkerGroup::join(elsewhere, open); });
  WorkerGroupOptions listening = open;
  listening.listen_at = "192.0.2.7:5000";
  expect_error(ErrorCode::kInvalidArgument,
               {"TUTTI_DATA_LISTEN: expected an address of this machine", "'192.0.2.7:5000': "},
               [&] { (void)WorkerGroup::join(here, listening); });
  listening.listen_at = "10.0.0.300:5000";
  expect_error(ErrorCode::kInvalidArgument, {"TUTTI_DATA_LISTEN: expected host:port", "10.0.0.300"},
               [&] { (void)WorkerGroup::join(here, listening); });
  WorkerGroupOptions reached = open;
  reached.reached_at = "10.0.0.300:5000";
  expect_error(ErrorCode::kInvalidArgument,
               {"TUTTI_DATA_ADDRESS: expected host:port", "10.0.0.300"},
               [&] { (void)WorkerGroup::join(here, reached); });
}

}  // namespace worker_group_test
}  // namespace tutti

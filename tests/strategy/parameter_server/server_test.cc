// A server that a resolver describes: which task, by which wire.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/cluster_resolver.h"

namespace tutti::server_tests {
namespace {

ClusterSpec local_cluster() {
  return ClusterSpec({{"ps", {"127.0.0.1:0", "127.0.0.1:0"}}, {"worker", {"127.0.0.1:0"}}});
}

TEST(Server, TheResolverSaysWhichTaskItIsAndByWhichWire) {
  const testing::HangWatchdog watchdog("a server of a resolver");
  StaticResolverOptions self;
  self.task_type = "ps";
  self.task_id = 1;
  self.rpc_layer = "grpc";
  const Server server(StaticResolver(local_cluster(), self));
  EXPECT_EQ(server.task().to_string(), "ps 1");
  EXPECT_THAT(server.target(), ::testing::StartsWith("grpc://127.0.0.1:"));
  EXPECT_EQ(server.cluster(), local_cluster());
}

TEST(Server, AResolverThatKnowsNoTaskIsRefused) {
  testing::expect_error(ErrorCode::kInvalidArgument, {"does not say which task", "task_type"},
                        [] { const Server server{StaticResolver(local_cluster())}; });
  StaticResolverOptions self;
  self.task_type = "ps";
  self.task_id = 2;
  testing::expect_error(ErrorCode::kNotFound, {"2"},
                        [&] { const Server server{StaticResolver(local_cluster(), self)}; });
}

}  // namespace
}  // namespace tutti::server_tests

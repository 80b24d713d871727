// Unions of resolvers, and the static resolver that they are made of here.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/union_resolver.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/resolvers/static_resolver.h"

namespace tutti {
namespace union_resolver_test {

using testing::expect_error;

StaticResolver of(ClusterSpec cluster) { return StaticResolver(std::move(cluster)); }

ClusterSpec joined(const StaticResolver& first, const StaticResolver& second) {
  return UnionResolver({&first, &second}).cluster_spec();
}

TEST(UnionResolver, TakesPropertiesOfTheFirst) {
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

TEST(UnionResolver, ArgumentsOverrideTheFirst) {
  const StaticResolver first({{"worker", {"a:1"}}}, {.task_type = "worker", .task_id = 0});
  const UnionResolver resolver({&first}, {.task_type = "ps", .task_id = 2, .rpc_layer = "test"});
  EXPECT_EQ(resolver.task(), (Task{"ps", 2}));
  EXPECT_EQ(resolver.rpc_layer(), "test");
}

TEST(UnionResolver, JoinsDifferentJobs) {
  EXPECT_EQ(joined(of({{"ps", {"ps0:2222", "ps1:2222"}}}),
                   of({{"worker", {"worker0:2222", "worker1:2222"}}})),
            ClusterSpec(
                {{"ps", {"ps0:2222", "ps1:2222"}}, {"worker", {"worker0:2222", "worker1:2222"}}}));
}

TEST(UnionResolver, ConcatenatesLists) {
  EXPECT_EQ(joined(of({{"worker", {"worker4:2222", "worker5:2222"}}}),
                   of({{"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}})),
            ClusterSpec({{"worker",
                          {"worker4:2222", "worker5:2222", "worker0:2222", "worker1:2222",
                           "worker2:2222"}}}));
}

TEST(UnionResolver, KeepsIndicesOfSparseJobs) {
  const StaticResolver odd = of({{"worker", {{1, "b:1"}, {3, "d:1"}}}});
  EXPECT_EQ(joined(odd, of({{"worker", {{0, "a:1"}, {2, "c:1"}}}})),
            ClusterSpec({{"worker", {"a:1", "b:1", "c:1", "d:1"}}}));
  EXPECT_EQ(joined(odd, of({{"worker", {{6, "g:1"}}}})),
            ClusterSpec({{"worker", {{1, "b:1"}, {3, "d:1"}, {6, "g:1"}}}}));
  expect_error(ErrorCode::kAlreadyExists, {"worker 3", "d:1", "x:1"}, [&] {
    joined(odd, of({{"worker", {{3, "x:1"}, {9, "y:1"}}}}));
  });
}

TEST(UnionResolver, ListIndicesStartAtZeroNextToASparseJob) {
  const StaticResolver list = of({{"worker", {"a:1", "b:1"}}});
  EXPECT_EQ(joined(list, of({{"worker", {{4, "e:1"}, {6, "g:1"}}}})),
            ClusterSpec({{"worker", {{0, "a:1"}, {1, "b:1"}, {4, "e:1"}, {6, "g:1"}}}}));
  expect_error(ErrorCode::kAlreadyExists, {"worker 1", "b:1", "x:1"}, [&] {
    joined(list, of({{"worker", {{1, "x:1"}, {6, "g:1"}}}}));
  });
}

TEST(UnionResolver, MasterIsThatOfTheRequestedTask) {
  const StaticResolver first = of({{"ps", {"ps0:2222"}}});
  const StaticResolver second = of({{"worker", {"worker0:2222", "worker1:2222"}}});
  const UnionResolver resolver({&first, &second});
  EXPECT_EQ(resolver.master(), "");
  EXPECT_EQ(resolver.master("worker", 1), "worker1:2222");
  EXPECT_EQ(resolver.master("worker", 1, "grpc"), "grpc://worker1:2222");
  expect_error(ErrorCode::kNotFound, {"no job 'chief'", "ps, worker"},
               [&] { resolver.master("chief", 0); });
}

TEST(UnionResolver, MasterWithoutTaskIsThatOfTheFirst) {
  const StaticResolver first({{"ps", {"ps0:2222"}}}, {.master = "here:1", .rpc_layer = "grpc"});
  EXPECT_EQ(UnionResolver({&first}).master(), "grpc://here:1");
  EXPECT_EQ(UnionResolver({&first}, {.rpc_layer = "test"}).master(), "test://here:1");
}

TEST(UnionResolver, SingleSparseJobKeepsItsIndices) {
  const ClusterSpec sparse({{"worker", {{1, "b:1"}, {3, "d:1"}, {5, "f:1"}}}});
  const StaticResolver only = of(sparse), other = of({{"ps", {"p:1"}}});
  EXPECT_EQ(UnionResolver({&only}).cluster_spec(), sparse);
  EXPECT_EQ(joined(only, other).task_indices("worker"), (std::vector<int>{1, 3, 5}));
}

/// Knows its own process's accelerators alone.
class OwnProcessResolver final : public ClusterResolver {
 public:
  OwnProcessResolver() { apply({.task_type = "worker", .task_id = 0}); }
  std::string name() const override { return "Own"; }
  ClusterSpec cluster_spec() const override { return ClusterSpec({{"worker", {"a:1", "b:1"}}}); }
};

TEST(ClusterResolver, NumAcceleratorsOfAnotherTaskComeFromItsSourceOrAreAnError) {
  const OwnProcessResolver own;
  EXPECT_EQ(own.num_accelerators("worker", 0), own.num_accelerators());
  EXPECT_EQ(own.num_accelerators("worker"), own.num_accelerators());
  expect_error(ErrorCode::kUnimplemented, {"Own", "worker 1", "list_devices"},
               [&] { own.num_accelerators("worker", 1); });
  expect_error(ErrorCode::kNotFound, {"worker"}, [&] { own.num_accelerators("worker", 2); });
  const StaticResolver said({{"worker", {"a:1", "b:1"}}}, {.num_accelerators = {{"GPU", 8}}});
  EXPECT_EQ(said.num_accelerators("worker", 1), (std::map<std::string, int>{{"GPU", 8}}));
}

TEST(UnionResolver, NumAcceleratorsOfATaskComesFromTheFirst) {
  const StaticResolver said({{"worker", {"a:1"}}}, {.num_accelerators = {{"GPU", 8}}});
  const StaticResolver second({{"worker", {"b:1"}}}, {.num_accelerators = {{"GPU", 16}}});
  const UnionResolver resolver({&said, &second});
  EXPECT_EQ(resolver.num_accelerators("worker", 0), (std::map<std::string, int>{{"GPU", 8}}));
  expect_error(ErrorCode::kUnimplemented, {"UnionResolver", "worker 1"},
               [&] { resolver.num_accelerators("worker", 1); });
  const OwnProcessResolver own;
  expect_error(ErrorCode::kUnimplemented, {"worker 1"},
               [&] { UnionResolver({&own}).num_accelerators("worker", 1); });
}

TEST(UnionResolver, NeedsAResolver) {
  expect_error(ErrorCode::kInvalidArgument, {"at least one resolver"}, [] { UnionResolver({}); });
}

TEST(StaticResolver, GivesBackWhatItWasMadeOf) {
  const StaticResolver resolver({{"worker", {"a:1", "b:1"}}},
                                {.master = "m:1", .task_type = "worker", .task_id = 1});
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
  EXPECT_EQ(resolver.master(), "m:1");  // not the own task's address: as tf's
  EXPECT_EQ(resolver.master("worker", 0), "a:1");
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://a:1");
  EXPECT_TRUE(resolver.num_accelerators().empty());
  EXPECT_EQ(resolver.to_string(), "StaticResolver: this is worker 1 of 2 workers (a:1, b:1)");
}

}  // namespace union_resolver_test
}  // namespace tutti

// The group of one replica, and the scopes that replace it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/replica_group.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti {
namespace {

TEST(ReplicaGroup, DefaultIsAGroupOfOneWhoseOperationsAreTheIdentity) {
  ReplicaGroup& group = ReplicaGroup::current("test");
  EXPECT_EQ(group.replica_id(), 0);
  EXPECT_EQ(group.num_replicas(), 1);
  const Tensor x = Tensor::from<float>({2}, {1, 2});
  EXPECT_EQ(group.all_reduce(ReduceOp::kMean, x).to_doubles(), x.to_doubles());
  EXPECT_EQ(group.all_gather(x, 0).to_doubles(), x.to_doubles());
  EXPECT_THROW(group.all_gather(x, 1), Error);
}

TEST(ReplicaGroup, CrossReplicaContextHasNone) {
  {
    const ReplicaGroupScope scope(nullptr);
    try {
      ReplicaGroup::current("Dropout");
      FAIL() << "expected kFailedPrecondition";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
      EXPECT_NE(error.message().find("Dropout"), std::string::npos);
    }
  }
  EXPECT_EQ(ReplicaGroup::current("test").num_replicas(), 1);
}

}  // namespace
}  // namespace tutti

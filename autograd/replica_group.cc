// Implements the group of one replica, and each thread's current group.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/replica_group.h"

#include "tutti/core/error.h"

namespace tutti {
namespace {

class GroupOfOne final : public ReplicaGroup {
 public:
  int replica_id() const override { return 0; }
  int num_replicas() const override { return 1; }
  Tensor all_reduce(ReduceOp, const Tensor& value) override { return value; }
  Tensor all_gather(const Tensor& value, int axis) override {
    value.shape().normalized_axis(axis, "ReplicaGroup::all_gather");
    return value;
  }
};

ReplicaGroup*& current_group() {
  thread_local ReplicaGroup* group = &ReplicaGroup::of_one();
  return group;
}

}  // namespace

ReplicaGroup& ReplicaGroup::of_one() {
  static GroupOfOne one;
  return one;
}

ReplicaGroup& ReplicaGroup::current(std::string_view who) {
  ReplicaGroup* group = current_group();
  if (!group) {
    fail(ErrorCode::kFailedPrecondition, who,
         ": called in the cross-replica context, where there is no replica; expected a call inside "
         "strategy.run(), got one in strategy.scope(); move the call into the step function");
  }
  return *group;
}

ReplicaGroup* ReplicaGroup::find_current() { return current_group(); }

ReplicaGroupScope::ReplicaGroupScope(ReplicaGroup* group) : ThreadScope(current_group, group) {}

}  // namespace tutti

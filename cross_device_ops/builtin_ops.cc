// The operations that this build brings: the list that the registry starts with.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/builtin_ops.h"

#include "tutti/cross_device_ops/algorithms/auto_ops.h"
#include "tutti/cross_device_ops/algorithms/scheduled_ops.h"
#include "tutti/cross_device_ops/local/canonical.h"
#include "tutti/cross_device_ops/local/reduction_to_one_device.h"

namespace tutti::internal {
namespace {

template <class Ops>
std::unique_ptr<CrossDeviceOps> make(const Group&, const CommunicationOptions&) {
  return std::make_unique<Ops>();
}

CrossDeviceOpsFactory scheduled(std::string_view algorithm) {
  return [algorithm](const Group&, const CommunicationOptions&) {
    return std::make_unique<ScheduledOps>(algorithm);
  };
}

}  // namespace

std::vector<std::pair<std::string, CrossDeviceOpsFactory>> builtin_cross_device_ops() {
  return {{"canonical", make<Canonical>},
          {"hierarchical_copy", scheduled("hierarchical_copy")},
          {"reduction_to_one_device", make<ReductionToOneDevice>},
          {"ring", scheduled("ring")},
          {"halving_doubling", scheduled("halving_doubling")},
          {"tree", scheduled("tree")},
          {"auto", make<AutoOps>}};
}

}  // namespace tutti::internal

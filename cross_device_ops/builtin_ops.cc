// The operations that this build brings: the list that the registry starts with.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/builtin_ops.h"

#include "tutti/cross_device_ops/local/canonical.h"
#include "tutti/cross_device_ops/local/hierarchical_copy.h"
#include "tutti/cross_device_ops/local/reduction_to_one_device.h"
#include "tutti/cross_device_ops/ring/ring_all_reduce.h"

namespace tutti::internal {
namespace {

template <class Ops>
std::unique_ptr<CrossDeviceOps> make(const Group&, const CommunicationOptions&) {
  return std::make_unique<Ops>();
}

}  // namespace

std::vector<std::pair<std::string, CrossDeviceOpsFactory>> builtin_cross_device_ops() {
  return {{"canonical", make<Canonical>},
          {"hierarchical_copy", make<HierarchicalCopy>},
          {"reduction_to_one_device", make<ReductionToOneDevice>},
          {"ring", make<RingAllReduce>}};
}

}  // namespace tutti::internal

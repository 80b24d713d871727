// A CrossDeviceOps that spans processes, as the engine of one rank's communicator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/cross_device_ops/collective_engine.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

/// The rank group.first_rank, with one local replica, of the operation that `spec` names. Before
/// each call of the operation the ranks compare their headers with messages over group.transport
/// (the canonical algorithm's barrier), so an operation never sees two different calls; what the
/// operation does not provide() or support is done with messages altogether, and so is all_to_all,
/// of which a rank knows its own counts alone.
///
/// The operation gets a part of group.store that is empty when it is made. It must span processes
/// (kUnimplemented) and end its calls on abort(). While it runs, tend() hands aborts of other ranks
/// to it. Throws what making the operation throws, kInvalidArgument for a group that is not of one
/// local replica per rank, without transport, or that differs from it in size or rank.
std::unique_ptr<CollectiveEngine> ops_engine(const CrossDeviceOpsSpec& spec, const Group& group,
                                             TimePoint deadline);

}  // namespace tutti::internal

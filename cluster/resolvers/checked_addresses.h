// What every resolver asks of the addresses it has found.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/cluster/cluster_spec.h"

namespace tutti::internal {

/// The cluster itself, when each address is host:port and no other task's, and there is at most one
/// chief and one evaluator. Throws kInvalidArgument, one line that begins with `path` and the place
/// below it ("SM_HOSTS.worker[1]").
const ClusterSpec& checked_addresses(const ClusterSpec& cluster, const std::string& path);

}  // namespace tutti::internal

// Whether all workers make the same variable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tutti/strategy/multi_worker/worker_team.h"

namespace tutti::internal {

/// "'w' float32 [3, 4], values <hash>".
std::string describe_variable(const std::string& name, const Tensor& initial_value);

/// Called by all workers with what each makes. Throws kInvalidArgument on all of them naming the
/// first worker whose description differs from worker 0's, and both.
void require_same_variable(std::string_view who, WorkerTeam& team, const std::string& description);

}  // namespace tutti::internal

// From the options of a strategy to the pace of one worker.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tutti/strategy/parameter_server/client/replica_steps.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::internal {

/// Nothing for kSync. Throws kInvalidArgument for numbers that make no sense.
std::optional<WorkerPace> pace_of(const ParameterServerOptions& options, int worker,
                                  int num_workers);
/// "worker 1 of 3 trains apart (ssp, staleness 3)".
std::string to_string(const WorkerPace& pace);

}  // namespace tutti::internal

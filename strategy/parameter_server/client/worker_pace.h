// How a worker keeps pace with others that it does not meet.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/core/clock.h"
#include "tutti/strategy/parameter_server/parameter_server_modes.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

struct WorkerPace {
  UpdateMode mode = UpdateMode::kAsync;  // not kSync
  int worker = 0;
  int num_workers = 1;
  std::uint64_t staleness = TellClock::kUnboundedStaleness;
  int num_to_aggregate = 1;  // kSyncReplicas
  /// For how long a read waits for other workers.
  Duration patience = std::chrono::minutes(10);
};

}  // namespace tutti::internal

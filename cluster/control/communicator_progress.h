// What heartbeats tell of a communicator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cluster/control/progress.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {

/// For ProgressBoard::watch(): board.watch("all", [&c] { return group_progress(c.progress()); }).
/// Names of groups are equal on all members; a group that is built anew gets a new one ("all/2").
inline GroupProgress group_progress(const CallProgress& calls) {
  return {"", calls.entered, calls.finished, calls.call, calls.since};
}

}  // namespace tutti

// How the processes of a strategy save and restore together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

/// Of several workers the chief alone writes, and reads: it chooses the version, and all restore
/// what it has read, also those that do not see its disk. All workers call save and restore. The
/// strategy must outlive the checkpoint.
CheckpointOptions checkpoint_options(Strategy& strategy);

}  // namespace tutti

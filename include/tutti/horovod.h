// Horovod-style programs: processes with ranks, averaged gradients, collectives on tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/horovod.h"  // init, rank, size, allreduce, DistributedOptimizer, join

// tutti under libtorch: data-parallel modules, a sharded optimizer and a sampler, over
// communicators; modules and optimizers per replica, under strategies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/libtorch/distributed_data_parallel.h"  // gradients of all ranks
#include "tutti/cross_device_ops/libtorch/distributed_sampler.h"  // a rank's share of the data
#include "tutti/cross_device_ops/libtorch/sharded_optimizer.h"    // ZeRO's first stage
#include "tutti/cross_device_ops/libtorch/tensors.h"              // tensors for collectives
#include "tutti/strategy/libtorch/replicated.h"                   // steps under a strategy

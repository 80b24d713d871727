// Training of libtorch modules with tutti. Communicators connect data-parallel modules, sharded
// optimizers and samplers across processes; strategies run replicas of a module and its optimizer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/libtorch/distributed_data_parallel.h"  // averaged gradients
#include "tutti/cross_device_ops/libtorch/distributed_sampler.h"  // a rank's share of the data
#include "tutti/cross_device_ops/libtorch/sharded_optimizer.h"    // ZeRO stage 1
#include "tutti/cross_device_ops/libtorch/tensors.h"              // libtorch tensors in collectives
#include "tutti/strategy/libtorch/replicated.h"                   // replicated modules
